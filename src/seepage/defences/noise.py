"""Gaussian noise on what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from seepage.defences.base import Defence, NoDefence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["GaussianNoise"]


@dataclass(frozen=True)
class GaussianNoise(Defence):
    """Add independent N(0, σ²) to every entry of the update.

    Args:
        std: σ, in units of the update's entries.
    """

    name: ClassVar[str] = "gaussian-noise"
    std: float = 0.01

    def __post_init__(self) -> None:
        if self.std < 0:
            raise ValueError(f"expected `std` of at least 0, got {self.std}")

    @property
    def expected(self) -> Defence:
        """The noise has mean zero: nothing is left."""
        return NoDefence()

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Each entry plus its noise."""
        if rng is None:
            return update
        return {
            name: u + self.std * (rng / name).normal(*u.shape, dtype=u.dtype, device=u.device)
            for name, u in update.items()
        }

    def wire(self, before: Wire) -> Wire:
        """Floats: nothing is zero or on a level any more."""
        return Wire()
