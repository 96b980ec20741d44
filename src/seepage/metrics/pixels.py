"""How near a guessed image is to the true one, pixel by pixel and window by window.

PSNR and MSE in their textbook form; SSIM of Wang, Bovik, Sheikh and Simoncelli, 2004,
"Image Quality Assessment: From Error Visibility to Structural Similarity", https://doi.org/10.1109/TIP.2003.819861.

Every function takes stacks of raw pixels (n, c, h, w) with the range they live in, and gives one value per image.
The guess is clipped to the range first, but in `unclipped_psnr`, because anybody who looks at it would do so. A guess
with a value that is not finite scores NaN: a diverged attack has found nothing, whatever clipping would make of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["PSNR_CAP", "clip", "mse", "psnr", "ssim", "structural_similarity", "unclipped_psnr"]

PSNR_CAP = 100.0
"""Largest PSNR that is reported, in dB: a smaller error is rounding of float32, and a table cannot hold infinity."""

WINDOW = 11
"""Side of the Gaussian window of SSIM, as in the paper."""

SIGMA_PER_RADIUS = 0.3
"""Width of the Gaussian for a window of radius 1; the paper's window has radius 5 and sigma 1.5."""


def _check(guess: Tensor, truth: Tensor) -> None:
    if guess.ndim != 4 or guess.shape != truth.shape:
        raise ValueError(
            "expected `guess` and `truth` of one shape (n, channels, height, width), "
            f"got {tuple(guess.shape)} and {tuple(truth.shape)}; pair them with `seepage.metrics.matching.match`"
        )


def clip(guess: Tensor, low: float, high: float) -> Tensor:
    """The nearest values inside the range; values that are not finite become NaN.

    Args:
        guess: raw values, any shape.
        low: smallest raw value.
        high: largest raw value.

    Example:
        >>> clip(torch.tensor([-1.0, 0.25, 7.0, float("inf")]), 0.0, 1.0)
        tensor([0.0000, 0.2500, 1.0000,    nan])
    """
    return torch.where(guess.isfinite(), guess.clamp(low, high), torch.nan)


def mse(guess: Tensor, truth: Tensor, low: float, high: float) -> Tensor:
    """Mean squared error per image, in units of the squared range: 0 is equal, 1 is black against white.

    Args:
        guess: raw pixels (n, c, h, w); clipped to the range first.
        truth: raw pixels (n, c, h, w), taken as they are.
        low: smallest raw value.
        high: largest raw value.

    Returns:
        One value per image (n,), in double precision.

    Example:
        >>> mse(torch.full((1, 1, 4, 4), 128.0), torch.zeros(1, 1, 4, 4), 0, 255).item()
        0.2519646289888504
    """
    _check(guess, truth)
    error = (clip(guess.double(), low, high) - truth.double()) / (high - low)
    return error.square().mean(dim=(1, 2, 3))


def psnr(guess: Tensor, truth: Tensor, low: float, high: float) -> Tensor:
    """Peak signal-to-noise ratio per image in dB, with the range as the peak.

    Args:
        guess: raw pixels (n, c, h, w); clipped to the range first, which can only raise the value.
        truth: raw pixels (n, c, h, w).
        low: smallest raw value.
        high: largest raw value.

    Returns:
        One value per image (n,), at most `PSNR_CAP`, which is also what identical images get.

    Example:
        >>> psnr(torch.full((1, 1, 4, 4), 0.1), torch.zeros(1, 1, 4, 4), 0.0, 1.0).round(decimals=4).item()
        20.0
        >>> psnr(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4), 0.0, 1.0).item()
        100.0
    """
    return (-10 * mse(guess, truth, low, high).log10()).clamp(max=PSNR_CAP)


def unclipped_psnr(guess: Tensor, truth: Tensor, low: float, high: float) -> Tensor:
    """PSNR of the guess as it is, which some papers have in their tables: at most what `psnr` says.

    Args:
        guess: raw pixels (n, c, h, w), taken as they are.
        truth: raw pixels (n, c, h, w).
        low: smallest raw value.
        high: largest raw value.

    Returns:
        One value per image (n,), at most `PSNR_CAP`; NaN where the guess is not finite.

    Example:
        >>> beyond = torch.full((1, 1, 4, 4), -0.1)
        >>> [f(beyond, torch.zeros(1, 1, 4, 4), 0.0, 1.0).round(decimals=4).item() for f in (unclipped_psnr, psnr)]
        [20.0, 100.0]
    """
    _check(guess, truth)
    error = ((guess.double() - truth.double()) / (high - low)).square().mean(dim=(1, 2, 3))
    return torch.where(error.isfinite(), (-10 * error.log10()).clamp(max=PSNR_CAP), torch.nan)


def ssim(guess: Tensor, truth: Tensor, low: float, high: float) -> Tensor:
    """Structural similarity per image: 1 is equal, about 0 is unrelated.

    The paper's Gaussian window (11 pixels, sigma 1.5) and constants (0.01, 0.03), averaged over the windows that lie
    inside the image and over channels, as scikit-image does with `gaussian_weights=True`.

    Args:
        guess: raw pixels (n, c, h, w); clipped to the range first.
        truth: raw pixels (n, c, h, w).
        low: smallest raw value; both images are shifted so that it is 0, as the constants expect.
        high: largest raw value.

    Returns:
        One value per image (n,).

    Note:
        Images smaller than the window get the largest odd window that fits, with sigma shrunk in proportion; their
        values compare with those of other images of that size only. Below 3 pixels a window holds no structure and
        the value is NaN.

    Example:
        >>> stripes = torch.arange(16.0).remainder(2).expand(1, 1, 16, 16)
        >>> ssim(stripes, stripes, 0.0, 1.0).item()
        1.0
        >>> ssim(1 - stripes, stripes, 0.0, 1.0).round(decimals=4).item()
        -0.9964
    """
    _check(guess, truth)
    shown = (clip(guess.double(), low, high) - low) / (high - low)
    return structural_similarity(shown, (truth.double() - low) / (high - low))


def structural_similarity(guess: Tensor, truth: Tensor, data_range: float = 1.0) -> Tensor:
    """The formula behind `ssim`, for pixels as they stand.

    Args:
        guess: (n, c, h, w), not clipped.
        truth: (n, c, h, w).
        data_range: the range that the two constants are made for.

    Returns:
        One value per image (n,).

    Example:
        >>> black, white = torch.zeros(1, 1, 16, 16).double(), torch.ones(1, 1, 16, 16).double()
        >>> structural_similarity(black, white).round(decimals=4).item()
        0.0001
    """
    _check(guess, truth)
    radius = (min(WINDOW, *guess.shape[-2:]) - 1) // 2
    if radius == 0 or len(guess) == 0:
        return torch.full((len(guess),), math.nan, dtype=torch.float64, device=guess.device)
    # One pass for all five means; a window that is a product of two needs 22 multiplications instead of 121.
    means = _windowed(torch.stack([guess, truth, guess**2, truth**2, guess * truth]), radius)
    m, n, mm, nn, mn = means
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    alike = (2 * m * n + c1) * (2 * (mn - m * n) + c2)
    similarity: Tensor = alike / ((m**2 + n**2 + c1) * (mm - m**2 + nn - n**2 + c2))
    return similarity.mean(dim=(1, 2, 3))


def _windowed(x: Tensor, radius: int) -> Tensor:
    """Gaussian means over all windows that lie inside of the image."""
    reach = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-((reach / (SIGMA_PER_RADIUS * radius)) ** 2) / 2)
    weights = weights / weights.sum()
    for axis in (-2, -1):
        inside = x.shape[axis] - 2 * radius
        x = sum((w * x.narrow(axis, i, inside) for i, w in enumerate(weights.tolist())), start=x.new_zeros(()))
    return x
