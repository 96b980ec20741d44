"""The representation as matrices against torch's own interpolation."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from seepage.pieces.representations import Bicubic, upsampling


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("factor", "sides"), [(4, (16, 24)), (2, (10, 6)), (4, (10, 7))])
def test_decoding_is_bicubic_interpolation(factor: int, sides: tuple[int, int]) -> None:
    z = images(2, *Bicubic(factor).shape((3, *sides)))
    expected = functional.interpolate(z, sides, mode="bicubic", align_corners=False)
    torch.testing.assert_close(Bicubic(factor).decode(z, sides), expected)


def test_encoding_is_the_least_squares_inverse() -> None:
    x, small = images(2, 3, 16, 16), Bicubic(4)
    z = small.encode(x)
    torch.testing.assert_close(small.encode(small.decode(z, (16, 16))), z)  # a projection
    error = (small.decode(z, (16, 16)) - x).square().sum()
    for seed in range(5):
        near = z + 1e-3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype)
        assert (small.decode(near, (16, 16)) - x).square().sum() > error


def test_factor_one_is_the_identity_and_a_row_of_a_table_represents_itself() -> None:
    x = images(2, 3, 5, 5)
    assert Bicubic(1).encode(x) is x
    assert Bicubic(1).decode(x, (5, 5)) is x
    assert Bicubic(4).shape((7,)) == (7,)
    assert Bicubic(4).matrices((), x) is None


def test_a_constant_stays_constant() -> None:
    torch.testing.assert_close(upsampling(9, 4, images(1)).sum(1), torch.ones(9, dtype=torch.float64))


def test_factors_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="`factor` of at least 1, got 0"):
        Bicubic(0)
