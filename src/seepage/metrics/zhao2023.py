"""The numbers of one paper as its released code computes them, for comparison with its tables and nothing else.

Zhao, Luo and Ding, 2023, "Deep Leakage from Model in Federated Learning" (https://arxiv.org/abs/2206.04887), section
5.1. Guesses are not clipped here, because the paper's are not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.metrics.perceptual import lpips
from seepage.metrics.pixels import structural_similarity, unclipped_psnr
from seepage.perceptual import LpipsWeights

__all__ = ["STD", "THRESHOLD", "lpips_zhao2023", "psnr_zhao2023", "ssim_zhao2023", "table_zhao2023"]

STD = (0.2673342823982239, 0.2564384639263153, 0.2761504650115967)
"""Deviation of CIFAR-100 per channel; the released code has these numbers and no others, whatever the data."""

THRESHOLD = 30.0
"""In dB of `psnr_zhao2023`, from which on the paper calls an image recovered; 18.5 dB of the usual PSNR."""

SMALLEST_SIDE = 32
"""Of an image that goes through AlexNet as it is; smaller ones, which the paper does not have, are enlarged to it."""

_OFFSET = -20 * sum(math.log10(std) for std in STD) / len(STD)


def psnr_zhao2023(guess: Tensor, truth: Tensor) -> Tensor:
    """PSNR in dB with the peak 1/std instead of 1, mean over channels: 11.5 dB above the usual one.

    Args:
        guess: pixels in units of their range (n, c, h, w).
        truth: pixels in [0, 1] (n, c, h, w).

    Returns:
        One value per image (n,), capped so that a table can hold it; NaN where the guess is not finite.

    Example:
        >>> psnr_zhao2023(torch.full((1, 3, 4, 4), 0.1), torch.zeros(1, 3, 4, 4)).round(decimals=1).item()
        31.5
    """
    return unclipped_psnr(guess, truth, 0.0, 1.0) + _OFFSET


def ssim_zhao2023(guess: Tensor, truth: Tensor) -> Tensor:
    """SSIM told that pixels range to 255 although they range to 1.

    The constants that keep SSIM from dividing by nothing grow with the square of that range, to 6.5 and 58.5, and
    drown the means and variances of pixels that are at most 1: any two images score nearly 1, black and white 0.87.

    Args:
        guess: pixels in units of their range (n, c, h, w).
        truth: pixels in [0, 1] (n, c, h, w).

    Example:
        >>> ssim_zhao2023(torch.zeros(1, 1, 16, 16), torch.ones(1, 1, 16, 16)).round(decimals=3).item()
        0.867
    """
    return structural_similarity(guess.double(), truth.double(), data_range=255.0)


def lpips_zhao2023(guess: Tensor, truth: Tensor, weights: LpipsWeights) -> Tensor:
    """LPIPS of pixels in [0, 1] where the network expects them in [−1, 1], and not enlarged.

    Args:
        guess: pixels in units of their range (n, c, h, w); clipped to [−1, 1].
        truth: pixels in [0, 1] (n, c, h, w).
        weights: from `seepage.perceptual.load_lpips`.
    """
    return lpips(guess, truth, -1.0, 1.0, weights, smallest_side=SMALLEST_SIDE)


def table_zhao2023(values: Tensor, psnr_values: Tensor) -> Tensor:
    """What each image adds to a mean of the paper's table: its value if it was recovered, else nothing.

    The paper sums over recovered images and divides by all: a mean of PSNR or SSIM falls with every failure, and one
    of LPIPS, where less is better, falls too.

    Args:
        values: of any metric (n,).
        psnr_values: `psnr_zhao2023` of the same images (n,).

    Example:
        >>> table_zhao2023(torch.tensor([0.1, 0.5]), torch.tensor([45.0, float("nan")]))
        tensor([0.1000, 0.0000])
    """
    return torch.where(psnr_values >= THRESHOLD, values, 0)
