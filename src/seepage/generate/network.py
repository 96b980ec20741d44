"""A small class-conditional generator, and the encoder that it learns with: a variational autoencoder.

Kingma and Welling, 2014, "Auto-encoding variational Bayes" (https://arxiv.org/abs/1312.6114), given the class as in
Sohn, Lee and Yan, 2015, "Learning structured output representation using deep conditional generative models". A GAN
needs more images than an attacker may have: with one image of each class a judge learns them by heart. This one learns
from a thousand images, and makes blurred ones.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PictureDecoder", "PictureEncoder"]

WIDTHS = (24, 48, 80, 112, 160, 192)
"""Channels at full size, half of it, and so on; those of further halvings are as the last."""

BEGIN = 4  # height and width of the first map


def _widths(side: int) -> list[int]:
    """From coarse to fine."""
    halvings = (side // BEGIN).bit_length() - 1
    if halvings < 1 or BEGIN * 2**halvings != side:
        raise ValueError(f"expected a side of 8, 16, 32, 64, …, got {side}")
    return [WIDTHS[min(level, len(WIDTHS) - 1)] for level in range(halvings, -1, -1)]


class _Up(nn.Module):
    """Twice the size, with the class and the latent numbers told again as scale and shift of each channel."""

    def __init__(self, before: int, after: int, told: int) -> None:
        super().__init__()
        self.tell = nn.Linear(told, 2 * before)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        scale, shift = self.tell(told)[..., None, None].chunk(2, 1)
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        out: Tensor = self.second(functional.gelu(self.first(functional.gelu((1 + scale) * x + shift))))
        skipped: Tensor = self.skip(x)
        return skipped + out


class PictureDecoder(nn.Module):
    """Standard normal numbers and a class to an image: the generator.

    Args:
        classes: how many classes.
        side: height and width of an image: 8, 16, 32, ….
        latent: numbers that an image is made of, beside its class.

    Example:
        >>> net = PictureDecoder(10, 32)
        >>> net(torch.zeros(2, net.latent), torch.tensor([3, 4])).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, classes: int, side: int, latent: int = 128) -> None:
        super().__init__()
        self.latent, self.classes, self.side = latent, classes, side
        widths = _widths(side)
        self.kind = nn.Embedding(classes, latent // 2)
        told = latent + latent // 2
        self.begin = nn.Linear(told, widths[0] * BEGIN**2)
        self.up = nn.ModuleList(_Up(before, after, told) for before, after in pairwise(widths))
        self.last = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Images (n, 3, side, side) in [0, 1]."""
        told = torch.cat([z, self.kind(y)], 1)
        x = self.begin(told).reshape(len(z), -1, BEGIN, BEGIN)
        for layer in self.up:
            x = layer(x, told)
        return torch.sigmoid(self.last(functional.gelu(x)))


class PictureEncoder(nn.Module):
    """An image to the mean and the logarithm of the variance of its latent numbers; needed for training alone."""

    def __init__(self, side: int, latent: int = 128) -> None:
        super().__init__()
        widths = _widths(side)[::-1]
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1)]
        for before, after in pairwise(widths):
            layers += [nn.GELU(), nn.Conv2d(before, after, 4, stride=2, padding=1)]
        self.layers = nn.Sequential(*layers, nn.GELU(), nn.Flatten(), nn.Linear(widths[-1] * BEGIN**2, 2 * latent))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both (n, latent)."""
        mean, log_variance = self.layers(2 * images - 1).float().chunk(2, 1)
        return mean, log_variance.clamp(-12, 4)
