"""Whole numbers from estimates."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage.pieces.labels import round_as_code, round_counts

RULES = pytest.mark.parametrize("rule", [round_counts, round_as_code], ids=lambda rule: rule.__name__)
estimates = st.lists(st.floats(-5, 20, allow_nan=False), min_size=1, max_size=12)


@RULES
@settings(max_examples=200, deadline=None)
@given(counts=estimates, n=st.integers(0, 30))
def test_rounded_counts_are_whole_not_negative_and_sum_to_n(
    rule: Callable[[Tensor, int], Tensor], counts: list[float], n: int
) -> None:
    rounded = rule(torch.tensor(counts, dtype=torch.float64), n)
    assert rounded.dtype == torch.long
    assert rounded.shape == (len(counts),)
    assert int(rounded.sum()) == n
    assert int(rounded.min()) >= 0


@RULES
@settings(max_examples=50, deadline=None)
@given(truth=st.lists(st.integers(0, 6), min_size=1, max_size=8), noise=st.randoms(use_true_random=False))
def test_counts_off_by_less_than_a_half_are_rounded_to_the_truth(
    rule: Callable[[Tensor, int], Tensor], truth: list[int], noise: Random
) -> None:
    room = 0.49 / len(truth)
    estimate = torch.tensor([count + noise.uniform(-room, room) for count in truth], dtype=torch.float64)
    assert rule(estimate, sum(truth)).tolist() == truth


def distance(candidate: Tensor, estimate: Tensor) -> float:
    return float(((candidate - estimate) ** 2).sum())


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.floats(-3, 6, allow_nan=False), min_size=1, max_size=3), n=st.integers(0, 5))
def test_no_other_whole_numbers_are_nearer(counts: list[float], n: int) -> None:
    estimate = torch.tensor(counts, dtype=torch.float64)
    choices = [c for c in itertools.product(range(n + 1), repeat=len(counts)) if sum(c) == n]
    best = min(distance(torch.tensor(c), estimate) for c in choices)
    assert distance(round_counts(estimate, n), estimate) == pytest.approx(best)


def as_code_by_hand(counts: list[float], n: int) -> list[int]:
    """The released code's rule, class by class."""
    floors = [max(int(c // 1), 0) for c in counts]
    first = list(floors)
    left = [c - f for c, f in zip(counts, floors, strict=True)]
    missing = n - sum(floors)
    if missing >= 0:
        for i in sorted(range(len(counts)), key=lambda i: -left[i])[:missing]:
            floors[i] += 1
        return floors
    for i in sorted((i for i in range(len(counts)) if floors[i] > 0), key=lambda i: left[i])[:-missing]:
        floors[i] -= 1
    while sum(floors) > n:
        some = sorted((i for i in range(len(counts)) if floors[i] > 0), key=lambda i: -first[i])
        for i in some[: sum(floors) - n]:
            floors[i] -= 1
    return floors


@settings(max_examples=200, deadline=None)
@given(counts=st.lists(st.floats(-5, 9, allow_nan=False), min_size=1, max_size=8, unique=True), n=st.integers(0, 30))
def test_the_rule_of_the_code_is_the_one_by_hand(counts: list[float], n: int) -> None:
    exact = torch.tensor(counts, dtype=torch.float64)
    floors = exact.floor().clamp(min=0)
    if (
        len({*(exact - floors).tolist()}) < len(counts)
        or len({*floors.tolist()}) < len(counts)
        or n - int(floors.sum()) > len(counts)
    ):
        return  # ties may go either way, and the code stops with an error where more are missing than there are classes
    assert round_as_code(exact, n).tolist() == as_code_by_hand(counts, n)


@settings(max_examples=200, deadline=None)
@given(counts=estimates, n=st.integers(0, 30))
def test_the_rule_of_the_code_is_never_nearer(counts: list[float], n: int) -> None:
    estimate = torch.tensor(counts, dtype=torch.float64)
    assert distance(round_counts(estimate, n), estimate) <= distance(round_as_code(estimate, n), estimate) + 1e-9


@RULES
def test_rounding_leaves_its_input_alone(rule: Callable[[Tensor, int], Tensor]) -> None:
    counts = torch.tensor([1.6, -0.2, 1.3])
    rule(counts, 3)
    assert counts.equal(torch.tensor([1.6, -0.2, 1.3]))
