"""What images look like before any update is seen."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["outside_box", "squared_variation", "total_variation"]


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference between neighbouring pixels, down plus across (rudin1992, as geiping2020's code has it).

    Args:
        x: images, (…, height, width).

    Example:
        >>> total_variation(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        tensor(1.)
    """
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
    return down + across


def squared_variation(x: Tensor) -> Tensor:
    """Squared differences between neighbouring pixels, summed over an image and averaged over the images.

    As dimitrov2022's code has it, borders are neighbours of the opposite ones.

    Args:
        x: images, (…, channels, height, width).

    Example:
        >>> squared_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
        tensor(4.)
    """
    steps = (x - x.roll(1, -1)).square() + (x - x.roll(1, -2)).square()
    return steps.sum((-3, -2, -1)).mean()


def outside_box(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Squared distance to the range of the data, in units of its length, summed over an example, averaged over them.

    R_clip of Geng et al., 2021, eq. (17) (https://arxiv.org/abs/2110.09074), as dimitrov2022's code has it.

    Args:
        x: (examples, …).
        lower: smallest normalised values, from `DataSpec.box`.
        upper: largest ones.

    Example:
        >>> outside_box(torch.tensor([[-1.0, 0.5, 3.0]]), torch.tensor(0.0), torch.tensor(2.0))
        tensor(0.5000)
    """
    beyond = (x - torch.maximum(torch.minimum(x, upper), lower)) / (upper - lower)
    return beyond.square().flatten(1).sum(1).mean()
