"""Surrogate model extension: one gradient between two models stands for all local steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from common.attack_suite import GRADIENT, RNG, clients, granting, inputs_of, pictures
from common.federation import view_of
from common.nets import image_task, mlp
from seepage.attacks import SME, InvertingGradients, inverting_gradients
from seepage.attacks import sme as module
from seepage.engine.minimise import Solution
from seepage.pieces.distances import cosine
from seepage.pieces.priors import total_variation
from seepage.recipe import SGD, Adam, Recipe
from seepage.task import Task
from seepage.threat import THREATS, Fact, ThreatModel, View

LABELS = granting(frozenset({Fact.COUNT, Fact.LABELS}))
LOCAL = Recipe(SGD(0.5), epochs=5, batch_size=1)


def seen(recipe: Recipe, n: int = 2, threat: ThreatModel = LABELS) -> View:
    return view_of(image_task(mlp), clients(1, n), recipe, threat=threat)


def begun_at(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> None:
    """Let attacks begin with these inputs instead of noise."""
    monkeypatch.setattr(module, "normal_start", lambda *_: x[None, None].clone())


def solutions_of(monkeypatch: pytest.MonkeyPatch) -> list[Solution]:
    """The solutions of all attacks from now on."""
    noted: list[Solution] = []
    chosen = module.best_start
    monkeypatch.setattr(module, "best_start", lambda found: noted.append(found) or chosen(found))
    return noted


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_objective_is_the_angle_to_a_gradient_between_the_two_models(
    monkeypatch: pytest.MonkeyPatch, alpha: float
) -> None:
    view, x = seen(LOCAL), pictures(2, 77).x
    begun_at(monkeypatch, x)
    first = SME(alpha=alpha, tv=0.1, steps=1)(view, RNG).first_objective
    task = view.task
    after = {name: p - view.update[name][0] for name, p in task.params.items()}
    between = {name: (1 - alpha) * p + alpha * after[name] for name, p in task.params.items()}
    gradient = task.gradient(between, x, view.labels[0], train=True)
    expected = cosine(gradient, {name: u[0] for name, u in view.update.items()}) + 0.1 * total_variation(x)
    torch.testing.assert_close(first[0], expected)


def test_with_alpha_kept_at_0_it_is_the_cosine_attack_on_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    view = seen(LOCAL)
    begun_at(monkeypatch, pictures(2, 77).x)
    monkeypatch.setattr(inverting_gradients, "normal_start", module.normal_start)
    kept = SME(alpha=0.0, alpha_lr=0.0, tv=0.01, lr=0.1, steps=20)(view, RNG)
    # Without the recipe, inverting gradients takes the update for one gradient at the global model.
    alike = InvertingGradients(signed=False, tv=0.01, lr=0.1, steps=20)(view, RNG)
    torch.testing.assert_close(inputs_of(kept), inputs_of(alike))
    torch.testing.assert_close(kept.objective, alike.objective)


def test_at_the_truth_of_one_step_nothing_is_left_at_alpha_0(monkeypatch: pytest.MonkeyPatch) -> None:
    view, secret = seen(Recipe(SGD(0.5))), clients(1, 2)["client 0"]
    begun_at(monkeypatch, secret.x[secret.y.argsort(stable=True)])
    finding = SME(alpha=0.0, tv=0.0, steps=1)(view, RNG)
    assert abs(float(finding.first_objective[0])) < 1e-12


def test_at_the_truth_of_many_steps_a_point_between_explains_more_than_the_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = clients(1, 4)["client 0"]
    view = seen(Recipe(SGD(0.2), epochs=10), 4)
    begun_at(monkeypatch, secret.x[secret.y.argsort(stable=True)])
    start, between, end = (
        float(SME(alpha=alpha, tv=0.0, steps=1)(view, RNG).first_objective[0]) for alpha in (0.0, 0.5, 1.0)
    )
    assert between < min(start, end)


@pytest.mark.parametrize("lr", [1e-3, 0.5])
def test_neither_learning_rate_nor_optimiser_need_be_known(lr: float) -> None:
    finding = SME(steps=5)(seen(Recipe(SGD(lr), epochs=2)), RNG)
    assert inputs_of(finding).isfinite().all()
    assert SME(steps=5)(seen(Recipe(Adam(lr), epochs=2)), RNG).objective.isfinite().all()


@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), SGD(0.1, weight_decay=0.1), Adam(0.01)], ids=str)
def test_clients_with_other_optimisers_and_a_short_last_batch_are_attacked(optimiser: SGD | Adam) -> None:
    finding = SME(tv=1e-4, lr=0.05, steps=30)(seen(Recipe(optimiser, epochs=2, batch_size=2), 3), RNG)
    assert (finding.objective < 0.9 * finding.first_objective).all()


def test_at_the_truth_nothing_is_left_of_a_first_step_with_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    view, secret = seen(Recipe(SGD(0.5, momentum=0.9, nesterov=True))), clients(1, 2)["client 0"]
    begun_at(monkeypatch, secret.x[secret.y.argsort(stable=True)])
    finding = SME(alpha=0.0, tv=0.0, steps=1)(view, RNG)
    assert abs(float(finding.first_objective[0])) < 1e-12


def test_at_the_truth_nothing_is_left_of_a_step_of_adam_to_whoever_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret, recipe = clients(1, 2)["client 0"], Recipe(Adam(0.01, smooth=0.1))
    begun_at(monkeypatch, secret.x[secret.y.argsort(stable=True)])

    def left(threat: ThreatModel) -> float:
        finding = SME(alpha=0.0, tv=0.0, steps=1)(seen(recipe, threat=threat), RNG)
        return float(finding.first_objective[0])

    assert abs(left(THREATS["label-aware-server"])) < 1e-12
    assert left(LABELS) > 0.01


def test_the_length_of_the_update_does_not_matter() -> None:
    # α = 0 keeps the surrogate where it is, so that the update enters by its direction alone.
    attack, view = SME(alpha=0.0, alpha_lr=0.0, steps=10), seen(LOCAL)
    (round_,) = view.rounds
    longer = replace(view, rounds=(replace(round_, update={name: 7 * u for name, u in round_.update.items()}),))
    torch.testing.assert_close(inputs_of(attack(view, RNG)), inputs_of(attack(longer, RNG)))


@pytest.mark.parametrize("recipe", [LOCAL, replace(LOCAL, epochs=50)], ids=lambda recipe: f"{recipe.epochs} epochs")
def test_the_module_runs_as_often_whatever_the_number_of_local_steps(recipe: Recipe) -> None:
    view = seen(recipe)
    calls = 0
    forward = Task.forward

    def counted(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        return forward(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "forward", counted)
        SME(steps=3)(view, RNG)
    assert calls == 4  # one for each step and one for the last value


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_alpha_moves_by_its_own_step_size_and_stays_on_the_line(monkeypatch: pytest.MonkeyPatch, alpha: float) -> None:
    noted = solutions_of(monkeypatch)
    view = seen(LOCAL)
    for alpha_lr in (1e-3, 10.0):
        SME(alpha=alpha, alpha_lr=alpha_lr, lr=0.25, steps=1)(view, RNG)
        moved = noted[-1].x["shift"] * alpha_lr / 0.25
        assert 0 <= float(alpha + moved) <= 1
        assert float(moved.abs()) <= alpha_lr * (1 + 1e-6)


def test_where_inputs_are_right_alpha_finds_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = clients(1, 4)["client 0"]
    view = seen(Recipe(SGD(0.2), epochs=10), 4)
    begun_at(monkeypatch, secret.x[secret.y.argsort(stable=True)])
    noted = solutions_of(monkeypatch)
    finding = SME(alpha=0.0, alpha_lr=0.05, tv=0.0, lr=1e-12, steps=40)(view, RNG)  # inputs stay where they are
    found = float(noted[-1].x["shift"]) * 0.05 / 1e-12
    assert 0.3 < found < 0.7  # gradients of all the way stand for one near its middle
    assert float(finding.objective[0]) < 0.2 * float(finding.first_objective[0])


def test_the_curve_begins_as_the_line_and_explains_more(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = clients(1, 4)["client 0"]
    view = seen(Recipe(SGD(0.5), epochs=10, batch_size=1), 4)
    begun_at(monkeypatch, secret.x[secret.y.argsort(stable=True)])
    line, curve = (SME(curve=curve, tv=0.0, lr=1e-12, steps=100)(view, RNG) for curve in ("line", "bezier"))
    torch.testing.assert_close(line.first_objective, curve.first_objective)
    assert float(curve.objective[0]) < 0.9 * float(line.objective[0])


def test_a_curve_ends_in_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    view = seen(LOCAL)
    noted = solutions_of(monkeypatch)
    for end in (0.0, 1.0):
        kept = {"alpha": end, "alpha_lr": 0.0, "steps": 10}
        line, curve = (SME(curve=curve, **kept)(view, RNG) for curve in ("line", "bezier"))
        torch.testing.assert_close(inputs_of(line), inputs_of(curve))
        assert not noted[-1].x["bend"].any()  # where it has no effect, its stiffness keeps it straight


def test_a_client_that_sends_a_gradient_is_attacked_at_the_global_model() -> None:
    view = view_of(image_task(mlp), clients(1), GRADIENT)
    one, other = (SME(alpha=alpha, steps=5)(view, RNG) for alpha in (0.0, 1.0))
    assert inputs_of(one).equal(inputs_of(other))


@pytest.mark.parametrize("knobs", [{"alpha": -0.1}, {"alpha": 1.1}, {"alpha_lr": -1.0}, {"curve_lr": -1.0}])
def test_settings_that_make_no_sense_are_refused(knobs: dict[str, float]) -> None:
    (name,) = knobs
    with pytest.raises(ValueError, match=f"expected `{name}`"):
        SME(**knobs)
