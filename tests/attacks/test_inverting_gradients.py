"""What Inverting Gradients promises beyond the common suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from common.attack_suite import GRADIENT, RNG, STEPS, clients, inputs_of, pictures
from common.federation import view_of
from common.nets import image_task, mlp
from seepage.attacks import InvertingGradients
from seepage.defences import TopK
from seepage.recipe import SGD, Recipe
from seepage.spec import Examples
from seepage.threat import THREATS, Fact

SHORT = InvertingGradients(steps=6)


def test_more_starts_never_explain_the_update_worse() -> None:
    view = view_of(image_task(mlp), clients(2), GRADIENT)
    one, four = (replace(SHORT, starts=starts)(view, RNG).objective for starts in (1, 4))
    assert (four <= one).all()


def test_inputs_stay_in_the_box_unless_they_may_leave_it() -> None:
    view = view_of(image_task(mlp), clients(2), GRADIENT)
    longer = replace(SHORT, steps=30)
    inside, outside = (inputs_of(replace(longer, boxed=boxed)(view, RNG)) for boxed in (True, False))
    assert float(inside.min()) >= 0
    assert float(inside.max()) <= 1
    assert not (float(outside.min()) >= 0 and float(outside.max()) <= 1)


@pytest.mark.parametrize("changed", [{"chunk": 1}, {"chunk": 3}, {"keep_every": 1}, {"keep_every": 2}])
def test_knobs_of_memory_change_no_number(changed: dict[str, int]) -> None:
    view = view_of(image_task(mlp), clients(2, 3), STEPS)
    plain = inputs_of(replace(SHORT, starts=2)(view, RNG))
    torch.testing.assert_close(inputs_of(replace(SHORT, starts=2, **changed)(view, RNG)), plain, rtol=1e-7, atol=1e-9)


def test_a_prior_of_smoothness_makes_images_smoother() -> None:
    view = view_of(image_task(mlp), clients(1), GRADIENT)
    rough, smooth = (inputs_of(replace(SHORT, steps=60, tv=tv)(view, RNG)) for tv in (0.0, 0.5))
    assert smooth.diff(dim=-1).abs().mean() < rough.diff(dim=-1).abs().mean()


def test_an_attacker_who_knows_the_defence_explains_the_update_better() -> None:
    task, attack = image_task(mlp), replace(SHORT, steps=100, lr=0.05)
    views = [
        view_of(task, clients(1), GRADIENT, threat=THREATS[name], defence=TopK(0.3), public=None)
        for name in ("honest-server", "informed-server")
    ]
    naive, aware = (attack(view, RNG).objective for view in views)
    assert (aware < naive).all()


def test_known_batches_are_attacked_with_their_own_labels() -> None:
    recipe = Recipe(SGD(0.1), epochs=2, batch_size=2, shuffle=False)
    secret = {"ada": Examples(pictures(4).x, torch.tensor([2, 1, 0, 1]))}
    task = image_task(mlp)
    known = SHORT(view_of(task, secret, recipe, threat=THREATS["batch-aware-server"]), RNG)
    counted = SHORT(view_of(task, secret, recipe, threat=THREATS["label-aware-server"]), RNG)
    assert known.labels.tolist() == [[1, 2, 0, 1]]
    assert counted.labels.tolist() == [[0, 1, 1, 2]]


@pytest.mark.parametrize(
    "changed",
    [
        {"distance": "squared", "optimiser": "lbfgs", "lr": 1.0, "decay": "none", "boxed": False, "tv": 0.0},
        {"signed": False},
        {"decay": "cosine"},
        {"layers": "first2"},
        {"layers": "top3"},
    ],
    ids=str,
)
def test_every_variant_of_the_paper_explains_the_update_better_than_its_start(changed: dict[str, Any]) -> None:
    view = view_of(image_task(mlp), clients(2), GRADIENT)
    finding = replace(SHORT, steps=40, **changed)(view, RNG)
    assert (finding.objective < finding.first_objective / 2).all()


def test_a_layer_that_is_not_looked_at_may_hold_anything() -> None:
    task = image_task(mlp)
    view = view_of(task, clients(1), GRADIENT)
    last = list(view.update)[-1]
    (seen,) = view.rounds
    spoilt = replace(view, rounds=(replace(seen, update={**seen.update, last: 0 * seen.update[last] + 7}),))
    labelled = [replace(v, _granted={**v._granted, Fact.LABELS: torch.tensor([[0]])}) for v in (view, spoilt)]
    one, other = (replace(SHORT, layers="first2")(v, RNG) for v in labelled)
    assert inputs_of(one).equal(inputs_of(other))
    assert one.objective.equal(other.objective)
    one, other = (SHORT(v, RNG) for v in labelled)
    assert not one.objective.equal(other.objective)


def test_the_median_filter_acts_when_it_is_due() -> None:
    view = view_of(image_task(mlp), clients(1), GRADIENT)
    attack = replace(SHORT, steps=3)
    never, late, due = (inputs_of(replace(attack, median_every=every)(view, RNG)) for every in (0, 4, 1))
    assert never.equal(late)
    assert not never.equal(due)
