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
        sizes: how strong the gradients are in each of these directions, (rank,).
        noise: how strong they are in directions that rounding alone explains.
        most: largest rank that the gradients could have.
    """

    basis: Tensor
    sizes: Tensor
    noise: float
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
        return self._sides(rows)[1]

    def excess(self, rows: Tensor) -> Tensor:
        """The distance of each row over the largest that rounding explains: up to 1 it lies in the space, (…,).

        A direction is known to the noise over its size, so that it matters how much of a row lies in weak ones.
        """
        inside, distances = self._sides(rows)
        explained = torch.finfo(rows.dtype).eps + self.noise * (inside / self.sizes).norm(dim=-1)
        excess: Tensor = distances / (CLEAR * explained).clamp(max=FARTHEST)
        return excess

    def probes(self, count: int, rng: torch.Generator) -> Tensor:
        """Some directions outside of the space, (width, count), in which a row is about as long as in all of them."""
        width = self.basis.shape[1]
        count = min(count, width - self.rank)
        drawn = torch.randn(width, count, generator=rng, dtype=torch.float64).to(self.basis)
        outside: Tensor = torch.linalg.qr(drawn - self.basis.T @ (self.basis @ drawn))[0]
        return outside * math.sqrt((width - self.rank) / count)

    def _sides(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row, over its length: the part along each direction of the space, and the length of the rest."""
        unit = rows.to(self.basis)
        unit = unit / unit.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(unit.dtype).tiny)
        inside = unit @ self.basis.T
        return inside, (unit - inside @ self.basis).norm(dim=-1)


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
        >>> span.rank, span.full, (span.excess(torch.eye(4)) <= 1).tolist()
        (2, False, [True, True, False, False])
    """
    there = [(g.double() / g.double().norm(), noise) for g, noise in zip(gradients, noises, strict=True) if g.any()]
    width, most = gradients[0].shape[1], min(sum(len(g) for g in gradients), gradients[0].shape[1])
    if not there:
        nothing = gradients[0].new_zeros(0, width, dtype=torch.float64)
        return Span(nothing, nothing[:, 0], 0.0, most)
    _, sizes, rows = torch.linalg.svd(torch.cat([g for g, _ in there]), full_matrices=False)
    noise = sum(noise**2 for _, noise in there) ** 0.5
    rank = int((sizes > CLEAR * noise).sum())
    # What is left over tells how large errors are; where nothing is, what rounding can make of them.
    return Span(rows[:rank], sizes[:rank], float(sizes[rank]) if rank < len(sizes) else noise, most)
