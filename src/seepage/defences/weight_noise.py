"""Differential privacy on weights: each tensor that is sent is clipped and noised.

Zhao, Luo and Ding, 2023, "Deep Leakage from Model in Federated Learning" (https://arxiv.org/abs/2206.04887), section
5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isinf, sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.defences.base import Defence, NoDefence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["WeightNoise"]


@dataclass(frozen=True)
class WeightNoise(Defence):
    """Clip each tensor of the weights that are sent to a norm, then add noise.

    Args:
        std: σ in eq. (12); the noise has deviation σC, of either kind.
        clip: C in eq. (11), the largest norm of a tensor.
        kind: `"gaussian"` or `"laplacian"` noise.
        by_row: measure a tensor by the longest of its rows (along the second axis) instead of as a whole.
        restore: multiply the clipped and noised weights back by what clipping divided them by. The weights are then
            whole again, and the noise, of deviation σ before, is larger by as much.
        both: what an observer sees of the global model is noised likewise; the client trains from the real one.

    Note:
        Eq. (12) divides by the group size L, which is 1 here. The text leaves C open: 0.2 is that of the released code,
        which is `as_code`, noises both snapshots, never shrinks a weight, and does not scale its noise by C.
        The strength of its Laplacian noise is a scale b, that is a `std` of √2·b.
        The released code compares weights, so its reading needs a recipe that sends them.

    Example:
        >>> WeightNoise(std=0.0, clip=1.0).on_weights({"w": torch.tensor([3.0, 4.0])}, None)["w"]
        tensor([0.6000, 0.8000])
        >>> WeightNoise(std=0.1, restore=True).expected
        NoDefence()
    """

    name: ClassVar[str] = "weight-noise"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {},
        "as_code": {"by_row": True, "restore": True, "both": True},
    }
    changes_weights: ClassVar[bool] = True

    std: float = 1e-4
    clip: float = 0.2
    kind: Literal["gaussian", "laplacian"] = "gaussian"
    by_row: bool = False
    restore: bool = False
    both: bool = False

    def __post_init__(self) -> None:
        if self.std < 0:
            raise ValueError(f"expected `std` of at least 0, got {self.std}")
        if self.clip <= 0:
            raise ValueError(f"expected `clip` above 0, got {self.clip}")
        if self.kind not in ("gaussian", "laplacian"):
            raise ValueError(f"expected `kind` to be 'gaussian' or 'laplacian', got {self.kind!r}")
        if self.std and isinf(self.clip) and not self.restore:
            raise ValueError("expected a finite `clip`, since the noise has deviation std·clip, got inf")

    @property
    def expected(self) -> Defence:
        """The clipping alone, or nothing where that is taken back."""
        return NoDefence() if self.restore else replace(self, std=0.0)

    def on_weights(self, weights: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Each tensor clipped, eq. (11), and noised, eq. (12)."""
        return {name: self._defended(w, rng and rng / name) for name, w in weights.items()}

    def on_global(self, weights: dict[str, Tensor], rng: Stream) -> dict[str, Tensor]:
        """The same, in the reading that covers the global model too."""
        return self.on_weights(weights, rng) if self.both else weights

    def wire(self, before: Wire) -> Wire:
        """Floats: nothing is zero or on a level any more."""
        return Wire()

    def _defended(self, w: Tensor, rng: Stream | None) -> Tensor:
        factor = (self._norm(w) / self.clip).clamp(min=1)  # eq. (11)
        noise = None if rng is None or not self.std else self.std * self._unit_noise(w, rng)
        if self.restore:
            return w if noise is None else w + factor * noise
        return w / factor if noise is None else w / factor + self.clip * noise  # eq. (12)

    def _norm(self, w: Tensor) -> Tensor:
        # Sums of squares rather than `norm`, which has no derivative at zero.
        square = (w**2).sum(1).max() if self.by_row and w.ndim > 1 else (w**2).sum()
        tiny = torch.finfo(w.dtype).tiny
        return square.clamp(min=tiny).sqrt()

    def _unit_noise(self, like: Tensor, rng: Stream) -> Tensor:
        """Independent noise of deviation 1."""
        if self.kind == "gaussian":
            return rng.normal(*like.shape, dtype=like.dtype, device=like.device)
        # The difference of two exponential numbers is Laplacian, of variance 2.
        pair = torch.empty(2, *like.shape, dtype=torch.float64).exponential_(generator=rng.generator())
        return ((pair[0] - pair[1]) / sqrt(2)).to(device=like.device, dtype=like.dtype)
