"""A client's own model from many rounds, and who is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from common.attack_suite import MODELS_ALONE, RNG
from common.nets import numbers, relative_error, seeded
from seepage.attacks import ATTACKS, LMRA, LocalModel, StandIn
from seepage.capture import Capture, Secret
from seepage.finding import Finding, NotApplicable
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Setting, ThreatModel, View, observe

D = 5
STEPS = Recipe(SGD(0.05), epochs=4, sends="weights")
NOTHING = ThreatModel("told nothing", frozenset())


def linear_task(module: nn.Module | None = None, spec: DataSpec | None = None) -> Task:
    return Task(module or seeded(lambda: nn.Linear(D, 1)), spec or DataSpec((D,)))


def people(count: int = 6, targets: int = 1) -> list[Examples]:
    """Clients with data, and optima, of their own."""
    return [
        Examples(
            numbers(20, D, seed=i),
            numbers(20, D, seed=i) @ numbers(D, targets, seed=50 + i) + numbers(20, targets, seed=80 + i) + i + 1,
        )
        for i in range(count)
    ]


def seen(
    task: Task, clients: list[Examples], recipe: Recipe, rounds: int, *, threat: ThreatModel = NOTHING, who: int = 0
) -> View:
    """All that was seen of one client; three of six take part in a round."""
    played = list(play(task, clients, recipe, Federation(rounds, per_round=3), Stream.from_seed(4)))
    captures = {c.client: c for c in join_rounds([c for r in played for c in r.captures])}
    pair: tuple[Capture, Secret] = (captures[str(who)], Secret(str(who), clients[who]))
    return observe([pair], Setting(task, recipe), threat)


def optimum(examples: Examples) -> dict[str, Tensor]:
    """By the normal equations, with an intercept."""
    x = torch.cat([examples.x, torch.ones(len(examples), 1).to(examples.x)], 1)
    solution = torch.linalg.solve(x.T @ x, x.T @ examples.y)
    return {"weight": solution[:-1].T, "bias": solution[-1]}


def params_of(finding: Finding) -> dict[str, Tensor]:
    assert finding.params is not None
    assert finding.inputs is None
    assert finding.labels is None
    return finding.params


def test_it_can_be_named() -> None:
    assert ATTACKS["local-model"] is LocalModel
    assert {LocalModel, LMRA, StandIn} == MODELS_ALONE


@pytest.mark.parametrize("who", [0, 3])
@pytest.mark.parametrize("sends", ["weights", "update", "gradient"])
def test_the_own_model_of_a_client_that_is_seen_now_and_then(sends: str, who: int) -> None:
    recipe = Recipe(sends="gradient") if sends == "gradient" else replace(STEPS, sends=sends)  # type: ignore[arg-type]
    task, clients = linear_task(), people()
    federation_view = seen(task, clients, recipe, 40, who=who)
    if sends == "gradient":  # a server that steps by 1 along gradients would diverge: read off fewer rounds
        federation_view = replace(federation_view, rounds=federation_view.rounds[:8])
    found = LocalModel()(federation_view, RNG)
    for name, p in optimum(clients[who]).items():
        assert params_of(found)[name].shape == (1, *p.shape)
        assert relative_error(params_of(found)[name][0], p) < 1e-8
    assert found.objective is not None
    assert float(found.objective) < 1e-8


def test_several_targets_are_one_model() -> None:
    task = linear_task(seeded(lambda: nn.Linear(D, 2)), DataSpec((D,), targets=2))
    clients = people(targets=2)
    found = params_of(LocalModel()(seen(task, clients, STEPS, 60), RNG))
    for name, p in optimum(clients[0]).items():
        assert relative_error(found[name][0], p) < 1e-8


def test_mini_batches_take_all_rounds() -> None:
    task, clients = linear_task(), people()
    view = seen(task, clients, replace(STEPS, batch_size=10), 80)
    right = optimum(clients[0])["weight"]
    one, other = (
        relative_error(params_of(LocalModel(rounds=how)(view, RNG))["weight"][0], right)  # type: ignore[arg-type]
        for how in ("all", "best")
    )
    assert one < 0.2
    assert one < other


def test_together_equals_one_by_one() -> None:
    task, clients, recipe = linear_task(), people(2), STEPS
    theta = [{"weight": numbers(1, D, seed=i), "bias": numbers(1, seed=90 + i)} for i in range(D + 3)]
    played = [next(play(task, clients, recipe, Federation(), RNG, params=params)) for params in theta]
    captures = [
        Capture(str(k), tuple(replace(r.captures[k].exchanges[0], round=i) for i, r in enumerate(played)))
        for k in range(2)
    ]
    setting = Setting(task, recipe)
    both = params_of(LocalModel()(observe([(c, None) for c in captures], setting, NOTHING), RNG))
    for k, capture in enumerate(captures):
        alone = params_of(LocalModel()(observe([(capture, None)], setting, NOTHING), RNG))
        for name in both:
            assert torch.equal(both[name][k], alone[name][0])


@pytest.mark.parametrize("threat", THREATS.values(), ids=lambda threat: threat.name)
def test_every_threat_model_is_enough(threat: ThreatModel) -> None:
    task, clients = linear_task(), people()
    found = LocalModel()(seen(task, clients, STEPS, 40, threat=threat), RNG)
    assert relative_error(params_of(found)["weight"][0], optimum(clients[0])["weight"]) < 1e-8


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(NotApplicable, match="expected at least 7 observed rounds"):
        LocalModel()(seen(linear_task(), people(), STEPS, 6), RNG)


@pytest.mark.parametrize(
    ("module", "spec", "recipe", "why"),
    [
        (nn.Linear(D, 3), DataSpec((D,), classes=3), STEPS, "squared error"),
        (nn.Sequential(nn.Linear(D, 2), nn.Linear(2, 1)), DataSpec((D,)), STEPS, "linear in its parameters"),
        (nn.Sequential(nn.Linear(D, 1), nn.ReLU()), DataSpec((D,)), STEPS, "linear in its parameters"),
        (nn.Linear(D, 1), DataSpec((D,)), replace(STEPS, optimiser=Adam()), "got Adam"),
    ],
)
def test_what_is_no_least_squares_is_refused(module: nn.Module, spec: DataSpec, recipe: Recipe, why: str) -> None:
    clients = people()
    if spec.classes is not None:
        clients = [Examples(c.x, torch.arange(20) % 3) for c in clients]
    view = seen(linear_task(module.double(), spec), clients, recipe, 30, threat=THREATS["honest-server"])
    with pytest.raises(NotApplicable, match=why):
        LocalModel()(view, RNG)


def test_knobs_are_checked() -> None:
    with pytest.raises(ValueError, match="'best' or 'all'"):
        LocalModel(rounds="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0"):
        LocalModel(worst=0.0)
    assert hash(LocalModel()) == hash(LocalModel())
