"""Labels of every client, as attacks want them."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from common.federation import view_of
from common.label_clients import CLASSES, GRADIENT, RNG, examples_of, net, one_client, task_of, without_head
from common.nets import image_task, images, seeded
from seepage.finding import NotApplicable
from seepage.pieces.labels import METHODS, Geng, LabelsHidden, MethodName, best_method, guess_labels, recover_labels
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, Setting, ThreatModel, observe

STEPS = Recipe(SGD(0.01), epochs=2, batch_size=3)


def test_every_method_has_a_name() -> None:
    assert set(get_args(MethodName)) == {"auto", *METHODS}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "idlg"])
@pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=str)
def test_together_equals_one_by_one(method: str, recipe: Recipe) -> None:
    clients = {str(s): examples_of(6, s) for s in range(3)}
    found, sure = guess_labels(view_of(task_of(), clients, recipe), RNG, method)
    assert found.shape == (3, 6)
    assert found.dtype == torch.long
    assert sure.shape == (3,)
    for i, client in enumerate(clients):
        assert found[i].equal(found[i].sort().values)
        alone = guess_labels(view_of(task_of(), {client: clients[client]}, recipe), RNG, method)
        assert alone[0][0].equal(found[i])
        assert alone[1][0].equal(sure[i])


@pytest.mark.parametrize(
    ("bias", "recipe", "n", "expected"),
    [
        (True, GRADIENT, 1, "idlg"),
        (True, Recipe(Adam(1e-3)), 1, "idlg"),
        (True, GRADIENT, 4, "ilrg"),
        (True, STEPS, 4, "ilrg"),
        (False, STEPS, 4, "geng-interpolated"),
        (True, Recipe(Adam(1e-3)), 4, "rlu"),
    ],
)
def test_the_method_is_chosen_by_what_clients_do(bias: bool, recipe: Recipe, n: int, expected: str) -> None:
    view, _ = one_client(task_of(bias=bias), recipe, n, 0)
    assert best_method(view) == expected
    assert recover_labels(view, RNG).equal(recover_labels(view, RNG, expected))


def test_a_method_may_bring_its_own_knobs() -> None:
    view, _ = one_client(task_of(), GRADIENT, 4, 0)
    assert recover_labels(view, RNG, Geng("server", dummies=10)).shape == (1, 4)


def test_granted_labels_are_taken_as_they_are_unless_a_method_is_named() -> None:
    clients = {"ada": images(4)}
    view = view_of(image_task(), clients, GRADIENT, threat=THREATS["label-aware-server"])
    found, sure = guess_labels(view, RNG)
    assert found.equal(view.labels)
    assert sure.tolist() == [1.0]
    plain = view_of(image_task(), clients, GRADIENT)
    assert recover_labels(view, RNG, "ilrg").equal(recover_labels(plain, RNG, "ilrg"))


def test_an_unknown_method_is_answered_with_the_list() -> None:
    view, _ = one_client(task_of(), GRADIENT, 4, 0)
    with pytest.raises(ValueError, match=r"expected `method` to be one of \['auto', 'idlg', .* got 'guess'"):
        recover_labels(view, RNG, "guess")


def frozen_head() -> Task:
    module = seeded(net)
    module[-1].requires_grad_(False)
    return Task(module, DataSpec((1, 6, 6), classes=CLASSES))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("build", "got"), [(without_head, "another ending"), (frozen_head, "a frozen one")])
def test_labels_that_leave_no_mark_are_refused_with_the_way_out(build, got: str, n: int) -> None:
    view, _ = one_client(build(), GRADIENT, n, 0)
    with pytest.raises(LabelsHidden, match=rf"ends in nn.Linear with one trained output.*{got}.*grants labels"):
        recover_labels(view, RNG)


def test_an_update_of_unknown_scale_cannot_be_counted() -> None:
    view, _ = one_client(task_of(), Recipe(SGD(0.1)), 3, 0, THREATS["eavesdropper"])
    with pytest.raises(NotKnown, match="'eavesdropper' does not grant 'steps'"):
        recover_labels(view, RNG)


def test_a_gradient_of_unknown_recipe_can_be_counted() -> None:
    view, _ = one_client(task_of(), GRADIENT, 3, 0, THREATS["eavesdropper"])
    for method in METHODS:
        if method != "idlg":
            assert recover_labels(view, RNG, method).shape == (1, 3)


def test_a_hidden_count_is_not_guessed() -> None:
    view, _ = one_client(task_of(), GRADIENT, 3, 0, ThreatModel("nobody", frozenset()))
    with pytest.raises(NotKnown) as refusal:
        recover_labels(view, RNG)
    assert refusal.value.fact is Fact.COUNT


def test_targets_of_a_regression_are_hidden_unless_granted() -> None:
    task = Task(nn.Linear(3, 1), DataSpec((3,)))
    recipe = Recipe(SGD(0.1))
    examples = Examples(torch.eye(3), torch.ones(3, 1))
    seen = next(play(task, [examples], recipe, Federation(), Stream.from_seed(0)))
    pairs = list(zip(seen.captures, seen.secrets, strict=True))
    hidden, granted = (
        observe(pairs, Setting(task, recipe), THREATS[name]) for name in ("honest-server", "label-aware-server")
    )
    with pytest.raises(NotApplicable, match="got regression targets; attack under a threat model that grants labels"):
        recover_labels(hidden, Stream.from_seed(1))
    assert recover_labels(granted, Stream.from_seed(1)).shape == (1, 3, 1)
