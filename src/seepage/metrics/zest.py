"""How alike two models explain their answers.

Jia, Chen, Guan, Shamsabadi and Papernot, 2022, "A Zest of LIME: Towards Architecture-Independent Model Distances"
(https://openreview.net/forum?id=OUz_9TiTv9j), with explanations as in LIME (Ribeiro, Singh and Guestrin, 2016). Their
features are segments of images that quickshift finds. driouich2023 measures images and tables without saying how: here
features are squares of 8 × 8 pixels, or columns of numbers, and one that is switched off is at its mean.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["zest_similarity"]

REFERENCES, MASKS, SQUARE = 64, 500, 8


def zest_similarity(
    one: Callable[[Tensor], Tensor],
    other: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    references: int = REFERENCES,
    masks: int = MASKS,
) -> float:
    """Cosine between the explanations of two models: 1 is the same, 0 is unrelated.

    Args:
        one: from rows (n, features) or images (n, c, h, w) to outputs (n, classes).
        other: likewise.
        x: what to explain answers about, evenly spaced ones of which are taken; their mean is the background.
        references: how many of them.
        masks: samples of features switched off, drawn once and the same for all rows.

    Example:
        >>> x = torch.eye(4)
        >>> zest_similarity(lambda x: x, lambda x: 3 * x, x), zest_similarity(lambda x: x, lambda x: -x, x)
        (1.0, -1.0)
    """
    rows = x[:: max(1, len(x) // references)][:references].flatten(1)
    feature = _feature_of_number(x.shape[1:]).to(x.device)
    features = int(feature.max()) + 1
    draw = torch.Generator().manual_seed(0)
    on = torch.randint(2, (masks, features), generator=draw).to(rows)
    background = x.flatten(1).mean(0)
    # Least squares of the answers on the masks and a constant; the same masks make it one solution for all rows.
    design = torch.cat([on, torch.ones_like(on[:, :1])], 1).double()
    solve = torch.linalg.pinv(design)[:features]  # (features, masks)

    def explanation(model: Callable[[Tensor], Tensor]) -> Tensor:
        parts = [
            solve @ model((background + on[:, feature] * (row - background)).reshape(-1, *x.shape[1:])).double()
            for row in rows
        ]
        return torch.cat([part.flatten() for part in parts])

    a, b = explanation(one), explanation(other)
    return round(float(a @ b / (a.norm() * b.norm())), 12)


def _feature_of_number(shape: torch.Size) -> Tensor:
    """Which feature each number of an input belongs to: a column of its own, or a square of pixels in all channels.

    Example:
        >>> _feature_of_number(torch.Size([1, 9, 2])).unique(return_counts=True)[1].tolist()
        [16, 2]
    """
    if len(shape) != 3:
        return torch.arange(shape.numel())
    channels, height, width = shape
    down, across = torch.arange(height) // SQUARE, torch.arange(width) // SQUARE
    return (down[:, None] * (int(across[-1]) + 1) + across).expand(channels, -1, -1).flatten()
