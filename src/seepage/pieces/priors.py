"""What images look like before any update is seen."""

from __future__ import annotations

from torch import Tensor

__all__ = ["total_variation"]


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference between neighbouring pixels, down plus across (rudin1992, as geiping2020's code has it).

    Args:
        x: images, (…, height, width).

    Example:
        >>> import torch
        >>> total_variation(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        tensor(1.)
    """
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
    return down + across
