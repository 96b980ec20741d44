"""What a generator is."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Generator"]


class Generator(Protocol):
    """Images of given classes from standard normal numbers, differentiable, one by one.

    Attributes:
        latent: how many numbers an image is made of.
        classes: how many classes it knows.
        side: height and width of its images, which have three channels.
    """

    @property
    def latent(self) -> int: ...  # noqa: D102
    @property
    def classes(self) -> int: ...  # noqa: D102
    @property
    def side(self) -> int: ...  # noqa: D102

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        """Images (n, 3, side, side) in [0, 1] from (n, latent) and class numbers (n,)."""
        ...
