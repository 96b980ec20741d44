"""Run an experiment: each trial once, finished ones skipped, failures as rows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import torch

from seepage.audit.experiment import Experiment, Trial
from seepage.audit.perform import WRONG, attack_name, defence_name, lpips, perform, settings_text, tagging
from seepage.audit.pool import Begun, Done, LocalPool, Plan, Pool
from seepage.audit.scene import forget_scenes, set_scene
from seepage.audit.summary import Planned
from seepage.audit.table import Table
from seepage.audit.values import SpecError, digest, plain
from seepage.engine.interrupts import heeding_interrupts
from seepage.engine.layers import Concern

__all__ = ["WRONG", "Listener", "defence_name", "perform", "run", "settings_text"]

Listener = Callable[[int, int, Trial, str], None]


def run(
    experiment: Experiment,
    folder: Path,
    *,
    device: torch.device,
    data: str | Path | None = None,
    limit: int | None = None,
    cases: Collection[str] | None = None,
    attacks: Collection[str] | None = None,
    minutes: float | None = None,
    listener: Listener | None = None,
    pool: Pool | None = None,
    after: Sequence[Callable[[Done], None]] = (),
) -> Table:
    """Perform every trial that is not finished yet and write each as soon as it is done.

    Args:
        experiment: what to do.
        folder: where results go, and where finished trials are found again.
        device: where to compute.
        data: the folder of data sets.
        limit: watch at most that many clients in each case.
        cases: perform the trials of these alone; the others stay as they are, finished or not.
        attacks: the same for these attacks, by label.
        minutes: begin no trial after so many; the others wait for the next call.
        listener: called before and after each trial with (number, how many, trial, event), where the event is "start",
            "again" where a pool lost it, "skip" for what was finished before, "late" for what `minutes` leaves, or the
            outcome; and before all work with "note: …" for every layer that is not plainly fine and every metric left
            out. A pool may have many trials on their way at once, and end them in any order.
        pool: where to perform trials; by default in this process.
        after: called with each trial as soon as it is written, such as `Mirror.landed`.

    Raises:
        SpecError: when the experiment itself cannot be carried out; nothing is lost.
        ModuleError: when a module cannot be attacked at all, before any work.
    """
    opened = time.perf_counter()
    forget_scenes()  # of an earlier run, whose data and modules may have been others
    table = Table(folder)
    names = [case.name for case in experiment.cases]
    labels = sorted({label for case in experiment.cases for label in case.labels})
    for what, wanted, known in (("a case", cases, names), ("an attack", attacks, labels)):
        for name in wanted or ():
            if name not in known:
                raise SpecError(f"{experiment.name}: expected {what} of {known}, got {name!r}")
    # Trials are made anew wherever they are needed: of millions, only the digests are kept.
    order = [trial.digest for trial in experiment.trials(limit)]
    if not order:
        raise SpecError(f"{experiment.name}: expected at least one [[attack]], or accuracy = true, got neither")
    _write_index(experiment, order, _plan(experiment, limit), folder)

    def chosen() -> Iterator[tuple[str, Trial]]:
        for key, trial in zip(order, experiment.trials(limit), strict=True):
            if (not cases or trial.case in cases) and (not attacks or trial.label in attacks):
                yield key, trial

    count = sum(1 for _ in chosen())
    finished = {key for key in table.finished().intersection(order) if not _worth_another_try(table, key)}

    def tell(number: int, trial: Trial, event: str) -> None:
        if listener is not None:
            listener(number, count, trial, event)

    weights, without = lpips(data)
    here = device if device.type == "cpu" or torch.cuda.is_available() else torch.device("cpu")  # beside a cluster
    tagger, untagged = tagging(experiment.tagger)
    if untagged:
        tell(0, next(experiment.trials(limit)), f"note: tag_jaccard is left out: {untagged}")
    images = _check_modules(experiment, (trial for key, trial in chosen() if key not in finished), here, data, tell)
    if without and images:
        tell(0, next(experiment.trials(limit)), f"note: LPIPS is left out: {without}")
    places: dict[str, int] = {}

    def waiting() -> Iterator[Trial]:
        for number, (key, trial) in enumerate(chosen()):
            late = minutes is not None and time.perf_counter() - opened > 60 * minutes
            if key in finished or late:
                tell(number, trial, "skip" if key in finished else "late")
                continue
            finished.add(key)  # two attacks that differ in their label alone are one
            places[key] = number
            yield trial

    plan = Plan(experiment.name, folder, device, data, weights is not None, experiment.tagger if tagger else None)
    for event in (pool or LocalPool()).perform(waiting(), plan):
        trial = event.trial
        if isinstance(event, Begun):
            tell(places[trial.digest], trial, "start" if event.attempt == 1 else "again")
            continue
        table.write(trial.digest, event.rows, event.pictures, {**event.note, "trial": plain(trial)})
        for call in after:
            call(event)
        tell(places.pop(trial.digest), trial, event.rows[0]["outcome"])
    return table


def _check_modules(
    experiment: Experiment,
    trials: Iterable[Trial],
    device: torch.device,
    data: str | Path | None,
    tell: Callable[[int, Trial, str], None],
) -> bool:
    """Meet every module before any of them is worked on: a trial of hours must not end at a layer of the next.

    Returns:
        Whether any of them is about images.
    """
    images = False
    different: dict[str, Trial] = {}
    for trial in trials:
        different.setdefault(digest((trial.data, trial.model)), trial)
    for trial in different.values():
        try:
            with heeding_interrupts(), experiment.placed(trial.case):
                task = set_scene(trial, device, data).setting.task
        except WRONG:
            raise
        except Exception:
            continue  # a bug in the user's own code: the trial meets it again and says so in its row
        # A network has many layers of one kind: the first speaks for them.
        alike: dict[tuple[str, ...], list[Concern]] = {}
        for concern in task.concerns:
            alike.setdefault((concern.kind, concern.consequence, concern.why), []).append(concern)
        for first, *others in alike.values():
            more = f" (and {len(others)} more like it)" if others else ""
            tell(0, trial, f"note: {trial.model.name}: {first}{more}")
        images |= task.spec.is_image
    return images


def _plan(experiment: Experiment, limit: int | None) -> list[Planned]:
    """What the trials are, run by run of equal ones: names for each would outgrow the digests."""

    def names(trial: Trial) -> tuple[str, str, str]:
        return trial.case, attack_name(trial), defence_name(trial.defence)

    return [Planned(*which, sum(1 for _ in same)) for which, same in groupby(experiment.trials(limit), names)]


def _write_index(experiment: Experiment, trials: Sequence[str], plan: Sequence[Planned], folder: Path) -> None:
    """Which trials belong to the experiment that the folder is about, for `report` and `gate`."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {
        "name": experiment.name,
        "about": experiment.about,
        "threshold": experiment.threshold,
        "expect": plain(experiment.expect),
        "trials": list(trials),
        "plan": [asdict(part) for part in plan],
    }
    scratch = folder / f".experiment.json.{os.getpid()}"
    scratch.write_text(json.dumps(index, indent=1))
    os.replace(scratch, folder / "experiment.json")


def _worth_another_try(table: Table, trial: str) -> bool:
    """An error may have been the machine's; that a fact is hidden will not change."""
    return bool(table.read([trial])["outcome"].str.startswith("error").any())
