"""The post-processor of ROG: a U-Net that adds to a blurred image what it lacks.

Ronneberger, Fischer and Brox, 2015, "U-Net" (https://arxiv.org/abs/1505.04597), as a residual as in Yue et al., 2023,
"Gradient obfuscation gives a false sense of security in federated learning" (https://arxiv.org/abs/2206.04055),
appendix A.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.pieces.residual import ResidualBlock

__all__ = ["Enhancer", "enhance"]

WIDTHS = (32, 64, 128)
STEM = 2  # pixels along each axis that become channels: a quarter of the work, and nothing is lost


class Enhancer(nn.Module):
    """Three-channel images in [0, 1] to images of the same size, about a million parameters.

    Note:
        The released network of yue2023 begins with 5 × 5 convolutions at full size, normalises instances, and ends in
        tanh. Here pixels go into channels first, and nothing is normalised: instance normalisation takes out the
        brightness that the reconstruction has right.

    Example:
        >>> sum(p.numel() for p in Enhancer().parameters())
        1048908
    """

    def __init__(self) -> None:
        super().__init__()
        colours = 3 * STEM**2
        self.stem = nn.Conv2d(colours, WIDTHS[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Sequential(ResidualBlock(w), ResidualBlock(w)) for w in WIDTHS)
        self.narrower = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairwise(WIDTHS))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(WIDTHS))
        self.up = nn.ModuleList(nn.Sequential(ResidualBlock(w), ResidualBlock(w)) for w in WIDTHS[:-1])
        self.last = nn.Conv2d(WIDTHS[0], colours, 3, padding=1)
        # At first it changes nothing, which is a good guess already.
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Of (n, 3, height, width) with sides that 8 divides."""
        x = self.stem(functional.pixel_unshuffle(images, STEM))
        kept: list[Tensor] = []
        for level, blocks in enumerate(self.down):
            x = blocks(x)
            if level < len(self.narrower):
                kept.append(x)
                x = self.narrower[level](x)
        for level in reversed(range(len(kept))):
            x = self.up[level](self.wider[level](x) + kept[level])
        return images + functional.pixel_shuffle(self.last(x), STEM)


@torch.no_grad()
def enhance(net: Enhancer, pixels: Tensor) -> Tensor:
    """Images of any size with one or three channels and values in [0, 1], enhanced; values stay in that range.

    Example:
        >>> enhance(Enhancer(), torch.full((1, 1, 10, 13), 0.5)).shape
        torch.Size([1, 1, 10, 13])
    """
    grey = pixels.shape[1] == 1
    if pixels.shape[1] not in (1, 3):
        raise ValueError(f'expected images with 1 or 3 channels, got {pixels.shape[1]}; use `enhancer = "none"`')
    like = next(net.parameters())
    height, width = pixels.shape[-2:]
    multiple = STEM * 2 ** (len(WIDTHS) - 1)
    missing = (0, -width % multiple, 0, -height % multiple)
    whole = functional.pad(pixels.clamp(0, 1).to(like).expand(-1, 3, -1, -1), missing, mode="replicate")
    better = torch.cat([net(part) for part in whole.split(32)])[..., :height, :width].clamp(0, 1).to(pixels)
    return better.mean(1, keepdim=True) if grey else better
