from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.pieces.token_spans import rounding, span_of

EPS = torch.finfo(torch.float64).eps


@given(width=st.integers(4, 20), rows=st.integers(1, 18), units=st.integers(4, 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_rows_lie_in_the_span_while_they_are_fewer_than_the_layer_is_large(
    width: int, rows: int, units: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    z, delta = (torch.randn(rows, k, generator=g, dtype=torch.float64) for k in (width, units))
    span = span_of([delta.T @ z], [EPS])
    assert span.rank == min(rows, width, units)
    assert span.full == (rows >= min(width, units) - 1)
    if not span.full:
        other = torch.randn(width, generator=g, dtype=torch.float64)
        assert (span.distances(z) <= span.tolerance).all()
        assert span.distances(other) > span.tolerance
        assert (span.distances(1e3 * z) <= span.tolerance).all()  # lengths do not matter


def test_gradients_that_share_their_rows_complete_each_other() -> None:
    z = torch.eye(6, dtype=torch.float64)[:2]
    one, other = (torch.ones(5, 1, dtype=torch.float64) @ z[i : i + 1] for i in (0, 1))
    span = span_of([one, 1e-9 * other], [EPS, EPS])
    assert span.rank == 2
    assert (span.distances(z) <= span.tolerance).all()


def test_an_empty_gradient_spans_nothing() -> None:
    span = span_of([torch.zeros(3, 4)], [1e-7])
    assert span.rank == 0
    assert span.distances(torch.ones(4)) == pytest.approx(1.0)


def test_a_difference_of_weights_is_rounded_as_these_are() -> None:
    gradient, weight = torch.full((4, 4), 1e-3), torch.ones(4, 4)
    assert rounding(gradient) == torch.finfo(torch.float32).eps
    assert rounding(gradient, weight) == pytest.approx(torch.finfo(torch.float32).eps * 1001, rel=1e-5)
    assert rounding(gradient, 0 * weight) == rounding(gradient)
