from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage.metrics.recovered import recovered


def test_strictly_above_and_never_nan() -> None:
    assert recovered(torch.tensor([20.0, math.nan, 20.001, 5.0], dtype=torch.float64)) == 0.25
    assert recovered(torch.full((3,), math.nan)) == 0.0


@given(values=st.lists(st.floats(0, 100), min_size=1, max_size=9), low=st.floats(0, 50), more=st.floats(0, 50))
def test_a_higher_threshold_recovers_no_more(values: list[float], low: float, more: float) -> None:
    drawn = torch.tensor(values, dtype=torch.float64)
    assert recovered(drawn, low + more) <= recovered(drawn, low)


@pytest.mark.parametrize("shape", [(0,), (2, 2)])
def test_wrong_shapes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one PSNR per image"):
        recovered(torch.zeros(shape))
