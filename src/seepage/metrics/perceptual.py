"""How different two images look to a network: LPIPS with AlexNet, version 0.1, as a metric.

Zhang, Isola, Efros, Shechtman and Wang, 2018, "The Unreasonable Effectiveness of Deep Features as a Perceptual
Metric", https://arxiv.org/abs/1801.03924. The network itself is in `seepage.perceptual`, where attacks may use it too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.metrics.pixels import clip
from seepage.perceptual import SMALLEST_SIDE, LpipsWeights, perceptual_distance

__all__ = ["lpips"]


@torch.no_grad()
def lpips(
    guess: Tensor,
    truth: Tensor,
    low: float,
    high: float,
    weights: LpipsWeights,
    *,
    smallest_side: int = SMALLEST_SIDE,
) -> Tensor:
    """Perceptual distance per image: 0 is equal, unrelated photographs have about 0.7.

    Args:
        guess: raw pixels (n, c, h, w) with 1 or 3 channels; clipped to the range first. Not finite scores NaN.
        truth: raw pixels (n, c, h, w).
        low: smallest raw value.
        high: largest raw value.
        weights: from `load_lpips`; the work is done on their device.
        smallest_side: images with a shorter one are enlarged to it.

    Returns:
        One value per image (n,), on the device of the weights.

    Note:
        Grey images are repeated to three channels. Images whose shorter side is below 64 pixels are enlarged
        bilinearly until it is 64, because AlexNet's strides leave nothing of smaller ones; values for small images
        therefore compare only with values that were enlarged likewise.

    Example:
        >>> kernels = [torch.ones(2, before, side, side) for before, side in ((3, 11), (2, 5), (2, 3), (2, 3), (2, 3))]
        >>> toy = LpipsWeights(tuple((k, torch.zeros(2)) for k in kernels), (torch.ones(2),) * 5)
        >>> lpips(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8), 0.0, 1.0, toy).item()
        0.0
    """
    if guess.ndim != 4 or guess.shape != truth.shape or guess.shape[1] not in (1, 3):
        raise ValueError(
            "expected `guess` and `truth` of one shape (n, channels, height, width) with 1 or 3 channels, "
            f"got {tuple(guess.shape)} and {tuple(truth.shape)}; leave LPIPS out for other kinds of images"
        )
    like = weights.linears[0]
    if len(guess) == 0:
        return like.new_zeros(0)
    shown = clip(guess, low, high)
    # Strided windows can step over a pixel at the border, so NaN is remembered rather than left to spread.
    finite = shown.isfinite().flatten(1).all(dim=1).to(like.device)
    distance = perceptual_distance(shown.nan_to_num(nan=low), truth, low, high, weights, smallest_side)
    return torch.where(finite, distance, torch.nan)
