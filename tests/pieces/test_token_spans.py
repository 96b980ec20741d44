from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.pieces.token_spans import Span, rounding, span_of

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
        assert (span.excess(z) <= 1).all()
        assert span.excess(other) > 1
        assert (span.excess(1e3 * z) <= 1).all()  # lengths do not matter


def test_gradients_that_share_their_rows_complete_each_other() -> None:
    z = torch.eye(6, dtype=torch.float64)[:2]
    one, other = (torch.ones(5, 1, dtype=torch.float64) @ z[i : i + 1] for i in (0, 1))
    span = span_of([one, 1e-9 * other], [EPS, EPS])
    assert span.rank == 2
    assert (span.excess(z) <= 1).all()


def test_an_empty_gradient_spans_nothing() -> None:
    span = span_of([torch.zeros(3, 4)], [1e-7])
    assert span.rank == 0
    assert span.distances(torch.ones(4)) == pytest.approx(1.0)


def test_a_difference_of_weights_is_rounded_as_these_are() -> None:
    gradient, weight = torch.full((4, 4), 1e-3), torch.ones(4, 4)
    assert rounding(gradient) == torch.finfo(torch.float32).eps
    assert rounding(gradient, weight) == pytest.approx(torch.finfo(torch.float32).eps * 1001, rel=1e-5)
    assert rounding(gradient, 0 * weight) == rounding(gradient)


def test_a_row_along_a_weak_direction_may_lie_farther_outside() -> None:
    """A direction of the size s is known to the noise over s."""
    span = Span(torch.eye(4, dtype=torch.float64)[:2], torch.tensor([1.0, 1e-3], dtype=torch.float64), 1e-6, 4)
    strong, weak = (torch.tensor([[a, b, 1e-3, 0.0]], dtype=torch.float64) for a, b in ((1.0, 0.0), (0.0, 1.0)))
    torch.testing.assert_close(span.distances(strong), span.distances(weak))
    assert float(span.excess(strong)) == pytest.approx(100, rel=1e-4)  # 1e-3 over ten times 1e-6
    assert float(span.excess(weak)) == pytest.approx(0.1, rel=1e-4)


def test_probes_lie_outside_and_measure_distances() -> None:
    g = torch.Generator().manual_seed(0)
    span = span_of([torch.randn(5, 400, generator=g, dtype=torch.float64)], [EPS])
    probes = span.probes(200, g)
    assert (span.basis @ probes).abs().max() < 1e-12
    row = torch.randn(400, generator=g, dtype=torch.float64)
    assert float((row @ probes).norm() / row.norm()) == pytest.approx(float(span.distances(row)), rel=0.1)
    assert span.probes(9999, g).shape == (400, 395)
