"""Residual networks: He et al., 2016 (https://arxiv.org/abs/1512.03385), sized as in torchvision and geiping2020."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.models.shapes import channels, choose, outputs
from seepage.spec import DataSpec

__all__ = ["RESNETS", "ResNet"]


def _group_norm(width: int) -> nn.Module:
    # Wu and He's 32 groups where the width allows it, never one channel alone: its deviation over 1 × 1 is zero.
    return nn.GroupNorm(math.gcd(32, max(1, width // 2)), width)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": _group_norm,
    "none": lambda width: nn.Identity(),
}
STEMS = {"small": (3, 1), "large": (7, 2)}  # kernel, stride
PADDINGS: dict[str, Literal["zeros", "circular"]] = {"zeros": "zeros", "circular": "circular"}


@dataclass(frozen=True)
class _Layers:
    """How convolutions and normalisations are made throughout one network."""

    norm: str
    padding: str

    def conv(self, inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        # A normalisation has its own offset; without one the convolution needs it.
        mode = choose("padding", self.padding, PADDINGS)
        bias = self.norm == "none"
        return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=bias, padding_mode=mode)

    def normalise(self, width: int) -> nn.Module:
        return choose("norm", self.norm, NORMS)(width)


class _Block(nn.Module):
    """A branch of convolutions, the way around it, and their sum."""

    def __init__(self, make: _Layers, branch: nn.Sequential, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(make.conv(inside, outside, 1, stride), make.normalise(outside))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.branch(x) + self.shortcut(x))
        return out


def _basic(make: _Layers, inside: int, width: int, stride: int) -> tuple[_Block, int]:
    """Two 3 × 3 convolutions; the block, and how many channels leave it."""
    branch = nn.Sequential(
        make.conv(inside, width, 3, stride),
        make.normalise(width),
        nn.ReLU(),
        make.conv(width, width, 3),
        make.normalise(width),
    )
    return _Block(make, branch, inside, width, stride), width


def _bottleneck(make: _Layers, inside: int, width: int, stride: int) -> tuple[_Block, int]:
    """1 × 1 down, 3 × 3 (with the stride, as torchvision has it), 1 × 1 up to four times the width."""
    branch = nn.Sequential(
        make.conv(inside, width, 1),
        make.normalise(width),
        nn.ReLU(),
        make.conv(width, width, 3, stride),
        make.normalise(width),
        nn.ReLU(),
        make.conv(width, 4 * width, 1),
        make.normalise(4 * width),
    )
    return _Block(make, branch, inside, 4 * width, stride), 4 * width


class ResNet(nn.Module):
    """A stem, stages of residual blocks of which each halves the image and doubles the width, and a linear layer.

    Args:
        block: basic or bottleneck.
        depths: blocks per stage.
        spec: images of any size.
        width: channels of the first stage.
        norm: `"batch"`, `"group"` or `"none"`.
        padding: `"zeros"` or `"circular"`.
        stem: `"small"` is 3 × 3 for images of 32 pixels or so; `"large"` is 7 × 7 with stride 2 for ImageNet.
        stem_pool: whether max-pooling follows a large stem, as it does in torchvision and does not in yue2023.
        pool: side of the average-pooled map before the linear layer; 8 in yue2023.
    """

    def __init__(
        self,
        block: Callable[[_Layers, int, int, int], tuple[_Block, int]],
        depths: tuple[int, ...],
        spec: DataSpec,
        *,
        width: int = 64,
        norm: str = "batch",
        padding: str = "zeros",
        stem: str = "small",
        stem_pool: bool = True,
        pool: int = 1,
    ) -> None:
        super().__init__()
        if width < 1 or pool < 1:
            raise ValueError(f"expected `width` and `pool` of 1 or more, got {width} and {pool}")
        make = _Layers(norm, padding)
        kernel, stride = choose("stem", stem, STEMS)
        self.conv = make.conv(channels(spec), width, kernel, stride)
        self.norm = make.normalise(width)
        self.relu = nn.ReLU()
        self.stem_pool = nn.MaxPool2d(3, 2, 1) if stem == "large" and stem_pool else nn.Identity()
        stages, inside = [], width
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                made, inside = block(make, inside, width * 2**stage, 2 if i == 0 and stage > 0 else 1)
                blocks.append(made)
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(pool)
        self.linear = nn.Linear(inside * pool**2, outputs(spec))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, or regression targets, of a batch of images."""
        x = self.stem_pool(self.relu(self.norm(self.conv(x))))
        out: Tensor = self.linear(torch.flatten(self.pool(self.stages(x)), 1))
        return out


# "20-4" is 20 layers, 4 times as wide as the 16 channels of the original networks for CIFAR.
RESNETS: dict[str, Callable[..., nn.Module]] = {
    "resnet20-4": partial(ResNet, _basic, (3, 3, 3), width=64),
    "resnet32-10": partial(ResNet, _basic, (5, 5, 5), width=160),
    "resnet18": partial(ResNet, _basic, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, _basic, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, _bottleneck, (3, 4, 6, 3)),
}
