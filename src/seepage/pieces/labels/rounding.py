"""Real-valued estimates of label counts to whole numbers that sum to the number of examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Rounding", "round_as_code", "round_counts"]

Rounding = Callable[[Tensor, int], Tensor]


def round_counts(counts: Tensor, n: int) -> Tensor:
    """Whole numbers of at least zero that sum to `n`, the nearest to `counts` (least squares).

    Args:
        counts: real-valued estimates, (classes,).
        n: their true sum.

    Example:
        >>> round_counts(torch.tensor([1.6, -0.2, 1.3]), 3)
        tensor([2, 0, 1])
    """
    rounded, remainder = torch.zeros_like(counts, dtype=torch.long), counts.clone()
    for _ in range(n):  # each unit goes where it brings the sum of squared errors down most
        best = remainder.argmax()
        rounded[best] += 1
        remainder[best] -= 1
    return rounded


def round_as_code(counts: Tensor, n: int) -> Tensor:
    """The rule of dimitrov2022's released code: floor, then mend the sum by the remainders.

    Floors are clamped at zero. Missing labels go to the largest remainders, one per class. Labels too many are taken
    from the smallest remainders among the classes that have any, one per class, and what is still too many from the
    largest counts.

    Args:
        counts: real-valued estimates, (classes,).
        n: their true sum.

    Note:
        The two differ where many labels are missing or too many: every class then has its turn, however far its
        estimate is from it, while `round_counts` may change one class by several. The code stops with an error where
        more labels are missing than there are classes; here it goes round once more.

    Example:
        >>> counts = torch.tensor([3.9, 2.9, 3.4])
        >>> round_as_code(counts, 3), round_counts(counts, 3)
        (tensor([1, 1, 1]), tensor([2, 0, 1]))
        >>> counts = torch.tensor([1.7, -0.5])
        >>> round_as_code(counts, 5), round_counts(counts, 5)
        (tensor([3, 2]), tensor([4, 1]))
    """
    floors = counts.floor().clamp(min=0).long()
    rounded = floors.clone()
    while (missing := n - int(rounded.sum())) > 0:
        rounded[(counts - rounded).topk(min(missing, len(counts))).indices] += 1
    turn = floors - counts  # the smallest remainders first
    while (excess := int(rounded.sum()) - n) > 0:
        some = rounded > 0
        rounded[torch.where(some, turn, -torch.inf).topk(min(excess, int(some.sum()))).indices] -= 1
        turn = floors.to(counts.dtype)  # then the largest counts
    return rounded
