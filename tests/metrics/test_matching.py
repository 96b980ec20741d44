from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage.metrics.matching import match, taken
from seepage.metrics.pixels import psnr


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def total(guess: Tensor, truth: Tensor, order: list[int]) -> float:
    pairs = [(g, t) for t, g in enumerate(order) if g >= 0]
    return sum(psnr(guess[g][None], truth[t][None], 0.0, 1.0).item() for g, t in pairs)


def brute(guess: Tensor, truth: Tensor) -> float:
    """The best total PSNR over every way to pair as many as can be paired."""
    m, n = len(guess), len(truth)
    table = [[psnr(guess[g][None], truth[t][None], 0.0, 1.0).item() for g in range(m)] for t in range(n)]
    if m >= n:
        return max(sum(table[t][g] for t, g in enumerate(choice)) for choice in itertools.permutations(range(m), n))
    return max(sum(table[t][g] for g, t in enumerate(choice)) for choice in itertools.permutations(range(n), m))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), m=st.integers(1, 6), n=st.integers(1, 6), near=st.booleans())
def test_no_permutation_is_better(seed: int, m: int, n: int, near: bool) -> None:
    truth, guess = drawn(seed, n, 1, 3, 3), drawn(seed + 1, m, 1, 3, 3)
    if near:
        k = min(m, n)
        guess[:k] = 0.9 * truth.flip(0)[:k] + 0.1 * guess[:k]
    order = match(guess, truth, 0.0, 1.0).tolist()
    used = [g for g in order if g >= 0]
    assert len(used) == len(set(used)) == min(m, n)
    assert total(guess, truth, order) == pytest.approx(brute(guess, truth))


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(list(range(8))), noise=st.floats(0, 0.05), tabular=st.booleans())
def test_undoes_a_shuffle(order: list[int], noise: float, tabular: bool) -> None:
    truth = drawn(3, 8, 20) if tabular else drawn(3, 8, 1, 4, 5)
    guess = truth[torch.tensor(order)] + noise * drawn(4, *truth.shape)
    found = match(guess, truth, 0.0, 1.0)
    assert torch.tensor(order)[found].tolist() == list(range(8))


def test_a_perfect_guess_is_not_given_away_to_spare_a_bad_one() -> None:
    truth = torch.tensor([[0.5], [0.0]])
    guess = torch.tensor([[0.5], [1.0]])  # the first is perfect; total MSE prefers the swap: 0.25 + 0.25 < 0 + 1
    assert match(guess, truth, 0.0, 1.0).tolist() == [0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200])
def test_what_is_not_finite_is_used_last(value: float) -> None:
    truth = drawn(5, 3, 4)
    broken = truth[0].clone()
    broken[0] = value
    guess = torch.stack([broken, drawn(6, 4), truth[2], truth[1]])
    assert match(guess, truth, 0.0, 1.0).tolist() == [1, 3, 2]
    # With too few left it is paired with the example that no other guess is for.
    assert match(guess[[0, 2, 3]], truth, 0.0, 1.0).tolist() == [0, 2, 1]


def test_nothing_finite_still_gives_an_assignment() -> None:
    order = match(torch.full((2, 3), math.nan), torch.zeros(2, 3), 0.0, 1.0)
    assert sorted(order.tolist()) == [0, 1]


def test_a_finite_guess_wins_however_bad_it_is() -> None:
    truth = torch.zeros(2, 3)
    guess = torch.stack([torch.full((3,), math.nan), torch.full((3,), 1e30), torch.zeros(3)])
    assert sorted(match(guess, truth, 0.0, 1.0).tolist()) == [1, 2]


def test_sizes_may_differ() -> None:
    truth = torch.tensor([[0.0], [0.5], [1.0]])
    assert match(truth[1:2], truth, 0.0, 1.0).tolist() == [-1, 0, -1]
    assert match(truth, truth[1:2], 0.0, 1.0).tolist() == [1]
    assert match(truth[:0], truth, 0.0, 1.0).tolist() == [-1, -1, -1]
    assert match(truth, truth[:0], 0.0, 1.0).tolist() == []


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"shape \(m, 1, 8, 8\) .*got \(2, 3, 8, 8\) for truth \(2, 1, 8, 8\)"):
        match(torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8), 0.0, 1.0)


def test_taken_puts_the_missing_value_where_the_order_says_so() -> None:
    values = torch.arange(4.0).reshape(2, 2)
    found = taken(values, torch.tensor([1, -1]), math.nan)
    assert found[0].tolist() == [2.0, 3.0]
    assert found[1].isnan().all()
    assert taken(values[:0], torch.tensor([-1, -1]), 7.0).tolist() == [[7.0, 7.0], [7.0, 7.0]]
