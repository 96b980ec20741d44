"""Counts by simulated training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.federation import view_of
from common.label_clients import (
    CLASSES,
    GRADIENT,
    RNG,
    examples_of,
    labels,
    net,
    one_client,
    task_of,
    wrong,
    wrong_labels,
)
from common.nets import numbers, seeded
from seepage.defences import Clip
from seepage.pieces.labels import Rlu
from seepage.pieces.labels.rlu import invert
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, NotKnown


@pytest.mark.parametrize("recipe", [GRADIENT, Recipe(SGD(0.5)), Recipe(SGD(0.5), sends="weights")], ids=str)
def test_where_all_inputs_look_alike_one_step_is_inverted_exactly(recipe: Recipe) -> None:
    forgetful = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    task = Task(seeded(lambda: forgetful), DataSpec((1, 6, 6), classes=CLASSES))
    task.params["1.weight"].zero_()
    task.params["1.bias"].fill_(0.5)
    view, truth = one_client(task, recipe, 30, 3)
    guess = Rlu()(view, 0, RNG)
    torch.testing.assert_close(guess.counts, torch.bincount(truth, minlength=CLASSES).double(), rtol=0, atol=1e-6)
    assert guess.confidence == pytest.approx(1, abs=1e-4)


def test_a_table_is_inverted_at_its_points_and_between_them() -> None:
    ks = torch.tensor([0.0, 1.0, 3.0, 7.0]).double()
    expected = torch.stack([2 - ks, -(ks**2)], 1)  # (points, classes)
    for k in (0.0, 1.0, 3.0, 7.0):
        assert invert(ks, expected, torch.tensor([2 - k, -(k**2)]).double()).tolist() == [k, k]
    assert invert(ks, expected, torch.tensor([0.0, -5.0]).double()).tolist() == pytest.approx([2, 2])
    assert invert(ks, expected, torch.tensor([-100.0, 100.0]).double()).tolist() == [14, -7]
    assert invert(ks, torch.zeros(4, 1).double(), torch.zeros(1).double()).isfinite().all()


def test_the_last_digits_of_a_step_of_adam_are_no_examples() -> None:
    """Its table ends level, so that beyond its end there is nothing to follow."""
    ks = torch.tensor([0.0, 1.0, 4.0, 16.0]).double()
    sign = torch.tensor([[1.0], [-1 + 1e-7], [-1.0], [-1.0]]).double()
    for last in (-1e-6, 0.0, 1e-6):
        assert invert(ks, sign, torch.tensor([last - 1]).double()).item() == pytest.approx(1, abs=0.01)
        assert invert(ks, sign, torch.tensor([1 - last]).double()).item() == pytest.approx(0, abs=0.01)
    steep = torch.tensor([[1.0], [0.5], [-1.0], [-7.0]]).double()
    assert invert(ks, steep, torch.tensor([-8.0]).double()).item() == 18, "a slope that goes on is followed"


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_weights_moves_no_count_after_a_step_of_adam(seed: int) -> None:
    recipe, held = Recipe(Adam(1e-3), sends="weights"), examples_of(6, seed)
    exact = Rlu()(view_of(task_of(seed), {"ada": held}, recipe), 0, RNG)
    single = Task(seeded(net, seed).float(), DataSpec((1, 6, 6), classes=CLASSES))
    rounded = Rlu()(view_of(single, {"ada": held.to("cpu", torch.float32)}, recipe), 0, RNG)
    torch.testing.assert_close(rounded.counts, exact.counts, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("recipe", "allowed"),
    [
        (GRADIENT, 1),
        (Recipe(SGD(0.01), epochs=3, batch_size=4), 1),
        (Recipe(SGD(0.01, momentum=0.9), epochs=3), 1),
        (Recipe(SGD(0.01, momentum=0.9, nesterov=True), epochs=2, batch_size=3, shuffle=False), 2),
        (Recipe(SGD(0.01, weight_decay=0.5), epochs=2), 1),
        (Recipe(Adam(1e-3), epochs=4), 14),  # full batches: little more than signs
        (Recipe(Adam(1e-3), epochs=3, batch_size=4), 8),
    ],
    ids=str,
)
def test_labels_of_a_batch_are_counted_for_every_optimiser(recipe: Recipe, allowed: int) -> None:
    assert wrong_labels(Rlu(), recipe) <= allowed  # of forty; a blind guess has about twenty


def test_more_examples_than_classes_and_batch_norm_are_counted() -> None:
    recipe = Recipe(SGD(0.01), epochs=2, batch_size=8)
    assert wrong_labels(Rlu(), recipe, 40) <= 4  # of two hundred
    assert wrong_labels(Rlu(), recipe, norm=True) <= 2


@pytest.mark.parametrize(("recipe", "allowed"), [(GRADIENT, 2), (Recipe(Adam(1e-3), epochs=3, batch_size=4), 15)])
def test_a_head_without_bias_is_seen_through_its_weight(recipe: Recipe, allowed: int) -> None:
    assert wrong_labels(Rlu(), recipe, bias=False) <= allowed  # of forty


def trained() -> tuple[Task, Examples]:
    """A net that knows its classes, and public examples of them."""
    y = labels(400, 0)
    centres = 1.5 * numbers(CLASSES, 1, 6, 6, seed=77)
    x = centres[y] + numbers(400, 1, 6, 6, seed=78)
    module = seeded(net)
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return Task(module, DataSpec((1, 6, 6), classes=CLASSES)), Examples(x, y)


def test_for_a_trained_model_public_examples_are_worth_much() -> None:
    task, data = trained()
    mistakes = {"honest-server": 0, "informed-server": 0}
    for seed in range(6):
        mine = torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:20]
        for name in mistakes:
            view = view_of(task, {"ada": data[mine]}, GRADIENT, threat=THREATS[name], public=data[200:])
            mistakes[name] += wrong(Rlu()(view, 0, RNG), data.y[mine])
    assert mistakes["informed-server"] < mistakes["honest-server"]


def test_a_known_clipping_is_simulated() -> None:
    mistakes = []
    for threat in ("honest-server", "informed-server"):
        total = 0
        for seed in range(4):
            examples = Examples(numbers(12, 1, 6, 6, seed=seed), labels(12, seed))
            view = view_of(task_of(seed), {"ada": examples}, GRADIENT, threat=THREATS[threat], defence=Clip(0.1))
            total += wrong(Rlu()(view, 0, RNG), examples.y)
        mistakes.append(total)
    assert mistakes[1] < mistakes[0]


def test_it_is_repeated_by_its_stream_and_leaves_the_global_generator_alone() -> None:
    view, _ = one_client(task_of(), Recipe(Adam(1e-3), epochs=2), 8, 0)
    state = torch.get_rng_state()
    one, again, other = (Rlu()(view, 0, Stream.from_seed(seed)).counts for seed in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)
    assert state.equal(torch.get_rng_state())


def test_a_hidden_recipe_is_not_guessed() -> None:
    view, _ = one_client(task_of(), Recipe(SGD(0.1)), 3, 0, THREATS["eavesdropper"])
    with pytest.raises(NotKnown, match="does not grant 'recipe'"):
        Rlu()(view, 0, RNG)
