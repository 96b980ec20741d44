"""The largest entries, of the whole update or of each tensor."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.defence_suite import an_update
from common.nets import numbers
from seepage.defences import TopK


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=60)
def test_the_share_of_each_tensor_is_kept_the_largest_of_it(sizes: list[int], share: float) -> None:
    update = {str(i): numbers(n, seed=i) for i, n in enumerate(sizes)}
    sent = TopK(share, per_tensor=True).on_update(update, None)
    for name, u in update.items():
        keep = max(1, round(share * len(u)))
        expected = torch.zeros_like(u)
        largest = u.abs().topk(keep).indices
        expected[largest] = u[largest]
        torch.testing.assert_close(sent[name], expected)


@pytest.mark.parametrize("n", [1, 10, 20, 33, 1000, 4096])
def test_as_code_keeps_what_the_released_code_keeps(n: int) -> None:
    u = numbers(n)
    k = ceil(n * (1 - 0.95))  # compressor.py, Topk
    expected = (u.abs() > -torch.kthvalue(-u.abs(), k).values) * u
    sent = TopK(**TopK.presets["as_code"]).on_update({"u": u}, None)["u"]
    assert sent.equal(expected)
    assert int((sent != 0).sum()) == k - 1


@pytest.mark.parametrize("per_tensor", [False, True])
def test_what_is_kept_is_kept_again(per_tensor: bool) -> None:
    once = TopK(0.4, per_tensor).on_update(an_update(), None)
    torch.testing.assert_close(TopK(0.4, per_tensor).on_update(once, None), once)


@pytest.mark.parametrize("defence", [TopK(0.3), TopK(0.3, per_tensor=True), TopK(0.3, per_tensor=True, strict=True)])
def test_an_attacker_who_simulates_it_at_the_truth_ends_at_the_message(defence: TopK) -> None:
    sent = defence.on_update(an_update(), None)
    again = defence.given(sent).on_update(an_update(), None)
    assert all(again[name].equal(s) for name, s in sent.items())


def test_a_guess_is_held_to_entries_that_would_have_been_sent() -> None:
    sent = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([0.0, 1.0])}
    guess = {"a": torch.tensor([2.0, 3.0]), "b": torch.tensor([0.5, 9.0])}
    whole, each = (TopK(0.5, per_tensor).given(sent).on_update(guess, None) for per_tensor in (False, True))
    assert whole["a"].tolist() == [2, 3]  # anything above 1 is sent
    assert each["a"].tolist() == [0, 3]  # of the first tensor anything above 4
    assert whole["b"].tolist() == each["b"].tolist() == [0, 9]
