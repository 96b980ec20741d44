from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage.metrics.labels import label_accuracy, label_count_error

some_labels = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(guess=some_labels, truth=some_labels)
def test_equals_the_overlap_of_counters(guess: list[int], truth: list[int]) -> None:
    left, right = Counter(guess), Counter(truth)
    found = label_accuracy(torch.tensor(guess), torch.tensor(truth))
    assert found == pytest.approx((left & right).total() / len(truth))
    wrong = label_count_error(torch.tensor(guess), torch.tensor(truth))
    assert wrong == pytest.approx(((left - right).total() + (right - left).total()) / 2)


@given(truth=some_labels, data=st.data())
def test_order_does_not_matter(truth: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(truth))
    assert label_accuracy(torch.tensor(shuffled), torch.tensor(truth)) == 1.0
    assert label_count_error(torch.tensor(shuffled), torch.tensor(truth)) == 0.0


@given(guess=some_labels, truth=some_labels)
def test_what_fills_an_answer_up_is_no_label(guess: list[int], truth: list[int]) -> None:
    real, filled = torch.tensor(truth), torch.tensor([*guess, -1, -1, -1])
    assert label_accuracy(filled, real) == label_accuracy(torch.tensor(guess), real)
    assert label_count_error(filled, real) == label_count_error(torch.tensor(guess), real)


@given(
    guess=st.lists(st.integers(0, 5), min_size=8, max_size=8), truth=st.lists(st.integers(0, 5), min_size=8, max_size=8)
)
def test_with_equal_lengths_the_two_say_the_same(guess: list[int], truth: list[int]) -> None:
    found, real = torch.tensor(guess), torch.tensor(truth)
    assert 8 * (1 - label_accuracy(found, real)) == pytest.approx(label_count_error(found, real))


def test_no_guess_finds_nothing_and_unknown_matches_nothing() -> None:
    truth = torch.tensor([1, 2])
    assert label_accuracy(torch.zeros(0, dtype=torch.long), truth) == 0.0
    assert label_accuracy(torch.tensor([-1, 2]), truth) == 0.5


def test_errors_say_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"`guess` of shape \(n,\), got torch.float32 of shape \(2, 10\); take the argmax"
    ):
        label_accuracy(torch.zeros(2, 10), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="at least one true label, got none"):
        label_accuracy(torch.tensor([1]), torch.zeros(0, dtype=torch.long))
