"""Dummy targets: soft while optimised, and a label in the end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.federation import view_of
from common.nets import CLASSES, image_task, images, mlp, numbers
from seepage.pieces.starts import constant_start
from seepage.pieces.targets import normal_targets, pulled_targets, soft_targets
from seepage.recipe import Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import View

RNG = Stream.from_seed(0)


def seen(n: int = 4) -> View:
    return view_of(image_task(mlp), {"ada": images(n, 0), "bob": images(n, 1)}, Recipe(sends="gradient"))


def test_a_clients_dummies_depend_on_its_name_and_number_alone() -> None:
    both = normal_targets(seen(), 2, RNG)
    alone = view_of(image_task(mlp), {"bob": images(4, 1)}, Recipe(sends="gradient"))
    assert both.shape == (2, 2, 4, CLASSES)
    assert both[1].equal(normal_targets(alone, 3, RNG)[0, :2])
    assert not both[0, 0].equal(both[0, 1])


def test_soft_targets_are_probabilities() -> None:
    soft = soft_targets(DataSpec((4,), classes=CLASSES), numbers(5, CLASSES))
    assert (soft > 0).all()
    torch.testing.assert_close(soft.sum(-1), numbers(5) * 0 + 1)


@pytest.mark.parametrize("share", [1e-3, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("batched", [True, False])
def test_a_target_between_prediction_and_label_pulls_up_the_label(share: float, batched: bool) -> None:
    view = seen()
    object.__setattr__(view.task, "batched", batched)
    x = torch.stack([images(4, seed).x for seed in (0, 1)])
    y = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    prediction = view.task.forward(view.task.params, x.flatten(0, 1))[0].softmax(-1).reshape(2, 4, CLASSES)
    between = (1 - share) * prediction + share * nn.functional.one_hot(y, CLASSES)
    assert pulled_targets(view, x, between.log()).equal(y)


def test_regression_targets_stay_as_they_are() -> None:
    task = Task(nn.Linear(4, 2), DataSpec((4,), targets=2))
    view = view_of(task, {"ada": Examples(torch.rand(3, 4), torch.rand(3, 2))}, Recipe(sends="gradient"))
    dummies = normal_targets(view, 1, RNG)
    assert dummies.shape == (1, 1, 3, 2)
    assert soft_targets(task.spec, dummies) is dummies
    assert pulled_targets(view, torch.rand(1, 3, 4), dummies[:, 0]).equal(dummies[:, 0])


def test_a_constant_start_is_the_same_number_for_everybody() -> None:
    start = constant_start(seen(), 3, 2.5)
    assert start.equal(torch.full((2, 3), 2.5, dtype=torch.float64))
