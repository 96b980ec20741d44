"""Attacks on one column of a table, on tables small enough for a second."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from common.nets import numbers, seeded
from seepage.attacks import AttributeGradient, AttributeInversion, AttributeModel
from seepage.capture import Capture, Secret
from seepage.defences import ClipExamples, Defence, DpSgd, NoDefence
from seepage.finding import NotApplicable
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, Sensitive, Setting, ThreatModel, View, observe

RNG = Stream.from_seed(0)
FULL = Recipe(SGD(0.05))
BATCHES = Recipe(SGD(0.02), batch_size=16)  # of 40 records: 16, 16 and 8
BINARY = Sensitive("s", slice(5, 6), torch.tensor([[0.0], [1.0]]))
AGE = Sensitive("age", slice(5, 6), torch.tensor([[-1.0], [1.0]]), numeric=True)
COLOUR = Sensitive("colour", slice(5, 8), torch.eye(3))


def table(sensitive: Sensitive, seed: int, n: int = 40) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    if sensitive.numeric:
        value = torch.randn(n, generator=draw)
    else:
        value = torch.randint(len(sensitive.values), (n,), generator=draw)
    x = torch.cat([numbers(n, 5, seed=seed), sensitive.write(value).double()], 1)
    return Examples(x, (x.sum(1) > 0.5).long())


def network(width: int, norm: bool = False) -> Task:
    layers = [nn.Linear(width, 32), *([nn.BatchNorm1d(32)] if norm else []), nn.ReLU(), nn.Linear(32, 32)]
    return Task(seeded(lambda: nn.Sequential(*layers, nn.ReLU(), nn.Linear(32, 2))), DataSpec((width,), classes=2))


def attacked(
    recipe: Recipe,
    sensitive: Sensitive = BINARY,
    *,
    rounds: int = 4,
    norm: bool = False,
    threat: ThreatModel = THREATS["column-aware-server"],
    defence: Defence | None = None,
) -> tuple[View, Tensor]:
    """What the attacker sees of two clients, and the column that they have."""
    task = network(sensitive.features.stop, norm)
    clients = [table(sensitive, seed) for seed in (1, 2)]
    defence = defence or NoDefence()
    played = list(play(task, clients, recipe, Federation(rounds), RNG, defence=defence))
    captures: list[Capture] = join_rounds([c for r in played for c in r.captures])
    secrets: tuple[Secret, ...] = played[-1].secrets
    setting = Setting(task, recipe, defence, sensitive=sensitive)
    view = observe(list(zip(captures, secrets, strict=True)), setting, threat)
    return view, torch.stack([sensitive.read(c.x) for c in clients])


def accuracy(attack, view: View, truth: Tensor) -> float:
    found = attack(view, RNG).attributes
    assert found.shape == truth.shape
    return float((found == truth).double().mean())


@pytest.mark.parametrize("sensitive", [BINARY, COLOUR], ids=lambda s: s.name)
@pytest.mark.parametrize("recipe", [FULL, Recipe(sends="gradient")], ids=["step", "gradient"])
def test_one_full_batch_gives_the_column_away(recipe: Recipe, sensitive: Sensitive) -> None:
    view, truth = attacked(recipe, sensitive, rounds=1)
    assert accuracy(AttributeInversion(noise=1e-6), view, truth) == 1.0


def test_one_full_batch_gives_numbers_away() -> None:
    view, truth = attacked(FULL, AGE, rounds=1)
    found = AttributeInversion(passes=30)(view, RNG).attributes
    assert found is not None
    assert float((found - truth).abs().median()) < 0.1  # of a deviation, where the mean is off by 0.7


def test_unknown_batches_are_told_apart_by_several_rounds() -> None:
    view, truth = attacked(BATCHES, rounds=8)
    assert accuracy(AttributeInversion(rounds=8, passes=3), view, truth) > 0.9


def test_several_epochs_are_right_to_second_order() -> None:
    view, truth = attacked(Recipe(SGD(0.01), epochs=5), rounds=2)
    assert accuracy(AttributeInversion(noise=1e-5), view, truth) > 0.95


def test_who_knows_that_gradients_are_clipped_clips_them_too() -> None:
    knowing = ThreatModel("knowing", THREATS["column-aware-server"].facts | {Fact.DEFENCE})
    clip = ClipExamples(0.3)
    view, truth = attacked(FULL, rounds=1, threat=knowing, defence=clip)
    assert accuracy(AttributeInversion(noise=1e-6), view, truth) == 1.0
    unaware, truth = attacked(FULL, rounds=1, defence=clip)
    assert accuracy(AttributeInversion(noise=1e-6), unaware, truth) < 0.9


def test_noise_that_clients_add_is_measured_and_allowed_for() -> None:
    knowing = ThreatModel("knowing", THREATS["column-aware-server"].facts | {Fact.DEFENCE})
    view, truth = attacked(FULL, rounds=5, threat=knowing, defence=DpSgd(0.3, 1.0))
    measured = accuracy(AttributeInversion(noise=1e-6, measured=True), view, truth)
    assert measured > accuracy(AttributeInversion(noise=1e-6), view, truth)
    majority = truth.double().mean(1)
    assert measured > float(torch.maximum(majority, 1 - majority).mean())


def test_batch_statistics_that_stay_with_the_client_do_not_hide_the_column() -> None:
    view, truth = attacked(replace(FULL, sends_buffers=False), rounds=4, norm=True)
    assert accuracy(AttributeInversion(rounds=4, passes=4, noise=1e-4), view, truth) > 0.9


def test_matching_directions_finds_more_than_a_guess_and_less_than_solving() -> None:
    view, truth = attacked(BATCHES, rounds=8)
    matched = accuracy(AttributeGradient(rounds=8), view, truth)
    assert matched > 0.6
    assert matched <= accuracy(AttributeInversion(rounds=8, passes=3), view, truth)


def test_the_objective_of_matching_is_the_mean_cosine_at_whole_values() -> None:
    view, _ = attacked(FULL, rounds=2)
    finding = AttributeGradient(steps=400, lr=0.5)(view, RNG)
    assert finding.objective is not None
    records, task = view.records, view.task
    for i in range(2):
        x = records.filled(i, BINARY.values[finding.attributes[i]])
        cosines = []
        for seen in view.rounds:
            gradient = task.gradient({n: p[i] for n, p in seen.params.items()}, x, records.y[i])
            one = torch.cat([g.flatten() for g in gradient.values()])
            other = torch.cat([u[i].flatten() for u in seen.update.values()])
            cosines.append(float(one @ other / one.norm() / other.norm()))
        assert float(finding.objective[i]) == pytest.approx(1 - sum(cosines) / 2, abs=1e-2)


def test_a_model_that_knows_the_labels_from_the_column_gives_it_away() -> None:
    view, _ = attacked(FULL)
    # To a model that reads the label off the column, eq. (3) answers the label.
    task = Task(seeded(lambda: nn.Linear(6, 2)), DataSpec((6,), classes=2))
    weight = torch.zeros(2, 2, 6, dtype=torch.float64)
    weight[:, 1, 5], weight[:, 0, 5] = 10.0, -10.0
    bias = torch.tensor([[5.0, -5.0]] * 2, dtype=torch.float64)
    seen = replace(view.rounds[-1], params={"weight": weight, "bias": bias}, update={}, buffers={})
    knowing = replace(view, task=task, rounds=(seen,))
    found = AttributeModel(model="global")(knowing, RNG).attributes
    assert found is not None
    assert found.equal(view.records.y)


@pytest.mark.parametrize("model", ["global", "last-answer", "lmra", "ignoring", "recovered"])
def test_every_model_can_be_asked(model: str) -> None:
    view, truth = attacked(FULL)
    assert 0.0 <= accuracy(AttributeModel(model=model), view, truth) <= 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", [AttributeInversion(), AttributeGradient(), AttributeModel()], ids=lambda a: a.name)
def test_without_the_public_columns_there_is_no_attack(attack) -> None:
    view, _ = attacked(FULL, rounds=1, threat=THREATS["honest-server"])
    with pytest.raises(NotKnown, match="public columns"):
        attack(view, RNG)


@pytest.mark.parametrize("optimiser", [Adam(), SGD(0.1, momentum=0.9), SGD(0.1, weight_decay=0.1)], ids=str)
def test_updates_that_are_no_sum_of_gradients_are_refused(optimiser: SGD | Adam) -> None:
    view, _ = attacked(Recipe(optimiser), rounds=1)
    with pytest.raises(NotApplicable, match="no weighted sum"):
        AttributeInversion()(view, RNG)


@pytest.mark.parametrize("knobs", [{"rounds": 0}, {"passes": 0}, {"noise": 0.0}])
def test_senseless_knobs_are_refused(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        AttributeInversion(**knobs)  # type: ignore[arg-type]
