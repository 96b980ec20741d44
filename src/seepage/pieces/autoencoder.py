"""A learnt representation of images: an autoencoder whose codes a search can move about in.

Yue et al., 2023, "Gradient obfuscation gives a false sense of security in federated learning"
(https://arxiv.org/abs/2206.04055), section 5.1: three autoencoders with 8192, 2048 and 512 numbers for an image of
128 × 128. The paper says nothing of their form; this one is ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from torch import Tensor, nn

from seepage.pieces.residual import ResidualBlock
from seepage.stored import Shelf, save_halved

__all__ = ["AUTOENCODERS", "CODES", "Autoencoder", "LatentSize", "load_autoencoder", "save_autoencoder"]

LatentSize: TypeAlias = Literal["S", "M", "L"]
"""512, 2048 or 8192 numbers for an image of 128 × 128."""

FACTORS: dict[str, int] = {"S": 16, "M": 8, "L": 4}
CODES = 8
WIDTHS = {4: 64, 8: 96, 16: 96}
"""Channels where one place stands for 4 × 4 pixels, and so on."""

AUTOENCODERS = Shelf("autoencoder", "autoencoders", "seepage train autoencoder")


class Autoencoder(nn.Module):
    """Three-channel images in [0, 1] to codes and back.

    Every channel of the codes of training images has mean ½ and standard deviation ¼, so that a search over them can
    begin and step as one over pixels does.

    Args:
        size: `"S"`, `"M"` or `"L"`: one place of the code stands for 16 × 16, 8 × 8 or 4 × 4 pixels and has eight
            numbers.

    Note:
        An image is a linear function of its code, and what a network adds to that: the linear part makes a search from
        random numbers well conditioned, and nothing saturates.

    Example:
        >>> import torch
        >>> net = Autoencoder("M").eval()
        >>> codes = net.encode(torch.rand(1, 3, 128, 128))
        >>> codes.shape, codes.numel(), net.decode(codes).shape
        (torch.Size([1, 8, 16, 16]), 2048, torch.Size([1, 3, 128, 128]))
    """

    def __init__(self, size: LatentSize) -> None:
        super().__init__()
        if size not in get_args(LatentSize):
            raise ValueError(f"expected a latent size of {list(get_args(LatentSize))}, got {size!r}")
        self.size: LatentSize = size
        self.factor = FACTORS[size]
        levels = [f for f in sorted(WIDTHS) if f <= self.factor]  # from fine to coarse
        into: list[nn.Module] = [nn.PixelUnshuffle(4), nn.Conv2d(3 * 16, WIDTHS[4], 3, padding=1)]
        out: list[nn.Module] = [nn.Conv2d(CODES, WIDTHS[self.factor], 3, padding=1)]
        for level in levels:
            if level > 4:
                into.append(nn.Conv2d(WIDTHS[level // 2], WIDTHS[level], 2, stride=2))
            into.append(ResidualBlock(WIDTHS[level]))
        for level in reversed(levels):
            out += [ResidualBlock(WIDTHS[level]) for _ in range(2 if level > 4 else 3)]
            if level > 4:
                out += [nn.Conv2d(WIDTHS[level], 4 * WIDTHS[level // 2], 1), nn.PixelShuffle(2)]
        last = nn.Conv2d(WIDTHS[4], 3 * 16, 3, padding=1)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        self.into = nn.Sequential(*into, nn.Conv2d(WIDTHS[self.factor], CODES, 1))
        self.normal = nn.BatchNorm2d(CODES, affine=False, momentum=0.02)
        self.plain = nn.Sequential(nn.Conv2d(CODES, 3 * self.factor**2, 1), nn.PixelShuffle(self.factor))
        self.out = nn.Sequential(*out, nn.GELU(), last, nn.PixelShuffle(4))

    def encode(self, images: Tensor) -> Tensor:
        """Codes (n, 8, height / factor, width / factor) of images whose sides the factor divides."""
        codes: Tensor = self.normal(self.into(2 * images - 1))
        return 0.5 + 0.25 * codes

    def decode(self, codes: Tensor) -> Tensor:
        """Images (n, 3, height, width), not clipped."""
        centred = 4 * (codes - 0.5)
        images: Tensor = 0.5 + self.plain(centred) + self.out(centred)
        return images

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """Images as they come back, from codes with an error where there is one."""
        codes = self.encode(images)
        return self.decode(codes if noise is None else codes + noise)


def load_autoencoder(name: str, like: Tensor) -> Autoencoder:
    """The autoencoder of a name that comes with Seepage, or from a file.

    Args:
        name: of the network, or path of a file that `seepage train autoencoder` made.
        like: a tensor of the type and device of the weights.

    Raises:
        WeightsNotFound: when there is neither.
        ValueError: when the file holds something else.
    """
    tensors, about = AUTOENCODERS.read(name)
    with AUTOENCODERS.explained(name):
        size = about["size"]
        if size not in FACTORS:
            raise KeyError(f"size {size!r}")
        net = Autoencoder(size)  # type: ignore[arg-type]  # looked at above
        net.load_state_dict(tensors)
    return net.to(like.device, like.dtype).eval().requires_grad_(False)


def save_autoencoder(net: Autoencoder, path: Path, about: dict[str, str]) -> None:
    """Write the weights, in half precision, with how they were made."""
    save_halved(net, path, {**about, "size": net.size})
