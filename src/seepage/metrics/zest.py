"""How alike two models explain their answers, for rows of a table.

Jia, Chen, Guan, Shamsabadi and Papernot, 2022, "A Zest of LIME: Towards Architecture-Independent Model Distances"
(https://openreview.net/forum?id=OUz_9TiTv9j), with explanations as in LIME (Ribeiro, Singh and Guestrin, 2016). Their
features are segments of images. For tables, which driouich2023 measures without saying how, they are columns of numbers
here, and one that is switched off is at its mean.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["zest_similarity"]

REFERENCES, MASKS = 64, 500


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
        one: from rows (n, features) to outputs (n, classes).
        other: likewise.
        x: rows to explain answers about, evenly spaced ones of which are taken; their mean is the background.
        references: how many of them.
        masks: samples of features switched off, drawn once and the same for all rows.

    Example:
        >>> x = torch.eye(4)
        >>> zest_similarity(lambda x: x, lambda x: 3 * x, x), zest_similarity(lambda x: x, lambda x: -x, x)
        (1.0, -1.0)
    """
    rows = x[:: max(1, len(x) // references)][:references].flatten(1)
    features = rows.shape[1]
    draw = torch.Generator().manual_seed(0)
    on = torch.randint(2, (masks, features), generator=draw).to(rows)
    background = x.flatten(1).mean(0)
    # Least squares of the answers on the masks and a constant; the same masks make it one solution for all rows.
    design = torch.cat([on, torch.ones_like(on[:, :1])], 1).double()
    solve = torch.linalg.pinv(design)[:features]  # (features, masks)

    def explanation(model: Callable[[Tensor], Tensor]) -> Tensor:
        parts = [
            solve @ model((background + on * (row - background)).reshape(-1, *x.shape[1:])).double() for row in rows
        ]
        return torch.cat([part.flatten() for part in parts])

    a, b = explanation(one), explanation(other)
    return round(float(a @ b / (a.norm() * b.norm())), 12)
