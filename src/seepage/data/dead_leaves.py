"""Pictures of nothing: leaves of random size and colour that cover each other.

Lee, Mumford and Huang, 2001, "Occlusion models for natural images" (https://doi.org/10.1023/A:1011109015675): with
radii of density r⁻³ such pictures have the edges and the spectrum of photographs. Achddou, Gousseau and Ladjal, 2021,
"Synthetic images as a regularity prior for image restoration neural networks" (https://arxiv.org/abs/2104.14373), train
restorers on them. They belong to nobody.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from seepage.streams import Stream

__all__ = ["dead_leaves"]

SOFT = 0.7  # pixels over which an edge goes from one leaf to the next


def dead_leaves(
    count: int,
    size: int,
    rng: Stream,
    *,
    leaves: int = 160,
    device: torch.device | str = "cpu",
    together: int = 256,
) -> Tensor:
    """Images in [0, 1], (count, 3, size, size).

    Each leaf is an ellipse or a rectangle of random place, size, angle, colour, shading and texture. An image draws its
    colours around a few of its own, and its brightness and contrast at last.

    Args:
        count: how many images.
        size: height and width.
        rng: what they depend on, together with the device.
        leaves: painted one over the other, the largest first.
        device: where they are made.
        together: images painted at a time.

    Example:
        >>> images = dead_leaves(2, 16, Stream.from_seed(0), leaves=10)
        >>> images.shape, bool((images >= 0).all() and (images <= 1).all())
        (torch.Size([2, 3, 16, 16]), True)
    """
    parts = [
        _paint(
            min(together, count - first), size, leaves, torch.Generator(device).manual_seed((rng / first).seed), device
        )
        for first in range(0, count, together)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, 3, size, size, device=device)


def _paint(n: int, size: int, leaves: int, rng: torch.Generator, device: torch.device | str) -> Tensor:
    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=rng, device=device)

    axis = torch.arange(size, device=device) + 0.5
    # Photographs are mostly shades of grey with a little colour.
    palette = uniform(n, 6, 1) + 0.2 * uniform(n, 1, 1) * torch.randn((n, 6, 3), generator=rng, device=device)
    textures = torch.stack([_texture(n, size, slope, rng, device) for slope in (0.7, 1.2, 1.7)])  # (3, n, 1, s, s)
    image = palette[:, 0, :, None, None].expand(n, 3, size, size)
    # Density r⁻³ between a pixel and the whole image, by inversion.
    least, most = 1.5, size / 1.5
    radius = (least**-2 - uniform(n, leaves) * (least**-2 - most**-2)) ** -0.5
    # Small ones alone would cover large ones: half of the leaves have any radius of the same number of octaves.
    log = math.log(least) + uniform(n, leaves) * (math.log(most) - math.log(least))
    radius = torch.where(uniform(n, leaves) < 0.5, radius, log.exp()).sort(1, descending=True).values
    everyone = torch.arange(n, device=device)
    for leaf in range(leaves):
        r = radius[:, leaf, None, None]
        x = axis[None, None, :] - uniform(n, 1, 1, high=size)
        y = axis[None, :, None] - uniform(n, 1, 1, high=size)
        angle, stretch = uniform(n, 1, 1, high=math.pi), uniform(n, 1, 1, low=0.3)
        along = x * angle.cos() + y * angle.sin()
        across = (y * angle.cos() - x * angle.sin()) / stretch
        round_ = (along.square() + across.square()).sqrt()
        square = torch.maximum(along.abs(), across.abs())
        edge = torch.where(uniform(n, 1, 1) < 0.6, round_, square)
        cover = torch.sigmoid((r - edge) / SOFT)[:, None]  # (n, 1, size, size)
        colour = palette[everyone, torch.randint(6, (n,), generator=rng, device=device)]
        colour = colour + 0.15 * torch.randn((n, 1), generator=rng, device=device)
        colour = colour + 0.04 * torch.randn((n, 3), generator=rng, device=device)
        shade = 0.25 * (uniform(n, 1, 1) - 0.5) * along / r  # a leaf is lit from somewhere
        grain = textures[torch.randint(3, (n,), generator=rng, device=device), everyone]
        strength = uniform(n, 1, 1, 1).square() * 0.2
        painted = colour[:, :, None, None] + shade[:, None] + strength * grain
        image = image + cover * (painted - image)
    contrast, light = uniform(n, 1, 1, 1, low=0.5, high=1.1), uniform(n, 1, 1, 1, low=-0.15, high=0.15)
    return (0.5 + contrast * (image - 0.5) + light).clamp(0, 1)


def _texture(n: int, size: int, slope: float, rng: torch.Generator, device: torch.device | str) -> Tensor:
    """Noise whose amplitude falls with frequency as f^−slope, of unit variance, (n, 1, size, size)."""
    noise = torch.randn((n, 1, size, size), generator=rng, device=device)
    down = torch.fft.fftfreq(size, device=device)[:, None]
    across = torch.fft.rfftfreq(size, device=device)[None]
    frequency = (down.square() + across.square()).sqrt().clamp(min=1 / size)
    shaped = torch.fft.irfft2(torch.fft.rfft2(noise) * frequency**-slope, s=(size, size))
    return functional.layer_norm(shaped, shaped.shape[1:])
