"""Laplacian noise on what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from seepage.defences.base import Defence, NoDefence
from seepage.defences.gradient_noise import GradientNoise
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["LaplacianNoise"]


@dataclass(frozen=True)
class LaplacianNoise(Defence):
    """Add independent Laplacian noise to every entry of the update.

    Args:
        scale: b, in units of the update's entries; the deviation is √2·b.

    Example:
        >>> LaplacianNoise(0.1).expected
        NoDefence()
    """

    name: ClassVar[str] = "laplacian-noise"
    scale: float = 0.01

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise ValueError(f"expected `scale` of at least 0, got {self.scale}; 0 adds nothing")

    @property
    def expected(self) -> Defence:
        """The noise has mean zero: nothing is left."""
        return NoDefence()

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Each entry plus its noise."""
        return GradientNoise(self.scale, "laplacian", "update").on_update(update, rng)

    def wire(self, before: Wire) -> Wire:
        """Floats: nothing is zero or on a level any more."""
        return Wire()
