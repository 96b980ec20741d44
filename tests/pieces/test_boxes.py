"""Projection to the range of the data."""

from __future__ import annotations

import pytest
import torch

from common.nets import numbers
from seepage.pieces.boxes import boxed
from seepage.spec import DataSpec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_what_lies_outside_the_range_is_moved(dtype: torch.dtype) -> None:
    spec = DataSpec((3, 2, 2), low=-1.0, high=2.0, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    x = 5 * numbers(2, 4, 3, 2, 2, dtype=dtype)
    inside = boxed(spec, x)(x)
    assert inside.dtype == dtype
    torch.testing.assert_close(spec.pixels(inside), spec.pixels(x).clamp(-1, 2))
    unmoved = (spec.pixels(x) > -1) & (spec.pixels(x) < 2)
    assert inside[unmoved].equal(x[unmoved])
    assert 0 < int(unmoved.sum()) < x.numel()


def test_projecting_twice_is_projecting_once() -> None:
    spec = DataSpec((2,), mean=(0.5,), std=(0.1,))
    project = boxed(spec, numbers(1))
    once = project(10 * numbers(5, 2))
    assert project(once).equal(once)
