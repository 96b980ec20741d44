"""The numbers of one paper as its released code computes them, for comparison with its figures and nothing else.

Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a false sense of security in federated learning"
(https://arxiv.org/abs/2206.04055), appendix B. Its LPIPS is the usual one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.metrics.pixels import PSNR_CAP

__all__ = ["psnr_yue2023", "ssim_yue2023"]

SHARES = (0.8, 0.1, 0.1)
"""Of brightness and the two colour differences in its SSIM."""


def psnr_yue2023(guess: Tensor, truth: Tensor) -> Tensor:
    """PSNR in dB of images rounded to bytes: the usual one but for rounding.

    Args:
        guess: pixels in [0, 1] (n, c, h, w).
        truth: pixels in [0, 1] (n, c, h, w).

    Example:
        >>> psnr_yue2023(torch.full((1, 3, 4, 4), 0.1), torch.zeros(1, 3, 4, 4)).round(decimals=2).item()
        19.83
    """
    error = (_bytes(guess) - _bytes(truth)).square().mean(dim=(1, 2, 3))
    values = (20 * torch.log10(torch.tensor(255.0).double()) - 10 * error.log10()).clamp(max=PSNR_CAP)
    return torch.where(error.isfinite(), values, torch.nan)


def ssim_yue2023(guess: Tensor, truth: Tensor) -> Tensor:
    """SSIM of one window that is the whole image, of brightness (0.8) and both colour differences (0.1 each).

    With one window it compares means, variances and the correlation of the whole images, to which edges hardly matter:
    blurred images score above 0.9.

    Args:
        guess: pixels in [0, 1] (n, c, h, w); one channel is brightness alone.
        truth: pixels in [0, 1] (n, c, h, w).

    Example:
        >>> stripes = torch.arange(16.0).remainder(2).expand(1, 1, 16, 16)
        >>> ssim_yue2023(stripes, stripes).item(), ssim_yue2023(1 - stripes, stripes).round(decimals=3).item()
        (1.0, -0.996)
    """
    left, right = _brightness_and_colour(_bytes(guess)), _brightness_and_colour(_bytes(truth))
    mean_left, mean_right = left.mean(dim=(2, 3)), right.mean(dim=(2, 3))  # (n, channels)
    apart_left, apart_right = left - mean_left[..., None, None], right - mean_right[..., None, None]
    power = apart_left.square().mean(dim=(2, 3)) + apart_right.square().mean(dim=(2, 3))
    common = (apart_left * apart_right).mean(dim=(2, 3))
    light, contrast = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = (2 * mean_left * mean_right + light) * (2 * common + contrast)
    values = values / ((mean_left.square() + mean_right.square() + light) * (power + contrast))
    shares = values.new_tensor(SHARES if values.shape[1] == 3 else (1.0,))
    return values @ shares


def _bytes(pixels: Tensor) -> Tensor:
    return (255 * pixels.double()).round()


def _brightness_and_colour(pixels: Tensor) -> Tensor:
    """Y, Cr and Cb as OpenCV has them; anything but three channels becomes its mean."""
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    red, green, blue = pixels.unbind(1)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    return torch.stack([light, 0.713 * (red - light) + 128, 0.564 * (blue - light) + 128], dim=1)
