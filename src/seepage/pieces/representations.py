"""Fewer unknowns than pixels: images decoded from something smaller (yue2023, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Bicubic", "decoded", "upsampling"]


def upsampling(size: int, factor: int, like: Tensor) -> Tensor:
    """Bicubic enlargement along one axis as a matrix, (size, ⌈size / factor⌉).

    Args:
        size: pixels along the axis.
        factor: how many of them there are for one unknown; 1 is the identity.
        like: a tensor of the type and device of the matrix.

    Example:
        >>> upsampling(4, 2, torch.zeros(())).sum(1)
        tensor([1., 1., 1., 1.])
    """
    fewer = -(-size // factor)
    unit = torch.eye(fewer, dtype=like.dtype, device=like.device)
    if fewer == size:
        return unit
    return functional.interpolate(unit[None, None], (size, fewer), mode="bicubic", align_corners=False)[0, 0]


@dataclass(frozen=True)
class Bicubic:
    """Small images, enlarged by bicubic interpolation.

    Enlarging is linear, and the same along rows and columns: decode(z) = U·z·Vᵀ. As two products of matrices it batches
    and has every derivative, and its inverse in the sense of least squares is U⁺·x·(V⁺)ᵀ.

    Args:
        factor: height and width of an image over those of its representation; 1 is the identity.

    Example:
        >>> small = Bicubic(4).encode(torch.rand(2, 3, 32, 32))
        >>> small.shape, Bicubic(4).decode(small, (32, 32)).shape
        (torch.Size([2, 3, 8, 8]), torch.Size([2, 3, 32, 32]))
    """

    factor: int = 4

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"expected `factor` of at least 1, got {self.factor}")

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the representation of inputs of `shape`; what is no image represents itself.

        Example:
            >>> Bicubic(4).shape((3, 128, 128)), Bicubic(4).shape((14,))
            ((3, 32, 32), (14,))
        """
        if len(shape) != 3:
            return shape
        return (shape[0], *(-(-side // self.factor) for side in shape[1:]))

    def matrices(self, sides: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor] | None:
        """U and V for images of these sides; `None` where a representation is the input itself."""
        if len(sides) != 2 or self.factor == 1:
            return None
        return upsampling(sides[0], self.factor, like), upsampling(sides[1], self.factor, like)

    def decode(self, z: Tensor, sides: tuple[int, ...]) -> Tensor:
        """Images of the given height and width, (…, channels, height, width)."""
        return decoded(z, self.matrices(sides, z))

    def encode(self, x: Tensor) -> Tensor:
        """The representation whose image is nearest to `x` in the sense of least squares."""
        if self.factor == 1:
            return x
        rows, columns = (_inverse(side, self.factor).to(x) for side in x.shape[-2:])
        return rows @ x @ columns.mT


@lru_cache(maxsize=8)
def _inverse(size: int, factor: int) -> Tensor:
    inverse: Tensor = torch.linalg.pinv(upsampling(size, factor, torch.zeros((), dtype=torch.float64)))
    return inverse


def decoded(z: Tensor, matrices: tuple[Tensor, Tensor] | None) -> Tensor:
    """U·z·Vᵀ with matrices made beforehand, as an objective that is captured in a CUDA graph needs them."""
    return z if matrices is None else matrices[0] @ z @ matrices[1].mT
