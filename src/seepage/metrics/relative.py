"""How far a guess is from the truth in units of the truth itself, for values of any kind and scale."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["relative_error"]


def relative_error(guess: Tensor, truth: Tensor) -> Tensor:
    """Length of the difference over the length of the truth, per example.

    Args:
        guess: (n, ...), as a module eats them or as they enter one of its layers.
        truth: (n, ...).

    Returns:
        One value per example (n,); NaN where the guess is not finite, and where the truth is zero and so has no size
        to compare with.

    Example:
        >>> relative_error(torch.tensor([[3.0, 5.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([0.2000,    nan], dtype=torch.float64)
    """
    if guess.ndim < 2 or guess.shape != truth.shape:
        raise ValueError(
            "expected `guess` and `truth` of one shape (n, ...), "
            f"got {tuple(guess.shape)} and {tuple(truth.shape)}; pair them with `seepage.metrics.matching.match`"
        )
    guess, truth = guess.double().flatten(1), truth.double().flatten(1)
    error = (guess - truth).norm(dim=1) / truth.norm(dim=1)
    return torch.where(error.isfinite(), error, torch.nan)
