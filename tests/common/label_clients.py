"""Small networks of ten classes, clients with made-up labels, and how wrong a guess of them is."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from common.federation import HONEST, view_of
from common.nets import numbers, seeded
from seepage.pieces.labels import LabelGuess, LabelMethod
from seepage.recipe import Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import ThreatModel, View

CLASSES = 10
RNG = Stream.from_seed(0)
GRADIENT = Recipe(sends="gradient")


def net(bias: bool = True, norm: bool = False, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    middle = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), *middle, activation(), nn.Flatten(), nn.Linear(144, CLASSES, bias=bias)
    )


@cache
def task_of(seed: int = 0, bias: bool = True, norm: bool = False, activation: type[nn.Module] = nn.ReLU) -> Task:
    return Task(seeded(lambda: net(bias, norm, activation), seed), DataSpec((1, 6, 6), classes=CLASSES))


def without_head() -> Task:
    return Task(
        seeded(lambda: nn.Sequential(nn.Conv2d(1, CLASSES, 6), nn.Flatten())), DataSpec((1, 6, 6), classes=CLASSES)
    )


def labels(n: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (n,), generator=torch.Generator().manual_seed(seed))


def examples_of(n: int, seed: int) -> Examples:
    return Examples(numbers(n, 1, 6, 6, seed=seed), labels(n, seed))


def one_client(
    task: Task, recipe: Recipe, n: int, seed: int, threat: ThreatModel = HONEST, public: Examples | None = None
) -> tuple[View, Tensor]:
    """What is seen of a client, and its labels."""
    examples = examples_of(n, seed)
    return view_of(task, {"ada": examples}, recipe, threat=threat, public=public), examples.y


def wrong(guess: LabelGuess, truth: Tensor) -> int:
    """How many labels would have to be changed."""
    found, real = (torch.bincount(y, minlength=len(guess.counts)) for y in (guess.labels, truth))
    return int((found - real).abs().sum()) // 2


def wrong_labels(method: LabelMethod, recipe: Recipe, n: int = 8, seeds: int = 5, **kind: object) -> int:
    """Wrong labels of `method`, summed over untrained nets and clients."""
    total = 0
    for seed in range(seeds):
        view, truth = one_client(task_of(seed, **kind), recipe, n, seed)  # type: ignore[arg-type]
        guess = method(view, 0, RNG)
        assert len(guess.labels) == n
        assert 0 <= guess.confidence <= 1
        total += wrong(guess, truth)
    return total
