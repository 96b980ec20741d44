"""Which guess belongs to which true example: an attack does not know the order of the client's data.

The pairing is the one-to-one assignment with the largest total PSNR, found by the Hungarian method
(Kuhn, 1955, "The Hungarian Method for the Assignment Problem", https://doi.org/10.1002/nav.3800020109).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from seepage.metrics.pixels import PSNR_CAP

__all__ = ["match", "taken"]


def match(guess: Tensor, truth: Tensor, low: float, high: float) -> Tensor:
    """For every true example the index of the guess that is paired with it.

    Args:
        guess: (m, ...), images or rows of a table; clip them first where a range is to be respected.
        truth: (n, ...), examples of the same shape.
        low: smallest raw value.
        high: largest raw value; the range sets what counts as equal, since PSNR is capped at `PSNR_CAP`.

    Returns:
        Indices (n,), each guess used at most once; -1 where the guesses ran out.

    Note:
        Total PSNR, not total MSE: with MSE a perfect reconstruction is given away whenever that spares a worthless
        guess elsewhere a larger error, and the leak goes unreported.
        A guess that is not finite is used only when no other is left.

    Example:
        >>> truth = torch.tensor([[0.0], [0.5], [1.0]])
        >>> match(torch.tensor([[0.9], [0.1]]), truth, 0.0, 1.0)
        tensor([ 1, -1,  0])
    """
    if guess.ndim != truth.ndim or guess.shape[1:] != truth.shape[1:] or guess.ndim < 2:
        raise ValueError(
            f"expected `guess` of shape (m, {', '.join(map(str, truth.shape[1:]))}) like one example of `truth`, "
            f"got {tuple(guess.shape)} for truth {tuple(truth.shape)}"
        )
    order = torch.full((len(truth),), -1, dtype=torch.long)
    if len(guess) == 0 or len(truth) == 0:
        return order
    flat_guess, flat_truth = guess.detach().flatten(1).double().cpu(), truth.detach().flatten(1).double().cpu()
    # Differences first: the shortcut by inner products loses the small errors that matter here.
    distance = torch.cdist(flat_truth, flat_guess, compute_mode="donot_use_mm_for_euclid_dist")
    error = distance.square() / (flat_truth.shape[1] * (high - low) ** 2)
    finite = flat_guess.isfinite().all(dim=1) & error.isfinite().all(dim=0)
    cost = 10 * error.clamp(min=10 ** (-PSNR_CAP / 10)).log10()  # minus PSNR, (n, m)
    known = cost[:, finite]
    # Dearer than any exchange among the finite guesses can save.
    dear = float(known.max() + len(truth) * (known.max() - known.min() + 1)) if known.numel() else 0.0
    rows, columns = linear_sum_assignment(np.where(finite.numpy(), cost.numpy(), dear))
    order[torch.from_numpy(rows)] = torch.from_numpy(columns)
    return order


def taken(values: Tensor, order: Tensor, missing: float) -> Tensor:
    """The values in the order of a match, with `missing` where the order says -1.

    Args:
        values: (m, ...).
        order: (n,), from `match`.
        missing: what stands for an example without a guess.

    Example:
        >>> taken(torch.tensor([10, 20]), torch.tensor([1, -1, 0]), -1)
        tensor([20, -1, 10])
    """
    found = values.new_full((len(order), *values.shape[1:]), missing)
    here = order >= 0
    found[here.to(values.device)] = values[order[here].to(values.device)]
    return found
