"""Cleaning an image between two steps of an optimisation, or after the last."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["as_photographs", "equalised", "median"]

BRIGHTNESS, CONTRAST = 0.43, 0.22
"""Mean of photographs in [0, 1], and deviation inside of one: of the first 300 training images of `imagenet`."""


def as_photographs(x: Tensor) -> Tensor:
    """Images shifted and stretched together, to the mean and the contrast that photographs have on average.

    For what signs alone tell: how bright and how flat an image is beside the others, and not how much so in all.

    Args:
        x: images of one client, (n, channels, height, width).

    Example:
        >>> shown = as_photographs(torch.rand(4, 3, 8, 8))
        >>> round(float(shown.mean()), 4), round(float(shown.flatten(1).std(1).mean()), 4)
        (0.43, 0.22)
    """
    contrast = x.flatten(1).std(1).mean().clamp(min=torch.finfo(x.dtype).tiny)
    return BRIGHTNESS + CONTRAST * (x - x.mean()) / contrast


def equalised(x: Tensor) -> Tensor:
    """Each channel of each image with its values spread evenly over [0, 1], in the same order.

    Histogram equalisation, as yue2023 (section 4.4) does to what it finds from signs alone; equal values stay equal.

    Args:
        x: images, (…, height, width).

    Example:
        >>> equalised(torch.tensor([[0.1, 0.2], [0.2, 0.3]]))
        tensor([[0.1250, 0.5000],
                [0.5000, 0.8750]])
    """
    flat = x.flatten(-2)
    ordered = flat.sort(-1).values
    below = torch.searchsorted(ordered, flat.contiguous())
    up_to = torch.searchsorted(ordered, flat.contiguous(), right=True)
    return ((below + up_to) / (2 * flat.shape[-1])).to(x.dtype).reshape(x.shape)


def median(x: Tensor) -> Tensor:
    """The median over 3 × 3 pixels, borders mirrored, as geiping2020 cleans reconstructions of ImageNet.

    Args:
        x: images, (…, height, width).

    Example:
        >>> spot = torch.zeros(1, 1, 5, 5)
        >>> spot[..., 2, 2] = 1
        >>> float(median(spot).max())
        0.0
    """
    height, width = x.shape[-2:]
    padded = functional.pad(x.reshape(-1, 1, height, width), (1, 1, 1, 1), mode="reflect")
    shifted = [padded[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return torch.stack(shifted).median(0).values.reshape(x.shape)
