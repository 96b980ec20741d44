"""TabLeak on tables, beyond what the common suite asks of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from common.federation import view_of
from common.nets import seeded
from seepage.attacks import TabLeak
from seepage.attacks.tableak import _certainty, decided, relaxed
from seepage.metrics.tabular import cells_found
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS

# Two numbers, a column of four categories, one of two values that is one feature, and one of three.
SPEC = DataSpec(
    (10,),
    classes=2,
    mean=(0.3, 0.6, *[0.0] * 8),
    std=(0.2, 0.1, *[1.0] * 8),
    categories=((2, 6), (6, 7), (7, 10)),
)
RECIPES = [Recipe(sends="gradient"), Recipe(SGD(0.1), epochs=4)]


def table(n: int, seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)

    def one_hot(values: int) -> Tensor:
        return nn.functional.one_hot(torch.randint(values, (n,), generator=draw), values).double()

    binary = torch.randint(2, (n, 1), generator=draw).double()
    raw = torch.cat([torch.rand(n, 2, generator=draw).double(), one_hot(4), binary, one_hot(3)], 1)
    return Examples(SPEC.normalise(raw), torch.randint(2, (n,), generator=draw))


def network() -> Task:
    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 2)).double()

    return Task(seeded(layers), SPEC)


def found_share(finding_inputs: Tensor, secret: Examples) -> float:
    """With labels that tell all rows apart, rows come back in the order of their labels."""
    return float(cells_found(finding_inputs, secret.x, SPEC).double().mean())


def test_relaxed_rows_are_probabilities_and_numbers_within_their_range() -> None:
    rows = SPEC.pixels(relaxed(50 * torch.randn(30, 10, generator=torch.Generator().manual_seed(0)).double(), SPEC))
    for start, stop in ((2, 6), (7, 10)):
        torch.testing.assert_close(rows[:, start:stop].sum(1), torch.ones(30).double())
    assert float(rows.min()) >= -1e-12
    assert float(rows.max()) <= 1 + 1e-12


def test_relaxing_loses_nothing_that_was_decided() -> None:
    secret = table(20, 0)
    raw = SPEC.pixels(secret.x).clamp(1e-6, 1 - 1e-6)
    back = relaxed(torch.logit(raw), SPEC)
    torch.testing.assert_close(decided(back, SPEC), secret.x, rtol=1e-4, atol=1e-4)
    assert decided(decided(back, SPEC), SPEC).equal(decided(back, SPEC))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.sends)
def test_whole_rows_come_back(recipe: Recipe) -> None:
    rows = table(2, 1)
    secret = Examples(rows.x, torch.tensor([0, 1]))  # one of each label, so that they are told apart
    view = view_of(network(), {"ada": secret}, recipe, threat=THREATS["batch-aware-server"])
    finding = TabLeak(steps=250, starts=3)(view, Stream.from_seed(0))
    assert finding.inputs is not None
    assert finding.labels is not None
    order = finding.labels[0].argsort()
    assert found_share(finding.inputs[0][order], secret) == 1.0
    assert decided(finding.inputs, SPEC).equal(finding.inputs)


def test_it_is_surer_of_what_restarts_agree_about() -> None:
    secret = {"ada": table(6, 2)}
    view = view_of(network(), secret, RECIPES[0], threat=THREATS["batch-aware-server"])
    certainty = {}
    for steps in (2, 120):
        told = TabLeak(steps=steps, starts=4)(view, Stream.from_seed(0)).certainty
        assert told is not None
        assert told.shape == (1, 6, len(SPEC.columns))
        assert float(told.min()) >= 0
        assert float(told.max()) <= 1 + 1e-12
        certainty[steps] = float(told.mean())
    assert certainty[120] > certainty[2] + 0.2


def test_restarts_that_agree_are_certain_and_an_even_split_is_not() -> None:
    one, other = SPEC.normalise(
        torch.tensor([[[0.5, 0.2, 1, 0, 0, 0, 1, 1, 0, 0]], [[0.5, 0.4, 0, 1, 0, 0, 0, 1, 0, 0]]])
    )
    told = _certainty(torch.stack([one, other]).double(), SPEC)[0]
    # The deviation of the second number is 0.1, which is one of its own; two of four categories share the votes.
    expected = [1.0, math.exp(-1.0), 1 - math.log(2) / math.log(4), 0.0, 1.0]
    assert told.tolist() == pytest.approx(expected, abs=1e-6)


def test_one_start_says_nothing_about_certainty() -> None:
    view = view_of(network(), {"ada": table(2, 3)}, RECIPES[0])
    assert TabLeak(steps=2, starts=3, pooled=False)(view, Stream.from_seed(0)).certainty is None
    assert TabLeak(steps=2, starts=1)(view, Stream.from_seed(0)).certainty is None
