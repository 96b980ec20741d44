"""Deep leakage from gradients: exact where it succeeds, and the factor of zhao2023 in both readings."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from common.attack_suite import RNG, clients, granting, inputs_of
from common.federation import view_of
from common.nets import image_task, mlp
from seepage.attacks import DLG, DLM, IDLG, Attack, DLMPlus
from seepage.audit.experiment import parse
from seepage.engine.optimisers import adam, lbfgs
from seepage.models import build
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import Fact, NotKnown, View

SEARCH = lbfgs(history=20)
ONE_STEP = Recipe(SGD(0.01), sends="weights")


def likeness(guess: Tensor, truth: Tensor) -> float:
    return float(-10 * ((guess - truth) ** 2).mean().log10())


def lenet_view(size: int) -> tuple[View, Examples]:
    """One client with a smooth image, seen by somebody who knows how it trains."""
    spec = DataSpec((1, size, size), classes=10)
    task = Task(build("lenet-zhu", spec, Stream.from_seed(0)).double(), spec)
    coarse = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    secret = Examples(images, torch.tensor([1]))
    return view_of(task, {"ada": secret}, ONE_STEP), secret


@pytest.mark.parametrize(
    "attack",
    [
        DLG(optimiser=SEARCH, steps=150),
        IDLG(optimiser=SEARCH, steps=150),
        DLM(optimiser=SEARCH, steps=150),
        DLM(factor="gradient", optimiser=SEARCH, steps=150),
        DLMPlus(optimiser=SEARCH, steps=150),
        DLMPlus("mean", joint=False, optimiser=SEARCH, steps=150),
    ],
    ids=str,
)
def test_an_image_is_recovered_exactly_from_two_snapshots_of_a_lenet(attack: Attack) -> None:
    view, secret = lenet_view(12)
    finding = replace(attack, starts=4)(view, RNG)  # a single start of L-BFGS may fail, and rounding decides which
    assert likeness(inputs_of(finding)[0], secret.x) > 40
    assert finding.labels is not None
    assert finding.labels.tolist() == [secret.y.tolist()]


def first_objective(attack: Attack, view: View) -> float:
    finding = attack(view, RNG)
    assert finding.first_objective is not None
    return float(finding.first_objective[0])


def dummy_and_seen(view: View) -> tuple[Tensor, Tensor]:
    """The gradient of the attack's first dummies, and the one that was seen, as vectors."""
    like = next(iter(view.update.values()))
    x = (RNG / "start" / "client 0" / 0).normal(1, *view.task.spec.shape, dtype=like.dtype)
    y = (RNG / "targets" / "client 0" / 0).normal(1, 3, dtype=like.dtype).softmax(-1)
    guess = view.task.gradient(view.task.params, x, y, train=True)
    return torch.cat([g.flatten() for g in guess.values()]), torch.cat([view.update[n][0].flatten() for n in guess])


def test_the_factor_multiplies_the_gradient_seen_as_in_the_paper_or_the_dummys_as_in_the_code() -> None:
    view = view_of(image_task(mlp), clients(1), Recipe(sends="gradient"))
    guess, seen = dummy_and_seen(view)
    for k in (1.0, 0.5):
        as_paper, as_code = (DLG(k, learn_k=learn, steps=0) for learn in (False, True))
        assert math.isclose(first_objective(as_paper, view), float(((guess - k * seen) ** 2).sum()), rel_tol=1e-9)
        assert math.isclose(first_objective(as_code, view), float(((k * guess - seen) ** 2).sum()), rel_tol=1e-9)


@pytest.mark.parametrize("sends", ["update", "weights"])
def test_an_update_of_one_step_is_its_gradient_times_the_learning_rate(sends: str) -> None:
    task, secret = image_task(mlp), clients(1)
    gradient, update = (
        view_of(task, secret, recipe)
        for recipe in (Recipe(sends="gradient"), Recipe(SGD(0.25), sends=sends))  # type: ignore[arg-type]
    )
    for attack in (DLG(steps=4), IDLG(steps=4)):
        torch.testing.assert_close(inputs_of(attack(update, RNG)), inputs_of(attack(gradient, RNG)))


@pytest.mark.parametrize("attack", [DLG(steps=1), IDLG(steps=1)], ids=str)
def test_the_scale_of_an_update_needs_the_steps(attack: Attack) -> None:
    view = view_of(image_task(mlp), clients(1), ONE_STEP, threat=granting(frozenset({Fact.COUNT})))
    with pytest.raises(NotKnown) as refusal:
        attack(view, RNG)
    assert refusal.value.fact is Fact.STEPS


def test_clients_that_use_adam_send_no_gradient() -> None:
    with pytest.raises(ValueError, match="SGD"):
        DLG(steps=1)(view_of(image_task(mlp), clients(1), Recipe(Adam())), RNG)


def test_regression_targets_are_optimised_as_they_are() -> None:
    module = nn.Linear(4, 2).double()
    secret = {"ada": Examples(torch.rand(1, 4, dtype=torch.float64), torch.rand(1, 2, dtype=torch.float64))}
    view = view_of(Task(module, DataSpec((4,), targets=2)), secret, Recipe(sends="gradient"))
    finding = DLG(optimiser=lbfgs(line_search="backtracking"), steps=100)(view, RNG)
    assert finding.labels is not None
    assert finding.labels.shape == (1, 1, 2)
    torch.testing.assert_close(inputs_of(finding)[0], secret["ada"].x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [DLG, IDLG, DLM, DLMPlus])
def test_presets_and_optimisers_are_read_from_a_file(kind: type[Attack]) -> None:
    def read(table: str) -> Attack:
        (case,) = parse(tomllib.loads(f'[[attack]]\nname = "{kind.name}"\n{table}'), "spec.toml").cases
        return case.attacks[0]

    plain = read("")
    assert plain == kind()
    assert read('optimiser = { kind = "adam", lr = 0.5 }\nsteps = 7') == replace(plain, optimiser=adam(0.5), steps=7)  # type: ignore[type-var]
    for name in kind.presets:
        preset = read(f'preset = "{name}"\nstarts = 3')
        assert preset.starts == 3  # type: ignore[attr-defined]
        assert preset.steps == kind.presets[name].get("steps", plain.steps)  # type: ignore[attr-defined]


def test_paper_and_code_differ_where_they_should() -> None:
    def preset(kind: type[Attack], name: str) -> Attack:
        (case,) = parse({"attack": [{"name": kind.name, "preset": name}]}, "spec.toml").cases
        return case.attacks[0]

    assert preset(DLG, "as_paper") == DLG(steps=4000)
    assert preset(DLG, "as_code") == DLG(steps=6000, learn_k=True)
    assert preset(DLM, "as_paper") == preset(DLM, "as_code") == DLM(optimiser=lbfgs(1.0, 100), steps=4000)
    assert preset(DLM, "as_code_mlp") == DLM(optimiser=adam(0.1), steps=5000)
    assert preset(DLM, "ours") == DLM(factor="gradient", steps=4000)
    assert preset(DLMPlus, "as_paper") == DLMPlus("all", joint=True)
    assert preset(DLMPlus, "as_code") == DLMPlus("mean", joint=False)
    assert preset(DLMPlus, "as_code_mlp") == DLMPlus("mean", joint=False, optimiser=adam(0.01), steps=5000)
