"""Top-k sparsification: send only the largest entries.

Aji and Heafield, 2017, "Sparse communication for distributed gradient descent" (https://arxiv.org/abs/1704.05021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.streams import Stream

__all__ = ["TopK"]


@dataclass(frozen=True)
class TopK(Defence):
    """Keep the given share of entries, the largest in magnitude over all tensors together; the rest become zero.

    Args:
        share: of the entries that are kept, in (0, 1].
    """

    name: ClassVar[str] = "top-k"
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected `share` in (0, 1], got {self.share}")

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Zero all entries under the k-th largest magnitude."""
        size = torch.cat([u.detach().abs().reshape(-1) for u in update.values()])
        keep = max(1, round(self.share * len(size)))
        threshold = size.topk(keep).values[-1]
        return {name: u * (u.detach().abs() >= threshold) for name, u in update.items()}
