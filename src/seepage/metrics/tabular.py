"""How near a guessed row of a table is to the true one, for inputs that are not images."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TOLERANCE", "exact_match", "mae"]

TOLERANCE = 0.1
"""How far a feature may be off to count as found, in the units of the rows: standard deviations where normalised."""


def _check(guess: Tensor, truth: Tensor) -> None:
    if guess.ndim < 2 or guess.shape != truth.shape:
        raise ValueError(
            "expected `guess` and `truth` of one shape (n, features), "
            f"got {tuple(guess.shape)} and {tuple(truth.shape)}; pair them with `seepage.metrics.matching.match`"
        )


def mae(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean absolute error per example over its features; NaN where the guess is not finite.

    Args:
        guess: rows (n, features).
        truth: rows (n, features).

    Returns:
        One value per example (n,).

    Example:
        >>> mae(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.5, 2.0]])).item()
        0.25
    """
    _check(guess, truth)
    error = (guess.double() - truth.double()).abs().flatten(1).mean(dim=1)
    return torch.where(error.isfinite(), error, torch.nan)


def exact_match(guess: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """Share of each example's features that were found to within the tolerance; NaN is not found.

    Args:
        guess: rows (n, features).
        truth: rows (n, features).
        tolerance: largest error that still counts.

    Returns:
        One share per example (n,).

    Example:
        >>> exact_match(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.5, 2.0]])).item()
        0.5
    """
    _check(guess, truth)
    if not tolerance >= 0:
        raise ValueError(f"expected a `tolerance` of at least 0, got {tolerance}")
    return ((guess.double() - truth.double()).abs() <= tolerance).flatten(1).double().mean(dim=1)
