"""How far a simulated update is from the observed one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["cosine", "squared"]

Params = dict[str, Tensor]


def cosine(guess: Params, target: Params) -> Tensor:
    """One minus the cosine of the angle between two updates (geiping2020, eq. 4); a zero update is at distance 1.

    Example:
        >>> cosine({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(1.)
    """
    inner, first, second = (
        torch.stack([(a * right[name]).sum() for name, a in left.items()]).sum()
        for left, right in ((guess, target), (guess, guess), (target, target))
    )
    # The smallest normal number keeps the gradient finite where an update vanishes, and changes nothing elsewhere.
    tiny = math.sqrt(torch.finfo(inner.dtype).tiny)
    return 1 - inner / ((first + tiny).sqrt() * (second + tiny).sqrt())


def squared(guess: Params, target: Params) -> Tensor:
    """Squared Euclidean distance (zhu2019, eq. 4).

    Example:
        >>> squared({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(5.)
    """
    return torch.stack([((a - target[name]) ** 2).sum() for name, a in guess.items()]).sum()
