"""Counts from dummy predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.federation import view_of
from common.label_clients import CLASSES, GRADIENT, RNG, examples_of, one_client, task_of, without_head, wrong_labels
from common.nets import numbers, seeded
from seepage.pieces.labels import Geng, LabelsHidden
from seepage.pieces.labels.geng import counts_from_bias, counts_from_weight
from seepage.pieces.labels.head import client_of, stand_ins
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, NotKnown

STEPS = Recipe(SGD(0.01), epochs=3, batch_size=4)


def test_with_the_true_prediction_the_counts_are_exact() -> None:
    task, examples = task_of(), examples_of(20, 0)
    view = view_of(task, {"ada": examples}, GRADIENT)
    with torch.no_grad():
        p = task.module(examples.x).softmax(-1).mean(0, keepdim=True)
    counts = counts_from_bias(20, p, view.update[f"{task.head}.bias"][0])
    assert counts.round().long().equal(torch.bincount(examples.y, minlength=CLASSES))
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-9)


def test_with_constant_features_the_weight_says_the_same_as_the_bias() -> None:
    # Behind a layer that forgets its input, every example has the same prediction and the same features.
    forgetful = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    task = Task(seeded(lambda: forgetful), DataSpec((1, 6, 6), classes=CLASSES))
    task.params["1.weight"].zero_()
    task.params["1.bias"].fill_(0.5)
    view = view_of(task, {"ada": examples_of(15, 1)}, GRADIENT)
    truth = torch.bincount(examples_of(15, 1).y, minlength=CLASSES).double()
    for formula in ("bias", "weight"):
        guess = Geng("server", formula, dummies=10)(view, 0, RNG)
        torch.testing.assert_close(guess.counts, truth, rtol=0, atol=1e-9)
        assert guess.confidence == pytest.approx(1)


@pytest.mark.parametrize("formula", ["bias", "weight"])
def test_interpolation_is_the_mean_over_the_steps_by_hand(formula: str) -> None:
    view, _ = one_client(task_of(1), STEPS, 8, 1)
    guess = Geng("interpolated", formula, dummies=50)(view, 0, RNG)  # type: ignore[arg-type]
    seen, x, n, steps = client_of(view, 0), stand_ins(view, 50, RNG / "dummies"), 8, 6
    counts = []
    for part in x.chunk(5):
        (ps, pc), (os, oc) = (
            [f(part, after=after).double().mean(0).numpy() for after in (False, True)]
            for f in (seen.predictions, seen.activity)
        )
        for i in range(steps):
            p, o = ((1 - i / steps) * s + i / steps * c for s, c in ((ps, pc), (os, oc)))
            if formula == "bias":
                counts.append(n * p - n * seen.bias_update.numpy() / (0.01 * steps))
            else:
                counts.append(n * p - n * seen.weight_update.numpy().sum(1) / o / (0.01 * steps))
    np.testing.assert_allclose(guess.counts.numpy(), np.mean(counts, 0), atol=1e-6)


def test_the_three_places_lie_in_order_and_agree_for_a_gradient() -> None:
    view, _ = one_client(task_of(), Recipe(SGD(0.1), epochs=3), 8, 0)
    server, between, client = (Geng(at, dummies=50)(view, 0, RNG).counts for at in ("server", "interpolated", "client"))
    torch.testing.assert_close(between, server + (client - server) / 3)  # the mean of 0, 1/3 and 2/3
    view, _ = one_client(task_of(), GRADIENT, 8, 0)
    server, between, client = (Geng(at, dummies=50)(view, 0, RNG).counts for at in ("server", "interpolated", "client"))
    assert server.equal(between)
    assert server.equal(client)


@pytest.mark.parametrize(
    "recipe",
    [
        GRADIENT,
        Recipe(SGD(0.01)),
        Recipe(SGD(0.01), sends="weights"),
        STEPS,
        Recipe(SGD(0.01, momentum=0.9), epochs=3),
        Recipe(SGD(0.01, weight_decay=0.01), epochs=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", [False, True])
def test_labels_of_a_batch_are_counted_on_an_untrained_net(recipe: Recipe, norm: bool) -> None:
    assert wrong_labels(Geng(dummies=1000), recipe, norm=norm) <= 1  # of forty


@pytest.mark.parametrize("recipe", [GRADIENT, STEPS], ids=str)
def test_more_examples_than_classes_and_heads_without_bias_are_counted(recipe: Recipe) -> None:
    assert wrong_labels(Geng(dummies=1000), recipe, 40) <= 4  # of two hundred
    assert wrong_labels(Geng(dummies=1000), recipe, 40, bias=False) <= 10


def test_what_enters_the_head_is_seen_through_other_heads() -> None:
    view, _ = one_client(task_of(), GRADIENT, 2, 0)
    x = numbers(7, 1, 6, 6, seed=5)
    with torch.no_grad():
        expected = task_of().module[:-1](x)
    seen = client_of(view, 0)
    torch.testing.assert_close(seen.features(x), expected)
    torch.testing.assert_close(seen.activity(x), expected.sum(1))


def test_public_examples_take_the_place_of_dummies() -> None:
    public = Examples(numbers(30, 1, 6, 6, seed=9), torch.zeros(30, dtype=torch.long))
    view, _ = one_client(task_of(), GRADIENT, 4, 0, THREATS["informed-server"], public)
    taken = stand_ins(view, 20, RNG)
    assert len(taken) == 20
    assert all((public.x == x).flatten(1).all(1).any() for x in taken)
    assert len(stand_ins(view, 100, RNG)) == 30


def test_counting_is_repeated_by_its_stream_and_leaves_the_global_generator_alone() -> None:
    view, _ = one_client(task_of(), GRADIENT, 8, 0)
    state = torch.get_rng_state()
    one, again, other = (Geng(dummies=50)(view, 0, Stream.from_seed(seed)).counts for seed in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)
    assert state.equal(torch.get_rng_state())


def test_what_cannot_be_counted_is_refused_with_the_way_out() -> None:
    view, _ = one_client(without_head(), GRADIENT, 3, 0)
    with pytest.raises(LabelsHidden, match=r"ends in nn.Linear.*another ending.*grants labels"):
        Geng()(view, 0, RNG)
    view, _ = one_client(task_of(bias=False), GRADIENT, 3, 0)
    with pytest.raises(LabelsHidden, match=r"with a bias, got one without; use formula = 'weight'"):
        Geng(formula="bias")(view, 0, RNG)
    view, _ = one_client(task_of(), Recipe(Adam(1e-3)), 3, 0)
    with pytest.raises(LabelsHidden, match=r"clients that use SGD.*got Adam; use the method 'rlu'"):
        Geng()(view, 0, RNG)
    view, _ = one_client(task_of(), STEPS, 3, 0, THREATS["eavesdropper"])
    with pytest.raises(NotKnown, match="does not grant 'steps'"):
        Geng()(view, 0, RNG)


def test_counts_from_weight_broadcast_over_groups() -> None:
    p, activity, gradient = torch.full((3, 2, 4), 0.25), torch.ones(3, 2), torch.zeros(4, 5)
    assert counts_from_weight(8, p, activity, gradient).equal(torch.full((3, 4), 2.0))
