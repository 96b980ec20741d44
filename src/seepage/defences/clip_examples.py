"""Clipping of each example's gradient, the deterministic half of differentially private SGD.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang, 2016, "Deep learning with differential privacy"
(https://arxiv.org/abs/1607.00133), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from seepage.defences.base import Defence, Params
from seepage.defences.clip import clip_scales, clipped
from seepage.streams import Stream

__all__ = ["ClipExamples"]


@dataclass(frozen=True)
class ClipExamples(Defence):
    """At every local step, scale each example's gradient down to a Euclidean norm of at most `norm`, before their mean.

    With `GradientNoise` after it, that is the gradient of DP-SGD up to the random draw of batches.

    Args:
        norm: C in the paper.

    Example:
        >>> import torch
        >>> ClipExamples(1.0).on_example_gradient(torch.tensor([3.0, 4.0]), None)
        tensor([0.6000, 0.8000])
    """

    name: ClassVar[str] = "clip-examples"
    per_example: ClassVar[bool] = True
    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"expected `norm` above 0, got {self.norm}; a large one clips nothing")

    @property
    def example_norm(self) -> float:
        """All that is done to an example's gradient is to clip it."""
        return self.norm

    def example_scales(self, squares: Params) -> Params:
        """One for all tensors of a gradient."""
        return clip_scales(squares, self.norm)

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """G · min(1, C / ‖g‖)."""
        return clipped(gradient, self.norm)
