"""Operations written for a compiler against torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from common.nets import numbers
from seepage.engine.fused import SHORT, as_sum, gathered, is_short, kept, windows

Pair = tuple[int, int]


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"),
    [*itertools.product([(3, 3), (2, 1), (1, 1)], [(1, 1), (2, 1)], [(0, 0), (1, 2)], [(1, 1), (2, 1), (3, 2)])],
)
def test_patches_are_gathered_as_they_are_folded(kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> None:
    image = (9, 8)
    x = numbers(2, 3, *image, seed=0)
    patches = functional.unfold(x, kernel, dilation, padding, stride).square()
    plain = functional.fold(patches, image, kernel, dilation, padding, stride)
    torch.testing.assert_close(gathered(patches, image, kernel, dilation, padding, stride), plain)
    torch.testing.assert_close(gathered(patches[0], image, kernel, dilation, padding, stride), plain[0])


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("step", [1, 2])
def test_windows_are_those_of_unfold(axis: int, step: int) -> None:
    x = numbers(2, 7, 6, seed=0)[:, 1:]  # with an offset
    assert windows(x, axis, 3, step).equal(x.unfold(axis, 3, step))
    assert windows(windows(x, 1, 3, step), 2, 2, 1).equal(x.unfold(1, 3, step).unfold(2, 2, 1))


@pytest.mark.parametrize(("rows", "between", "columns"), [(40, 3, 50), (32, 9, 784), (1000, SHORT, 100)])
def test_short_products_are_sums(rows: int, between: int, columns: int) -> None:
    a, b = numbers(2, between, rows, seed=0).mT, numbers(2, between, columns, seed=1)
    torch.testing.assert_close(as_sum(a, b), a @ b)


@pytest.mark.parametrize(("rows", "between", "columns"), [(1000, SHORT + 1, 1000), (5, 3, 5)])
def test_other_products_stay(rows: int, between: int, columns: int) -> None:
    assert not is_short(rows, between, columns)
    assert as_sum(torch.ones(1, rows, between), torch.ones(1, between, columns)) is NotImplemented


def test_what_is_kept_does_not_depend_on_where_it_lay() -> None:
    x = numbers(4, 5, 6, seed=0)
    for view in (x[1:, ::2], x.mT, x[:1].expand(3, 5, 6)):
        assert kept(view).equal(view)
