"""Which dummies of different epochs are the same example, and one answer made of them.

Dimitrov, Balunović, Konstantinov and Vechev, 2022, "Data leakage in federated averaging" (dimitrov2022,
https://arxiv.org/abs/2206.12395), appendix A: each epoch is matched with the first by the Hungarian method, then
averaged.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["Combination", "Similarity", "combine", "match_epochs"]

Similarity: TypeAlias = Literal["psnr", "squared"]
"""What is summed over the pairs of a matching: PSNR, or the squared error."""

Combination: TypeAlias = Literal["mean", "median"]

SMALLEST = 1e-12  # mean squared error that counts as equal: 120 dB


def match_epochs(
    pixels: Tensor, labels: Tensor | None = None, similarity: Similarity = "psnr", passes: int = 1
) -> Tensor:
    """For every epoch the order in which its examples match those of the first, (epochs, n).

    Args:
        pixels: one client's dummies in a range of length 1, (epochs, n, …).
        labels: (epochs, n), the same in each epoch up to their order; only examples of equal label are then paired.
        similarity: whose sum over the pairs is best.
        passes: after the first pass, epochs are matched with the median of the matched ones instead of with the first
            epoch, which is but one noisy reconstruction.

    Example:
        >>> pixels = torch.tensor([[[0.0], [1.0]], [[0.9], [0.1]]])
        >>> match_epochs(pixels)
        tensor([[0, 1],
                [1, 0]])
        >>> match_epochs(pixels, torch.tensor([[5, 7], [5, 7]]))
        tensor([[0, 1],
                [0, 1]])
    """
    if passes < 1:
        raise ValueError(f"expected `passes` of at least 1, got {passes}")
    flat = pixels.detach().flatten(2).double().nan_to_num()
    reference, orders = flat[0], torch.arange(flat.shape[1]).expand(flat.shape[:2])
    for done in range(passes):
        error = torch.cdist(reference.expand_as(flat), flat, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        cost = error if similarity == "squared" else (error / flat.shape[2]).clamp(min=SMALLEST).log10()
        if labels is not None:
            apart = labels[0][None, :, None] != labels[:, None, :]
            # Dearer than anything that pairing other labels could save.
            cost = cost + apart * (len(flat[0]) * (cost.max() - cost.min() + 1))
        first = 1 if done == 0 else 0  # in the first pass, the first epoch is the reference itself
        found = [torch.from_numpy(linear_sum_assignment(part)[1]) for part in cost[first:].cpu().numpy()]
        orders = torch.stack([torch.arange(flat.shape[1])] * first + found)
        reference = combine(flat, orders, "median")
    return orders


def combine(x: Tensor, orders: Tensor, how: Combination = "mean") -> Tensor:
    """One example of all its matched dummies, (n, …).

    Args:
        x: (epochs, n, …).
        orders: from `match_epochs`, (epochs, n).
        how: `"mean"` as in dimitrov2022, or `"median"` of every entry, which a few bad epochs do not move; of an even
            number, the mean of the two in the middle.

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.5], [9.0, 0.0]])
        >>> orders = torch.tensor([[0, 1], [1, 0], [1, 0]])
        >>> combine(x, orders), combine(x, orders, "median")
        (tensor([0.1667, 3.6667]), tensor([0., 1.]))
    """
    matched = torch.stack([epoch[order] for epoch, order in zip(x, orders.to(x.device), strict=True)])
    if how == "mean":
        return matched.mean(0)
    ascending, epochs = matched.sort(0).values, len(matched)
    return (ascending[(epochs - 1) // 2] + ascending[epochs // 2]) / 2
