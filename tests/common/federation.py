"""A federation of one round in one line, and what an attacker sees of it."""

from __future__ import annotations

from collections.abc import Mapping

from seepage.defences.base import Defence
from seepage.recipe import Recipe
from seepage.rounds import Federation, play
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Setting, ThreatModel, View, observe

HONEST = THREATS["honest-server"]


def view_of(
    task: Task,
    clients: Mapping[str, Examples],
    recipe: Recipe,
    *,
    threat: ThreatModel = HONEST,
    defence: Defence | None = None,
    public: Examples | None = None,
) -> View:
    """What `threat` sees after one round of these clients."""
    names = list(clients)
    (only,) = play(
        task, list(clients.values()), recipe, Federation(), Stream.from_seed(0), defence=defence, names=names
    )
    setting = Setting(task, recipe, public=public) if defence is None else Setting(task, recipe, defence, public)
    return observe(list(zip(only.captures, only.secrets, strict=True)), setting, threat)
