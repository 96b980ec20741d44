"""Epochs see the same examples in another order: what that says about dummies that differ from epoch to epoch.

Dimitrov, Balunović, Konstantinov and Vechev, 2022, "Data leakage in federated averaging" (dimitrov2022,
https://arxiv.org/abs/2206.12395), section 4.4: a statistic g that does not depend on the order of an epoch's examples
must be the same for all epochs.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from seepage.streams import Stream
from seepage.threat import View

__all__ = ["PairDistance", "Statistic", "convolved", "label_means", "order_prior", "pair_distance", "random_filters"]

Statistic: TypeAlias = Literal["mean", "max", "conv-mean", "conv-max"]
"""The mean or largest value of each pixel over the images of an epoch, or of the images after a random convolution."""

PairDistance: TypeAlias = Literal["l1", "l2"]
"""The mean of absolute or of squared differences."""

FILTERS = 96  # section 5.4: the largest number that fitted the authors' GPU
WIDTH = 3


def order_prior(
    x: Tensor,
    statistic: Statistic = "mean",
    distance: PairDistance = "l2",
    *,
    filters: Tensor | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    """How much the epochs disagree about g, L_inv in eq. (3) of dimitrov2022.

    Args:
        x: one client's dummies, (epochs, n, …).
        statistic: g.
        distance: D_inv between two epochs.
        filters: of the convolution, from `random_filters`; for images and the statistics that begin with `conv`.
        labels: (epochs, n), the same labels in each epoch in some order; g is then taken over the examples of each
            label by itself, which says more: where a label occurs once, its dummies must agree across epochs. For
            means alone.

    Example:
        >>> x = torch.tensor([[[1.0], [3.0]], [[3.0], [1.0]], [[3.0], [3.0]]])  # three epochs of two examples
        >>> order_prior(x[:2]), order_prior(x)
        (tensor(0.), tensor(0.4444))
        >>> [float(order_prior(x[:2], labels=torch.tensor([[0, 1], second]))) for second in ([0, 1], [1, 0])]
        [2.0, 0.0]
    """
    if statistic.startswith("conv") and filters is None:
        raise ValueError(f"expected `filters` for the statistic {statistic!r}, got none; draw `random_filters`")
    if labels is not None and statistic.endswith("max"):
        raise ValueError(f"expected a mean where g is taken label by label, got {statistic!r}")
    if statistic.endswith("mean"):
        g = x.mean(1) if labels is None else label_means(x, labels)
        # A convolution without bias commutes with a mean: one image per epoch passes through it instead of n.
        g = g if filters is None or statistic == "mean" else convolved(g, filters)
    else:
        g = (x if filters is None or statistic == "max" else convolved(x, filters)).amax(1)
    return pair_distance(g, distance)


def pair_distance(g: Tensor, distance: PairDistance) -> Tensor:
    """The mean over all pairs of epochs, an epoch with itself among them, and over the entries of g.

    Both sums over pairs have a form without pairs: squares are twice the variance over the epochs, and in ascending
    order the k-th of E numbers (from 0) is added k times and taken away E − 1 − k times.

    Args:
        g: (epochs, …).
        distance: between two epochs.

    Example:
        >>> pair_distance(torch.tensor([0.0, 1.0, 3.0]), "l1"), pair_distance(torch.tensor([0.0, 1.0, 3.0]), "l2")
        (tensor(1.3333), tensor(3.1111))
    """
    epochs = len(g)
    if distance == "l2":
        return 2 * (g - g.mean(0)).square().mean()
    ascending = g.sort(0).values
    signs = 2 * torch.arange(epochs, dtype=g.dtype, device=g.device) - (epochs - 1)
    return 2 / epochs * (signs.reshape(-1, *[1] * (g.ndim - 1)) * ascending).mean()


def label_means(x: Tensor, labels: Tensor) -> Tensor:
    """For every epoch and every label of the first epoch, the mean of the examples with that label, (epochs, n, …).

    Args:
        x: (epochs, n, …).
        labels: (epochs, n), the same in each epoch up to their order.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]])
        >>> label_means(x, torch.tensor([[0, 1, 1], [1, 1, 0]]))
        tensor([[ 1.,  3.,  3.],
                [40., 15., 15.]])
    """
    same = (labels[:, None, :] == labels[0][None, :, None]).to(x.dtype)  # (epochs, n of the first, n of this one)
    weights = same / same.sum(2, keepdim=True)
    return (weights @ x.reshape(*x.shape[:2], -1)).reshape(x.shape)


def convolved(x: Tensor, filters: Tensor) -> Tensor:
    """Images after a convolution with zeros around them and no bias, (…, filters, height, width).

    Written as one product of matrices: with filters of their own, clients would else make a grouped convolution.

    Args:
        x: images, (…, channels, height, width).
        filters: (filters, channels, k, k) with odd k.

    Example:
        >>> convolved(torch.ones(1, 3, 3), torch.ones(2, 1, 3, 3))[0]
        tensor([[4., 6., 4.],
                [6., 9., 6.],
                [4., 6., 4.]])
    """
    height, width = x.shape[-2:]
    size = filters.shape[-1]
    padded = functional.pad(x, (size // 2,) * 4)
    patches = torch.stack(
        [padded[..., i : i + height, j : j + width] for i in range(size) for j in range(size)], -3
    )  # (…, channels, k², height, width)
    flat = patches.reshape(*x.shape[:-3], -1, height * width)
    return (filters.flatten(1) @ flat).reshape(*x.shape[:-3], len(filters), height, width)


def random_filters(view: View, rng: Stream) -> Tensor:
    """Filters for `convolved`, each client's own, (clients, 96, channels, 3, 3).

    Normal with variance 1 / fan-in (LeCun's rule).

    Note:
        The released code draws from a normal distribution that is cut at two standard deviations; this one is not.
    """
    like = next(iter(view.update.values()))
    channels = view.task.spec.shape[0]
    fan_in = channels * WIDTH * WIDTH
    return torch.stack(
        [
            (rng / client).normal(FILTERS, channels, WIDTH, WIDTH, dtype=like.dtype, device=like.device) / fan_in**0.5
            for client in view.clients
        ]
    )
