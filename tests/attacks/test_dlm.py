"""Deep leakage from model: no learning rate is needed, and both readings of the normalised objective."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from common.attack_suite import RNG, clients, granting, inputs_of
from common.federation import view_of
from common.nets import batch_resnet, image_task, mlp
from seepage.attacks import DLM, Attack, DLMPlus
from seepage.attacks import dlm as module
from seepage.defences import TopK
from seepage.engine.minimise import Solution
from seepage.engine.optimisers import lbfgs
from seepage.finding import NotApplicable
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.streams import Stream
from seepage.threat import THREATS, Fact, Setting, View, observe

EAVESDROPPER = THREATS["eavesdropper"]
SHORT = [DLM(steps=4), DLM(factor="gradient", steps=4), DLMPlus(steps=4), DLMPlus("mean", joint=False, steps=4)]


def one_step(lr: float, momentum: float = 0.0, epochs: int = 1) -> Recipe:
    return Recipe(SGD(lr, momentum), epochs=epochs, sends="weights")


def seen_by_eavesdropper(recipe: Recipe) -> View:
    return view_of(image_task(mlp), clients(1), recipe, threat=EAVESDROPPER)


def first_objective(attack: Attack, view: View) -> float:
    finding = attack(view, RNG)
    assert finding.first_objective is not None
    return float(finding.first_objective[0])


def first_dummy(view: View) -> list[Tensor]:
    """The gradient of the first dummies, tensor by tensor."""
    like = next(iter(view.update.values()))
    x = (RNG / "start" / "client 0" / 0).normal(1, *view.task.spec.shape, dtype=like.dtype)
    y = (RNG / "targets" / "client 0" / 0).normal(1, 3, dtype=like.dtype).softmax(-1)
    return list(view.task.gradient(view.task.params, x, y, train=True).values())


def test_the_factor_ends_at_one_over_the_learning_rate_when_it_begins_above(monkeypatch: pytest.MonkeyPatch) -> None:
    solutions: list[Solution] = []

    def noted(solution: Solution) -> Solution:
        solutions.append(solution)
        return solution_of(solution)

    solution_of = module.best_start
    monkeypatch.setattr(module, "best_start", noted)
    attack = DLM(120.0, optimiser=lbfgs(history=20, line_search="backtracking"), steps=150, starts=4)
    for lr in (0.01, 0.02):
        view = seen_by_eavesdropper(one_step(lr))
        attack(view, RNG)
        best = int(solutions[-1].value[0].argmin())
        assert math.isclose(float(solutions[-1].x["factor"][0, best]), 1 / lr, rel_tol=1e-2)


@pytest.mark.parametrize("factor", ["update", "gradient"])
def test_the_objective_of_eq_3_is_where_both_factors_begin(factor: Literal["update", "gradient"]) -> None:
    view = seen_by_eavesdropper(one_step(0.01))
    update = [u[0] for u in view.update.values()]
    expected = sum(float(((g - 50 * u) ** 2).sum()) for g, u in zip(first_dummy(view), update, strict=True))
    assert math.isclose(first_objective(DLM(50.0, factor, steps=0), view), expected / 50**2, rel_tol=1e-9)


def test_begun_far_too_low_a_factor_of_the_update_vanishes_and_one_of_the_gradient_does_not() -> None:
    secrets = clients(8)
    view = view_of(image_task(mlp), secrets, one_step(0.01), threat=EAVESDROPPER)
    search = lbfgs(history=20, line_search="backtracking")
    truth = torch.stack([secret.x for secret in secrets.values()])

    def recovered(factor: Literal["update", "gradient"]) -> int:
        found = inputs_of(DLM(20.0, factor, optimiser=search, steps=150)(view, RNG))
        return int(((found - truth).flatten(1).abs().amax(1) < 1e-2).sum())

    assert recovered("gradient") >= 5
    assert recovered("update") <= 2  # at γ = 0 any input explains the update


def test_the_objective_of_eq_7_is_twice_the_cosine_distance() -> None:
    view = seen_by_eavesdropper(one_step(0.01))
    guess = torch.cat([g.flatten() for g in first_dummy(view)])
    update = torch.cat([u[0].flatten() for u in view.update.values()])
    cosine = torch.nn.functional.cosine_similarity(guess, update, dim=0)
    assert math.isclose(first_objective(DLMPlus(steps=0), view), float(2 * (1 - cosine)), rel_tol=1e-9)


def test_the_normaliser_of_the_code_is_the_mean_of_the_tensors_norms() -> None:
    view = seen_by_eavesdropper(one_step(0.01))
    guess, update = first_dummy(view), [u[0] for u in view.update.values()]
    lengths = [0.0, 0.0]
    for which, tensors in enumerate((guess, update)):
        for tensor in tensors:
            lengths[which] += math.sqrt(sum(float(entry) ** 2 for entry in tensor.flatten())) / len(tensors)
    expected = 0.0
    for g, u in zip(guess, update, strict=True):
        for one, other in zip(g.flatten(), u.flatten(), strict=True):
            expected += (float(one) / lengths[0] - float(other) / lengths[1]) ** 2
    assert math.isclose(first_objective(DLMPlus("mean", steps=0), view), expected, rel_tol=1e-9)


@pytest.mark.parametrize("attack", [a for a in SHORT if isinstance(a, DLMPlus)], ids=str)
def test_the_learning_rate_drops_out(attack: DLMPlus) -> None:
    slow, fast = (attack(seen_by_eavesdropper(one_step(lr)), RNG) for lr in (0.01, 0.1))
    torch.testing.assert_close(slow.objective, fast.objective, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(inputs_of(slow), inputs_of(fast), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("attack", SHORT, ids=str)
@pytest.mark.parametrize("recipe", [one_step(0.1), one_step(0.1, 0.9, 5)], ids=["one step", "momentum"])
def test_nobody_looks_at_the_recipe_of_a_single_example(attack: Attack, recipe: Recipe) -> None:
    task, secret = image_task(mlp), clients(2)
    ignorant, knowing = (
        attack(view_of(task, secret, recipe, threat=granting(frozenset({Fact.COUNT, *more}))), RNG)
        for more in ((), (Fact.RECIPE,))
    )
    assert inputs_of(ignorant).equal(inputs_of(knowing))


@pytest.mark.parametrize("attack", SHORT, ids=str)
def test_normalisation_layers_run_in_the_clients_mode_where_it_is_known(attack: Attack) -> None:
    task, secret = image_task(batch_resnet), clients(1, 2)
    facts = granting(frozenset({Fact.COUNT, Fact.RECIPE, Fact.LABELS}))
    views = [
        view_of(task, secret, replace(one_step(0.01), batch_norm=mode), threat=facts)  # type: ignore[arg-type]
        for mode in ("train", "eval")
    ]
    train, evaluated = (attack(view, RNG) for view in views)
    assert inputs_of(train).isfinite().all()
    assert not inputs_of(train).equal(inputs_of(evaluated))


@pytest.mark.parametrize("attack", SHORT, ids=str)
def test_a_known_defence_of_gradients_is_simulated(attack: Attack) -> None:
    views = [
        view_of(image_task(mlp), clients(1), Recipe(sends="gradient"), threat=granting(facts), defence=TopK(0.1))
        for facts in (frozenset({Fact.COUNT, Fact.LABELS}), frozenset({Fact.COUNT, Fact.LABELS, Fact.DEFENCE}))
    ]
    assert first_objective(attack, views[0]) != first_objective(attack, views[1])


def test_total_variation_is_added_with_its_weight() -> None:
    view = seen_by_eavesdropper(one_step(0.01))
    none, some, more = (first_objective(DLMPlus(tv=tv, steps=0), view) for tv in (0.0, 0.5, 1.0))
    assert some > none
    assert math.isclose(more - none, 2 * (some - none), rel_tol=1e-9)


def over_rounds(recipe: Recipe, rounds: int = 3) -> tuple[View, View]:
    """What is seen in several rounds of a lone client, and the same as if it had trained all the way at once."""
    task, names = image_task(mlp), ["client 0"]
    (secret,) = clients(1).values()
    played = list(play(task, [secret], recipe, Federation(rounds), Stream.from_seed(0), names=names))
    (joined,) = join_rounds([c for r in played for c in r.captures])
    view = observe([(joined, played[-1].secrets[0])], Setting(task, recipe), THREATS["label-aware-server"])
    longer = replace(recipe, epochs=rounds * recipe.epochs)
    return view, view_of(task, {"client 0": secret}, longer, threat=THREATS["label-aware-server"])


@pytest.mark.parametrize("attack", SHORT, ids=str)
@pytest.mark.parametrize("sends", ["update", "weights"])
def test_rounds_of_a_lone_client_are_one_long_training(attack: Attack, sends: str) -> None:
    view, whole = over_rounds(replace(one_step(0.05), sends=sends))  # type: ignore[arg-type]
    torch.testing.assert_close(
        inputs_of(replace(attack, span="all")(view, RNG)), inputs_of(attack(whole, RNG)), rtol=1e-6, atol=1e-8
    )
    assert not inputs_of(attack(view, RNG)).allclose(inputs_of(attack(whole, RNG)))


def test_gradients_of_several_rounds_have_no_last_model() -> None:
    view, _ = over_rounds(Recipe(SGD(0.1), sends="update"))
    with pytest.raises(NotApplicable, match="gradients; attack the last round alone"):
        DLM(span="all", steps=1)(replace(view, kind="gradient"), RNG)


@pytest.mark.parametrize("attack", SHORT, ids=str)
def test_all_rounds_of_one_are_the_last(attack: Attack) -> None:
    view = seen_by_eavesdropper(one_step(0.1))
    assert inputs_of(attack(view, RNG)).equal(inputs_of(replace(attack, span="all")(view, RNG)))
