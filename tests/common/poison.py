"""Attacks that a pool must survive; in a module of their own, because workers import them by name."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from seepage.capture import Secret
from seepage.finding import Finding
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.threat import Fact, View


@dataclass(frozen=True)
class Poison:
    """Does what `how` says."""

    name: ClassVar[str] = "poison"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    how: str = "crash"

    def __call__(self, view: View, rng: Stream) -> Finding:
        if self.how == "crash":
            os._exit(1)
        if self.how == "memory":
            raise torch.OutOfMemoryError("no room")
        if self.how == "look around":
            held = [thing for thing in gc.get_objects() if isinstance(thing, Secret | Examples)]
            raise LookupError(f"{len(held)} secrets in this process")
        return Finding(torch.full((len(view.clients), view.count, *view.task.spec.shape), torch.nan))
