"""The synthetic task of LEAF: clients of a few clusters, each with a softmax model of its own.

Caldas et al., 2019, "LEAF: A benchmark for federated settings" (https://arxiv.org/abs/1812.01097), appendix A; with
sizes as in Driouich, Xu, Neglia, Giroire and Thomas, 2023 (https://arxiv.org/abs/2210.16205), appendix C.1. An
experiment names it as `name = "seepage.data.leaf_synthetic:leaf_synthetic"`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from seepage.data.dataset import Dataset
from seepage.data.tabular import Encoding
from seepage.spec import Examples
from seepage.streams import Stream

__all__ = ["leaf_synthetic", "leaf_synthetic_40", "leaf_synthetic_100"]

SENSITIVE = "x1"
COEFFICIENTS, LABELS = 0.1, 0.1  # deviations of a client's coefficients from its cluster's, and of what labels add


def leaf_synthetic(
    owners: int = 10, each: int = 2000, features: int = 100, clusters: int = 5, classes: int = 5
) -> Dataset:
    """Rows of Gaussian features around a mean of the owner's own, labelled by the owner's own softmax model.

    Args:
        owners: who hold rows.
        each: rows of each; a tenth as many more are held out.
        features: d, of which `x1` is binary.
        clusters: of owners with similar models.
        classes: driouich2023 does not say how many; five in LEAF's own example.

    Note:
        driouich2023 asks for "one synthetic binary attribute" and does not say which. Here the first feature, which
        varies most, says whether a row is above or below the owner's mean, before labels are made from it. Where
        LEAF's paper has a softmax over classes, its code divides by a sum over the owner's rows. Here it is the code's:
        with the paper's, most owners have rows of one class alone.

    Example:
        >>> data = leaf_synthetic(owners=2, each=20)
        >>> data.train.x.shape, data.column("x1").kind
        (torch.Size([40, 100]), 'binary')
    """
    draw = np.random.default_rng(Stream.from_seed(0).seed)
    coefficients = draw.normal(size=(features + 1, classes, clusters))  # Q
    centres = draw.normal(draw.normal(size=(clusters, 1)), 1, (clusters, clusters))  # μ of each cluster
    spread = np.arange(1, features + 1) ** -0.6  # Σ is diagonal with entries j^−1.2
    held = each + each // 10
    x, y = np.empty((owners, held, features)), np.empty((owners, held), np.int64)
    for owner in range(owners):
        mean = draw.normal(draw.normal(), 1, features)  # v, around B
        x[owner] = draw.normal(mean, spread, (held, features))
        x[owner, :, 0] = x[owner, :, 0] < mean[0]  # "above" is 0 and "below" is 1, as they are encoded
        own = draw.normal(centres[draw.integers(clusters)], COEFFICIENTS)  # u
        logits = np.insert(x[owner], 0, 1, axis=1) @ (coefficients @ own)
        logits += draw.normal(0, LABELS, logits.shape)
        y[owner] = (logits - np.logaddexp.reduce(logits, axis=0)).argmax(1)
    train, test = slice(None, each), slice(each, None)
    encoding = Encoding.of(_table(x[:, train]), binary=(SENSITIVE,))
    whose = torch.arange(owners)

    def rows(half: slice) -> Examples:
        return Examples(encoding.normalise(_table(x[:, half])), torch.from_numpy(y[:, half].reshape(-1)))

    return Dataset(
        "leaf-synthetic",
        encoding.spec(classes=classes),
        rows(train),
        rows(test),
        whose.repeat_interleave(each),
        tuple(f"class {k}" for k in range(classes)),
        "CC0",
        "made here",
        whose.repeat_interleave(held - each),
        encoding.columns,
    )


def _table(x: NDArray[np.float64]) -> dict[str, NDArray[np.float64] | NDArray[np.str_]]:
    rows = x.reshape(-1, x.shape[-1])
    numbers = {f"x{j + 1}": rows[:, j] for j in range(1, rows.shape[1])}
    return {SENSITIVE: np.where(rows[:, 0] == 0, "above", "below")} | numbers


def leaf_synthetic_40() -> Dataset:
    """Forty owners."""
    return leaf_synthetic(owners=40)


def leaf_synthetic_100() -> Dataset:
    """A hundred owners."""
    return leaf_synthetic(owners=100)
