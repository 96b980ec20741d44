"""What the gradient of a linear layer says about the rows that entered it: they span its row space.

The gradient of a weight is Δᵀ·Z, where Z holds what entered and Δ the derivatives of what came out. As long as fewer
rows enter than the layer has inputs and outputs, the rows of the gradient span the same space as those of Z
(Petrov et al., 2024, theorem 3.1), and whether a row was among them is a question of its distance to that space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Span", "rounding", "span_of"]

CLEAR = 10.0
"""How far above rounding a singular value must be to count, and how far beyond it a row may lie from the space."""

FARTHEST = 0.05
"""No row that is farther from the space than that, in its own length, is taken to lie in it."""


@dataclass(frozen=True, eq=False)
class Span:
    """The space spanned by the rows of some gradients.

    Args:
        basis: orthonormal rows, (rank, width).
        tolerance: distance, over the length of a row, up to which it counts as inside.
        most: largest rank that the gradients could have.
    """

    basis: Tensor
    tolerance: float
    most: int

    @property
    def rank(self) -> int:
        """How many directions there are."""
        return len(self.basis)

    @property
    def full(self) -> bool:
        """Whether it is, or could be, cut off by the size of the layer; one direction is lost to LayerNorm."""
        return self.rank >= self.most - 1

    def distances(self, rows: Tensor) -> Tensor:
        """The sine of the angle between each row and the space, (…,) for rows (…, width)."""
        unit = rows.to(self.basis)
        unit = unit / unit.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(unit.dtype).tiny)
        outside: Tensor = unit - unit @ self.basis.T @ self.basis
        distances: Tensor = outside.norm(dim=-1)
        return distances


def rounding(gradient: Tensor, weight: Tensor | None = None) -> float:
    """The error that rounding makes in a gradient, over its size.

    Args:
        gradient: of a weight, (units, width).
        weight: where the gradient is the difference of two weights, which are rounded each, one of them.
    """
    eps = torch.finfo(gradient.dtype).eps
    if weight is None or not gradient.any():
        return eps
    units, width = gradient.shape
    # The largest singular value of independent errors.
    share = 1 / math.sqrt(units) + 1 / math.sqrt(width)
    return eps * (1 + share * float(weight.double().norm() / gradient.double().norm()))


def span_of(gradients: Sequence[Tensor], noises: Sequence[float]) -> Span:
    """The space that rows of several gradients span, whatever the size of each.

    Args:
        gradients: of weights that read the same rows, (units, width) each.
        noises: error of each over its size.

    Example:
        >>> z = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
        >>> span = span_of([torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0], [1.0, 1.0]]) @ z], [1e-7])
        >>> span.rank, span.full, (span.distances(torch.eye(4)) <= span.tolerance).tolist()
        (2, False, [True, True, False, False])
    """
    there = [(g.double() / g.double().norm(), noise) for g, noise in zip(gradients, noises, strict=True) if g.any()]
    width, most = gradients[0].shape[1], min(sum(len(g) for g in gradients), gradients[0].shape[1])
    if not there:
        return Span(gradients[0].new_zeros(0, width, dtype=torch.float64), 0.0, most)
    _, sizes, rows = torch.linalg.svd(torch.cat([g for g, _ in there]), full_matrices=False)
    noise = CLEAR * sum(noise**2 for _, noise in there) ** 0.5
    rank = int((sizes > noise).sum())
    # The weakest direction is known the least, to the error over its size.
    return Span(rows[:rank], min(FARTHEST, noise / float(sizes[rank - 1])) if rank else 0.0, most)
