"""How near a guessed row of a table is to the true one, for inputs that are not images."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.spec import DataSpec

__all__ = ["CELL_TOLERANCE", "TOLERANCE", "cells_found", "exact_match", "mae", "majority_row", "surest"]

TOLERANCE = 0.1
"""How far a feature may be off to count as found, in the units of the rows: standard deviations where normalised."""

CELL_TOLERANCE = 0.319
"""The same for a cell of numbers, as in TabLeak (https://arxiv.org/abs/2210.01785)."""


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


def cells_found(guess: Tensor, truth: Tensor, spec: DataSpec, tolerance: float = CELL_TOLERANCE) -> Tensor:
    """Which cells of a table were found: the category that is said most strongly, or a number near enough.

    Args:
        guess: rows (n, features); NaN is not found.
        truth: rows (n, features).
        spec: of the data, whose `categories` say which features are one column.
        tolerance: largest error of a number that still counts, in the units of the rows.

    Returns:
        (n, columns), columns as in `spec.columns`.

    Example:
        >>> spec = DataSpec((3,), categories=((1, 3),))
        >>> cells_found(torch.tensor([[0.5, 0.4, 0.6]]), torch.tensor([[0.0, 0.0, 1.0]]), spec)
        tensor([[False,  True]])
    """
    _check(guess, truth)
    said, real = spec.pixels(guess.double()), spec.pixels(truth.double())
    near = (guess.double() - truth.double()).abs() <= tolerance
    cells = near[:, [start for start, _ in spec.columns]]
    for start, stop in spec.categories:
        column = spec.columns.index((start, stop))
        if stop - start == 1:
            cells[:, column] = (said[:, start] > 0.5) == (real[:, start] > 0.5)
        else:
            cells[:, column] = said[:, start:stop].argmax(1) == real[:, start:stop].argmax(1)
    return cells & guess.isfinite().all(1, keepdim=True)


def majority_row(truth: Tensor, spec: DataSpec, tolerance: float = CELL_TOLERANCE) -> Tensor:
    """The row that has the most cells in common with the client's: each column's most frequent value.

    Args:
        truth: rows (n, features).
        spec: of the data.
        tolerance: of two numbers that count as the same.

    Returns:
        One row, (features,), each cell from one of the client's own.

    Example:
        >>> spec = DataSpec((3,), categories=((1, 3),))
        >>> majority_row(torch.tensor([[5.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.1, 0.0, 1.0]]), spec)
        tensor([0., 0., 1.])
    """
    shared = torch.stack([cells_found(row.expand_as(truth), truth, spec, tolerance).sum(0) for row in truth])
    best = shared.argmax(0)  # (columns,), which row has each column's most frequent value
    return torch.cat([truth[row, slice(*column)] for row, column in zip(best, spec.columns, strict=True)])


def surest(certainty: Tensor, spec: DataSpec) -> Tensor:
    """The half of all cells that an attack is surest of, of categories and of numbers alike, (n, columns).

    Args:
        certainty: (n, columns); the two kinds need not be on one scale.
        spec: of the data.

    Example:
        >>> surest(torch.tensor([[0.1, 0.9], [0.2, 0.8]]), DataSpec((2,), categories=((0, 1),)))
        tensor([[False,  True],
                [ True, False]])
    """
    chosen = torch.zeros_like(certainty, dtype=torch.bool)
    of_categories = torch.tensor([column in spec.categories for column in spec.columns])
    for kind in (of_categories, ~of_categories):
        cells = kind.expand_as(certainty).nonzero()
        values = certainty[cells[:, 0], cells[:, 1]]
        rows, columns = cells[values.argsort(descending=True, stable=True)[: (len(cells) + 1) // 2]].T
        chosen[rows, columns] = True
    return chosen
