"""What two images have in common in words: the Jaccard similarity of the tags that a network gives them.

Jaccard, 1912, "The distribution of the flora in the alpine zone"; as a measure of what leaks: Yue, Jin, Wong, Baron and
Dai, 2023, "Gradient obfuscation gives a false sense of security in federated learning"
(https://arxiv.org/abs/2206.04055), section 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["NetworkTagger", "Tagger", "Tagging", "jaccard", "tag_jaccard"]

MEAN, SPREAD = 127 / 255, 128 / 255  # how EfficientNet-Lite is fed


class Tagger(Protocol):
    """Which tags images have."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Truth values (n, tags) of images (n, 1 or 3, height, width) in [0, 1]."""
        ...


@dataclass(frozen=True)
class Tagging:
    """How images are tagged.

    Args:
        name: `"efficientnet-lite0"`, or `package.module:function` that returns an `nn.Module` from images to scores
            of tags.
        weights: safetensors for that module's state dict.
        several: scores are of tags that are independent of each other (sigmoid) instead of classes that exclude each
            other (softmax).
        threshold: least probability of a tag.
        most: how many tags an image has at most; it has at least one.
        size: height and width that images are enlarged to.
        mean: of pixels in [0, 1], subtracted before the network.
        spread: divides what is left.

    Note:
        yue2023 has TResNet-M trained on Open Images: several, a threshold of 0.8 and at most 60 tags.
    """

    name: str = "efficientnet-lite0"
    weights: str | None = None
    several: bool = False
    threshold: float = 0.05
    most: int = 5
    size: int = 224
    mean: float = MEAN
    spread: float = SPREAD

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1 or self.most < 1 or self.size < 1 or self.spread <= 0:
            raise ValueError(
                "expected `threshold` in [0, 1], `most` and `size` of at least 1 and `spread` above 0, "
                f"got {self.threshold}, {self.most}, {self.size} and {self.spread}"
            )
        if ":" in self.name and self.weights is None:
            raise ValueError(f"expected `weights`, a file of safetensors, beside `name` = {self.name!r}, got none")


@dataclass(frozen=True, eq=False)
class NetworkTagger:
    """The tags to which a network gives the highest probabilities.

    Args:
        net: from images (n, 3, size, size) to scores (n, tags).
        how: knobs.

    Example:
        >>> tagger = NetworkTagger(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), Tagging(most=1, size=8))
        >>> tagger(torch.eye(3)[:, :, None, None].expand(3, 3, 4, 4)).long()
        tensor([[1, 0, 0],
                [0, 1, 0],
                [0, 0, 1]])
    """

    net: nn.Module
    how: Tagging

    @torch.no_grad()
    def probabilities(self, pixels: Tensor) -> Tensor:
        """Of each tag, (n, tags)."""
        like = next((p for p in self.net.parameters()), pixels.float())
        size = (self.how.size, self.how.size)
        images = pixels.to(like).expand(-1, 3, -1, -1)
        images = functional.interpolate(images, size, mode="bicubic", antialias=True, align_corners=False)
        scores = torch.cat([self.net((part - self.how.mean) / self.how.spread) for part in images.split(16)])
        return scores.sigmoid() if self.how.several else scores.softmax(1)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Truth values (n, tags)."""
        chances = self.probabilities(pixels)
        best = chances.topk(min(self.how.most, chances.shape[1]), 1)
        likely = best.values >= self.how.threshold
        likely[:, 0] = True
        return torch.zeros_like(chances, dtype=torch.bool).scatter(1, best.indices, likely)


def jaccard(left: Tensor, right: Tensor) -> Tensor:
    """Shared over all members of two sets (eq. 21 of yue2023), per row; two empty sets are alike.

    Args:
        left: truth values (n, members).
        right: likewise.

    Example:
        >>> jaccard(torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]]))
        tensor([0.3333])
    """
    either = (left | right).sum(1)
    return torch.where(either > 0, (left & right).sum(1) / either.clamp(min=1), 1.0)


def tag_jaccard(guess: Tensor, truth: Tensor, tagger: Tagger) -> Tensor:
    """Jaccard similarity of the tags of each pair of images; NaN where the guess is not finite.

    Args:
        guess: pixels in [0, 1] (n, c, h, w) with 1 or 3 channels.
        truth: likewise.
        tagger: tells which tags an image has.
    """
    finite = guess.isfinite().flatten(1).all(1)
    alike = jaccard(tagger(guess.nan_to_num()), tagger(truth))
    return torch.where(finite.to(alike.device), alike, torch.nan)
