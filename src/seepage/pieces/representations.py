"""Fewer unknowns than pixels: images decoded from something smaller (yue2023, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from seepage.pieces.autoencoder import CODES, Autoencoder, load_autoencoder

__all__ = ["Bicubic", "Learnt", "Representation", "decoded", "upsampling"]

Decoder = Callable[[Tensor], Tensor]


class Representation(Protocol):
    """Numbers around those from 0 to 1 that stand for inputs in the range from 0 to 1."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the representation of an input of `shape`; what is no image represents itself."""
        ...

    def decoder(self, shape: tuple[int, ...], like: Tensor) -> Decoder:
        """From representations (…, n, *shape of one) to inputs (…, n, *shape).

        All that it needs is made beforehand, as an objective that is captured in a CUDA graph needs it.

        Args:
            shape: of an input.
            like: a tensor of the type and device of the representations.
        """
        ...


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

    def decoder(self, shape: tuple[int, ...], like: Tensor) -> Decoder:
        """The enlargement, with its matrices made beforehand."""
        matrices = self.matrices(shape[1:], like) if len(shape) == 3 else None
        return lambda z: decoded(z, matrices)

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


@dataclass(frozen=True)
class Learnt:
    """Codes of a trained autoencoder.

    Sides that its factor does not divide are filled up, and cut after decoding; grey images are decoded in colour and
    averaged.

    Args:
        net: the network.
    """

    net: Autoencoder

    @classmethod
    def named(cls, name: str, like: Tensor) -> Learnt:
        """That of a name, or from a file, as `load_autoencoder` has it."""
        return cls(load_autoencoder(name, like))

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the codes of an image of `shape`; what is no image represents itself."""
        if len(shape) != 3:
            return shape
        if shape[0] not in (1, 3):
            raise ValueError(
                f'expected images with 1 or 3 channels, got {shape[0]}; use `factor` with `autoencoder = "none"`'
            )
        return (CODES, *(-(-side // self.net.factor) for side in shape[1:]))

    def decoder(self, shape: tuple[int, ...], like: Tensor) -> Decoder:
        """The second half of the network."""
        if len(shape) != 3:
            return lambda z: z
        channels, height, width = shape

        def decode(z: Tensor) -> Tensor:
            images = self.net.decode(z.flatten(0, -4))[..., :height, :width]
            images = images.mean(1, keepdim=True) if channels == 1 else images
            return images.reshape(*z.shape[:-3], *images.shape[1:])

        return decode

    def encode(self, images: Tensor) -> Tensor:
        """Codes of images (n, channels, height, width) in [0, 1]."""
        height, width = images.shape[-2:]
        missing = (0, -width % self.net.factor, 0, -height % self.net.factor)
        whole = functional.pad(images.expand(-1, 3, -1, -1), missing, mode="replicate")
        return self.net.encode(whole)
