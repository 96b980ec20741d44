"""Made-up linear regressions, for propositions about them: Gaussian features, and a model of its own for each client.

An experiment names one as `name = "seepage.data.regression:gaussian_50"`.
"""

from __future__ import annotations

import math

import torch

from seepage.data.dataset import Column, Dataset
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream

__all__ = ["binary_10", "binary_10_clear", "gaussian", "gaussian_10", "gaussian_20", "gaussian_50", "gaussian_200"]


def gaussian(
    features: int, *, owners: int = 10, each: int | None = None, noise: float = 0.5, binary: bool = False
) -> Dataset:
    """Rows of Gaussian features with a linear target, in float64, owner by owner.

    Every owner scales the features in its own way, and has weights of its own around those that all share: their optima
    differ, as in a federation whose clients are worth telling apart.

    Args:
        features: of each row.
        owners: who hold rows; as stored, those of one come after those of another.
        each: rows of each; twice as many as features, and at least 40, when absent.
        noise: standard deviation of what the features do not explain; all targets have a deviation around 1.
        binary: whether the first feature says yes or no, and counts for 1.

    Example:
        >>> data = gaussian(5)
        >>> data.train.x.shape, data.train.y.shape, data.train_owner.unique().numel()
        (torch.Size([400, 5]), torch.Size([400, 1]), 10)
    """
    rng, rows = Stream.from_seed(features), each or max(40, 2 * features)
    shared = (rng / "weights").normal(features, dtype=torch.float64)

    def held(owner: int, n: int, which: str) -> Examples:
        own = rng / "owner" / owner
        scale = torch.exp(0.3 * (own / "scale").normal(features, dtype=torch.float64))
        weights = (shared + (own / "weights").normal(features, dtype=torch.float64)) / math.sqrt(2 * features)
        x = scale * (own / which / "x").normal(n, features, dtype=torch.float64)
        if binary:
            x[:, 0], weights[0] = (x[:, 0] > 0).double(), 1.0
        y = x @ weights + noise * (own / which / "noise").normal(n, dtype=torch.float64)
        return Examples(x, y[:, None])

    train, test = (
        Examples.join([held(owner, n, which) for owner in range(owners)])
        for which, n in (("train", rows), ("test", 20))
    )
    whose = torch.arange(owners)
    return Dataset(
        f"gaussian-{features}",
        DataSpec((features,), low=-10.0, high=10.0),
        train,
        test,
        whose.repeat_interleave(rows),
        (),
        "CC0",
        "made here",
        whose.repeat_interleave(20),
        tuple(
            Column(f"x{i + 1}", i, i + 1, "binary", ("no", "yes"))
            if binary and i == 0
            else Column(f"x{i + 1}", i, i + 1, "numeric")
            for i in range(features)
        ),
    )


def gaussian_10() -> Dataset:
    """Ten features."""
    return gaussian(10)


def gaussian_20() -> Dataset:
    """Twenty features."""
    return gaussian(20)


def gaussian_50() -> Dataset:
    """Fifty features."""
    return gaussian(50)


def gaussian_200() -> Dataset:
    """Two hundred features."""
    return gaussian(200)


def binary_10() -> Dataset:
    """Ten features, of which the first says yes or no."""
    return gaussian(10, binary=True)


def binary_10_clear() -> Dataset:
    """As `binary_10`, with a tenth of what the features do not explain."""
    return gaussian(10, binary=True, noise=0.05)
