"""Local differential privacy as Flower's `LocalDpMod` has it: the update is clipped, then noised.

Flower (https://flower.ai), `flwr.clientapp.mod.LocalDpMod`; the Gaussian mechanism of Dwork and Roth, 2014, "The
algorithmic foundations of differential privacy", theorem A.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import ClassVar

from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.clip import Clip
from seepage.defences.mechanism import Mechanism
from seepage.defences.noise import GaussianNoise
from seepage.defences.wire import Wire
from seepage.recipe import Recipe
from seepage.streams import Stream

__all__ = ["LocalDp"]


@dataclass(frozen=True)
class LocalDp(Defence):
    """Scale the update down to a norm, and add Gaussian noise for (ε, δ) of one message.

    Args:
        norm: largest Euclidean norm of the update, Flower's `clipping_norm`.
        sensitivity: by how much, in Euclidean norm, a message can differ for other data; the noise is in proportion.
        epsilon: ε.
        delta: δ.

    Note:
        Flower takes the sensitivity as it is told, and so does this: two updates clipped to C can differ by 2C. The
        theorem holds for ε below 1 alone; above, the noise is what Flower adds, and the ε is not proven. Each further
        round spends as much again.

    Example:
        >>> round(LocalDp(norm=1.0, sensitivity=2.0, epsilon=0.5, delta=1e-5).std, 2)
        19.38
        >>> LocalDp(norm=3.0).expected
        Clip(norm=3.0)
    """

    name: ClassVar[str] = "local-dp"
    norm: float = 1.0
    sensitivity: float = 1.0
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"expected `norm` above 0, got {self.norm}; a large one clips nothing")
        if self.sensitivity < 0:
            raise ValueError(f"expected `sensitivity` of at least 0, got {self.sensitivity}; 0 adds no noise")
        if self.epsilon <= 0:
            raise ValueError(f"expected `epsilon` above 0, got {self.epsilon}; the smaller, the more noise")
        if not 0 < self.delta < 1:
            raise ValueError(f"expected `delta` in (0, 1), got {self.delta}; below 1 / clients is usual")

    @property
    def std(self) -> float:
        """Deviation of the noise, Δ·√(2 ln(1.25/δ))/ε."""
        return self.sensitivity * sqrt(2 * log(1.25 / self.delta)) / self.epsilon

    @property
    def expected(self) -> Defence:
        """The clipping alone."""
        return Clip(self.norm)

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Clipped, then noised."""
        return GaussianNoise(self.std).on_update(Clip(self.norm).on_update(update, rng), rng)

    def mechanism(self, recipe: Recipe, examples: int, rounds: int = 1) -> Mechanism | None:
        """All data of a client move its message by the norm at most, whatever sensitivity was told."""
        return Mechanism(self.std / self.norm, steps=rounds) if self.std else None

    def wire(self, before: Wire) -> Wire:
        """Floats: nothing is zero or on a level any more."""
        return Wire()
