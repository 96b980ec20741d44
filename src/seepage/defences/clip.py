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

__all__ = ["Clip"]


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
        tiny = torch.finfo(square.dtype).tiny  # a zero update has no direction, and stays zero
        scale = (self.norm * torch.rsqrt(square.clamp(min=tiny))).clamp(max=1)
        return {name: u * scale for name, u in update.items()}
