"""Clipping of what is sent to a norm, the deterministic half of differential privacy for clients.

McMahan, Ramage, Talwar and Zhang, 2018, "Learning differentially private recurrent language models"
(https://arxiv.org/abs/1710.06963).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.streams import Stream

__all__ = ["Clip", "clip_factor", "clip_scales", "clipped"]


def clipped(vector: Tensor, norm: float) -> Tensor:
    """A tensor scaled down so that its Euclidean norm is at most `norm`.

    Example:
        >>> clipped(torch.tensor([3.0, 4.0]), 1.0), clipped(torch.tensor([3.0, 4.0]), 6.0)
        (tensor([0.6000, 0.8000]), tensor([3., 4.]))
    """
    return vector * clip_factor((vector**2).sum(), norm)


@dataclass(frozen=True)
class Clip(Defence):
    """Scale the update down so that its Euclidean norm is at most `norm`.

    Args:
        norm: S in the paper.
    """

    name: ClassVar[str] = "clip"
    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"expected `norm` above 0, got {self.norm}")

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Δ · min(1, S / ‖Δ‖)."""
        square = torch.stack([(u**2).sum() for u in update.values()]).sum()
        scale = clip_factor(square, self.norm)
        return {name: u * scale for name, u in update.items()}


def clip_factor(square: Tensor, norm: float) -> Tensor:
    """What brings a vector whose squares sum to `square` down to `norm`, if it is longer."""
    tiny = torch.finfo(square.dtype).tiny  # a vector of zeros has no direction, and stays zero
    return (norm * torch.rsqrt(square.clamp(min=tiny))).clamp(max=1)


def clip_scales(squares: dict[str, Tensor], norm: float) -> dict[str, Tensor]:
    """What brings gradients down to `norm`, of whose tensors the squared norms are `squares`."""
    return dict.fromkeys(squares, clip_factor(torch.stack(list(squares.values())).sum(0), norm))
