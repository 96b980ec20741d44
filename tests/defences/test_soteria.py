"""Soteria: which features it prunes, against the Jacobian itself, and what can be seen of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from common.defence_suite import ONE
from common.nets import CLASSES, IMAGE, cnn, flat, image_task, images, mlp
from seepage.defences import NoDefence, Soteria
from seepage.local import answer
from seepage.recipe import Recipe
from seepage.spec import DataSpec
from seepage.task import Task

GRADIENT = Recipe(sends="gradient")


def exact_change(task: Task, x: torch.Tensor, before: int) -> torch.Tensor:
    """‖∂rᵢ/∂x‖ / (|rᵢ| + 0.1) over the examples, one backward pass for each feature."""
    head = task.module[:before].eval()
    change = torch.zeros(())
    for example in x:
        jacobian = torch.autograd.functional.jacobian(lambda e: head(e[None])[0], example)
        change = change + jacobian.flatten(1).norm(dim=1) / (head(example[None])[0].abs() + 0.1)
    return change.detach()


def sent(task: Task, defence: Soteria | NoDefence) -> dict[str, torch.Tensor]:
    return answer(task, task.params, images(4), GRADIENT, defence, ONE).update


def test_features_that_change_least_with_the_input_are_pruned() -> None:
    task = image_task(mlp)
    change = exact_change(task, images(4).x, 3)  # what enters the last layer
    update = sent(task, Soteria(0.5, "3", draws=4000))["3.weight"]
    pruned = (update == 0).all(0)
    assert int(pruned.sum()) == 4
    assert set(change.topk(4, largest=False).indices.tolist()) == set(pruned.nonzero().flatten().tolist())


def test_features_that_are_dead_go_first() -> None:
    task = image_task(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(IMAGE), 6), nn.ReLU(), nn.Linear(6, CLASSES))
    )
    dead = {"1.weight": task.params["1.weight"].clone(), "1.bias": task.params["1.bias"].clone()}
    dead["1.weight"][:2], dead["1.bias"][:2] = 0, -1
    params = {**task.params, **dead}
    sent_with = answer(task, params, images(4), GRADIENT, Soteria(1 / 3, "3"), ONE).update["3.weight"]
    plain = answer(task, params, images(4), GRADIENT, NoDefence(), ONE).update["3.weight"]
    assert sent_with.equal(plain)  # nothing but columns of zeros was left for it to take


def test_all_else_is_sent_as_it_was() -> None:
    task = image_task(cnn)
    plain, defended = sent(task, NoDefence()), sent(task, Soteria(0.5))
    column = (defended["6.weight"] == 0).all(0)
    assert int(column.sum()) == 2
    assert plain["6.weight"][:, ~column].equal(defended["6.weight"][:, ~column])
    assert all(plain[name].equal(defended[name]) for name in plain if name != "6.weight")


def test_what_is_missing_can_be_seen_and_is_left_out_of_a_comparison() -> None:
    task = image_task(cnn)
    plain, defended = sent(task, NoDefence()), sent(task, Soteria(0.5))
    guess = Soteria(0.5).expected.given(defended).on_update(plain, None)
    assert flat(guess).equal(flat(defended))
    assert (
        Soteria().given({"bias": torch.ones(3)}).on_update({"bias": torch.ones(3)}, None)["bias"].equal(torch.ones(3))
    )


def test_a_layer_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"one of \['1', '3'\], got 'fc'"):
        sent(image_task(mlp), Soteria(0.5, "fc"))
    task = Task(nn.Sequential(nn.Conv2d(1, CLASSES, 6), nn.Flatten()), DataSpec(IMAGE, classes=CLASSES))
    with pytest.raises(ValueError, match=r"one of \[\]"):
        sent(task, Soteria(0.5))


@pytest.mark.parametrize("knobs", [{"share": 1.0}, {"share": -0.1}, {"draws": 0}])
def test_knobs_that_make_no_sense_are_refused(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        Soteria(**knobs)
