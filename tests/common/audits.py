"""Audits so small that a test can run them whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from seepage.audit.experiment import Experiment, parse
from seepage.audit.run import run
from seepage.audit.table import Table
from seepage.finding import Finding
from seepage.streams import Stream
from seepage.threat import Fact, View

TINY = """
name = "tiny"
about = "Three clients with one image each."

[clients]
count = 3
examples = 1

[model]
name = "mlp"
options = { hidden = [8] }

[[attack]]
name = "inverting-gradients"
steps = 5
"""


def tiny(**changed: Any) -> Experiment:
    """The experiment of `TINY`, with other sections or lists."""
    table: dict[str, Any] = {
        "name": "tiny",
        "clients": {"count": 3, "examples": 1},
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "attack": [{"name": "inverting-gradients", "steps": 5}],
    }
    return parse({**table, **changed}, "tiny.toml")


def perform(experiment: Experiment, folder: Path, **options: Any) -> Table:
    """Run it on the CPU."""
    return run(experiment, folder, device=torch.device("cpu"), **options)


@dataclass(frozen=True)
class Grey:
    """Answers grey images and notes what it was shown."""

    name: ClassVar[str] = "grey"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    seen: ClassVar[list[View]] = []

    level: float = 0.0

    def __call__(self, view: View, rng: Stream) -> Finding:
        self.seen.append(view)
        return Finding(torch.full((len(view.clients), view.count, *view.task.spec.shape), self.level))


@dataclass(frozen=True)
class Broken:
    """Raises, as an attack with a bug would, while `broken` is true."""

    name: ClassVar[str] = "broken"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    broken: ClassVar[bool] = True
    calls: ClassVar[list[View]] = []

    def __call__(self, view: View, rng: Stream) -> Finding:
        self.calls.append(view)
        if self.broken:
            raise RuntimeError("a bug in the attack")
        return Finding(torch.zeros(len(view.clients), view.count, *view.task.spec.shape))
