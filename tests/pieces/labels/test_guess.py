"""What a guess says about itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.label_clients import RNG, one_client, task_of, wrong
from seepage.pieces.labels import METHODS, guess_from
from seepage.recipe import SGD, Recipe
from seepage.streams import Stream


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.floats(-5, 20, allow_nan=False), min_size=1, max_size=12), n=st.integers(0, 30))
def test_a_guess_is_sorted_complete_and_sure_between_0_and_1(counts: list[float], n: int) -> None:
    guess = guess_from(torch.tensor(counts), n)
    assert guess.labels.shape == (n,)
    assert guess.labels.equal(guess.labels.sort().values)
    assert 0 <= guess.confidence <= 1


def test_whole_counts_are_certain_and_halves_are_not() -> None:
    assert guess_from(torch.tensor([2.0, 0.0, 1.0]), 3).confidence == pytest.approx(1)
    assert guess_from(torch.tensor([1.5, 0.5, 1.0]), 3).confidence < 0.4


def test_draws_that_disagree_take_confidence_away() -> None:
    counts = torch.tensor([2.0, 0.1, 0.9])
    spreads = [None, torch.full((3,), 0.05), torch.full((3,), 0.2), torch.full((3,), 1.0)]
    sure = [guess_from(counts, 3, spread).confidence for spread in spreads]
    assert sure == sorted(sure, reverse=True)
    assert sure[-1] < 0.1


def test_estimates_that_are_no_numbers_are_survived_without_confidence() -> None:
    guess = guess_from(torch.tensor([torch.nan, 1.0, torch.inf]), 2)
    assert len(guess.labels) == 2
    assert guess.confidence == 0


@pytest.mark.parametrize("name", ["geng-interpolated", "ilrg", "rlu"])
def test_over_many_federations_right_guesses_are_surer_than_wrong_ones(name: str) -> None:
    right, mistaken = [], []
    for seed in range(24):
        # From a small step, after which labels are easy to count, to one that moves the model far.
        recipe = Recipe(SGD((0.01, 0.05, 0.1, 0.2)[seed % 4]), epochs=3, batch_size=5)
        view, truth = one_client(task_of(seed), recipe, 20, seed)
        guess = METHODS[name](view, 0, RNG / seed)
        (mistaken if wrong(guess, truth) else right).append(guess.confidence)
    assert min(len(right), len(mistaken)) >= 3
    assert sum(right) / len(right) > sum(mistaken) / len(mistaken) + 0.1


def test_remainders_that_could_be_anything_are_worth_a_half() -> None:
    anything = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) - 0.5
    assert guess_from(anything - anything.mean(), 0).confidence == pytest.approx(0.5, abs=0.01)


def test_noise_is_taken_for_noise() -> None:
    sure = [guess_from(Stream.from_seed(seed).normal(100) * 3, 50).confidence for seed in range(20)]
    assert max(sure) < 0.1
