"""Clipping of each tensor of what is sent to a norm of its own.

McMahan, Ramage, Talwar and Zhang, 2018, "Learning differentially private recurrent language models"
(https://arxiv.org/abs/1710.06963).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.clip import clipped
from seepage.streams import Stream

__all__ = ["ClipLayers"]


@dataclass(frozen=True)
class ClipLayers(Defence):
    """Scale each tensor of the update down so that its Euclidean norm is at most `norm`.

    Weight and bias of a layer are two tensors. An update of m of them then has a norm of at most norm · √m.

    Args:
        norm: S_j in the paper, the same for every tensor.

    Example:
        >>> import torch
        >>> ClipLayers(1.0).on_update({"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.5])}, None)
        {'w': tensor([0.6000, 0.8000]), 'b': tensor([0.5000])}
    """

    name: ClassVar[str] = "clip-layers"
    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"expected `norm` above 0, got {self.norm}; a large one clips nothing")

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Δⱼ · min(1, S_j / ‖Δⱼ‖) for each tensor."""
        return {name: clipped(u, self.norm) for name, u in update.items()}
