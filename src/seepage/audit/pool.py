"""Where the trials of a run are performed: one after another in this process, or on a cluster (`ray_pool`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from seepage.audit.experiment import Trial
from seepage.audit.perform import (
    WRONG,
    Row,
    Searches,
    columns,
    device_name,
    failure,
    lpips,
    perform,
    tagging,
    unmeasured,
)
from seepage.audit.table import Pictures
from seepage.engine.interrupts import heeding_interrupts
from seepage.metrics.tags import Tagging

__all__ = ["Begun", "Done", "Event", "LocalPool", "Plan", "Pool"]


@dataclass(frozen=True)
class Plan:
    """What all trials of a run share.

    Args:
        experiment: its name.
        folder: where captures are kept.
        device: where to compute.
        data: the folder of data sets.
        perceptual: whether the weights of the perceptual metric were found, so that all rows have it or none.
        tagger: what tells which tags images have, if it was found, likewise.
    """

    experiment: str
    folder: Path
    device: torch.device
    data: str | Path | None
    perceptual: bool
    tagger: Tagging | None = None


@dataclass(frozen=True)
class Begun:
    """A trial is on its way, for the first time or again."""

    trial: Trial
    attempt: int = 1


@dataclass(frozen=True, eq=False)
class Done:
    """A trial has ended, one way or another.

    Args:
        trial: which.
        rows: at least one.
        pictures: for the report.
        note: what may differ between two runs of the same trial, such as the seconds it took.
    """

    trial: Trial
    rows: list[Row]
    pictures: Pictures | None = None
    note: dict[str, Any] = field(default_factory=dict)


Event: TypeAlias = Begun | Done


class Pool(Protocol):
    """Performs trials; each that is begun is done sooner or later, in any order, and none stops the others."""

    def perform(self, trials: Iterable[Trial], plan: Plan) -> Iterator[Event]:
        """Take trials one by one as there is room for them.

        Raises:
            SpecError: or another of `WRONG`, when the specification itself cannot be carried out.
        """
        ...


@dataclass(frozen=True)
class LocalPool:
    """This process, one trial after another."""

    def perform(self, trials: Iterable[Trial], plan: Plan) -> Iterator[Event]:
        """See `Pool`."""
        weights = lpips(plan.data)[0] if plan.perceptual else None
        tagger, _ = tagging(plan.tagger)
        name = device_name(plan.device)
        searches = Searches()
        for trial in trials:
            yield Begun(trial)
            began, before = time.perf_counter(), searches.seconds
            common = columns(plan.experiment, trial, name)
            try:
                with heeding_interrupts():
                    rows, pictures = perform(
                        trial, plan.folder, plan.device, plan.data, common, weights, tagger, searches
                    )
            except WRONG:
                raise
            except Exception as error:
                rows, pictures = [unmeasured(common, failure(error).outcome)], None
            whole, attacking = time.perf_counter() - began, searches.seconds - before
            note = {"seconds": round(whole, 3), "attack_seconds": round(attacking, 3), "device": name}
            yield Done(trial, rows, pictures, note)
