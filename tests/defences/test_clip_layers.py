"""Clipping tensor by tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.defence_suite import an_update
from common.nets import flat, numbers
from seepage.defences import Clip, ClipLayers


@given(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4), st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=40)
def test_no_tensor_is_longer_than_the_norm_and_each_keeps_its_direction(shapes: list[list[int]], norm: float) -> None:
    update = {str(i): numbers(*shape, seed=i) for i, shape in enumerate(shapes)}
    sent = ClipLayers(norm).on_update(update, None)
    for name, u in update.items():
        torch.testing.assert_close(sent[name], u * min(1, norm / float(u.norm())))
    torch.testing.assert_close(ClipLayers(norm).on_update(sent, None), sent)  # clipped once and for all


def test_of_one_tensor_it_is_clipping() -> None:
    update = {"w": numbers(5, 6)}
    torch.testing.assert_close(ClipLayers(0.3).on_update(update, None), Clip(0.3).on_update(update, None))


@pytest.mark.parametrize("norm", [0.01, 0.5])
def test_the_whole_is_bounded_by_the_number_of_tensors(norm: float) -> None:
    assert float(flat(ClipLayers(norm).on_update(an_update(), None)).norm()) <= norm * 3**0.5 + 1e-9
