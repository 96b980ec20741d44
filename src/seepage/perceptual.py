"""How different two images look to a network: LPIPS with AlexNet, version 0.1.

Zhang, Isola, Efros, Shechtman and Wang, 2018, "The Unreasonable Effectiveness of Deep Features as a Perceptual
Metric", https://arxiv.org/abs/1801.03924. The five convolutions of AlexNet and the five linear layers come from two
files that are checked by their SHA-256; nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

__all__ = [
    "ALEXNET_FILE",
    "LINEAR_FILE",
    "SHA256",
    "SMALLEST_SIDE",
    "LpipsWeights",
    "WeightsBroken",
    "WeightsMissing",
    "load_lpips",
    "perceptual_distance",
]

ALEXNET_FILE = "alexnet_features_imagenet.safetensors"
LINEAR_FILE = "lpips_linear_v0.1.safetensors"

SHA256 = {
    ALEXNET_FILE: "dad556f11d2a50ed4dc90e8eebf7ef8d3494e51dc5dda06d7972984533778242",
    LINEAR_FILE: "a2f7db3f2f0110ede5e1352b9be299e5d08e098214baa5dfae38e5e71f624c4e",
}
"""Of the weights themselves, names, types and shapes included, whatever the layout of the file that holds them."""

SMALLEST_SIDE = 64
"""Images with a shorter side are enlarged to it: AlexNet shrinks its input sixteenfold before its last three maps."""

CONVOLUTIONS = (0, 3, 6, 8, 10)
"""Where the convolutions stand in torchvision's `alexnet().features`, which the weight file follows."""

STRIDES = (4, 1, 1, 1, 1)
PADDINGS = (2, 2, 1, 1, 1)
POOLED_BEFORE = (1, 2)

# The mean and spread of ImageNet for inputs in [-1, 1], as the authors' `ScalingLayer` has them.
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)

TINY = 1e-10


_AGAIN = "the file is damaged or of another version: delete it and run `seepage fetch lpips`"


class WeightsBroken(ValueError):
    """The weights of LPIPS are not those that the metric was defined with."""


class WeightsMissing(FileNotFoundError):
    """The weights of LPIPS are not where they were looked for.

    Example:
        >>> try:
        ...     load_lpips("no/such/folder")
        ... except FileNotFoundError as error:
        ...     print(type(error).__name__)
        WeightsMissing
    """


@dataclass(frozen=True, eq=False)
class LpipsWeights:
    """AlexNet's convolutions and the weight of each of their channels in the distance.

    Args:
        convolutions: five pairs of kernel (out, in, k, k) and bias (out,).
        linears: five vectors (out,), the 1×1 layers that LPIPS learnt from human judgements.

    Example:
        >>> kernels = [torch.ones(2, before, side, side) for before, side in ((3, 11), (2, 5), (2, 3), (2, 3), (2, 3))]
        >>> toy = LpipsWeights(tuple((k, torch.zeros(2)) for k in kernels), (torch.ones(2),) * 5)
        >>> len(toy.to("cpu").linears)
        5
    """

    convolutions: tuple[tuple[Tensor, Tensor], ...]
    linears: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if len(self.convolutions) != 5 or len(self.linears) != 5:
            raise ValueError(
                f"expected 5 convolutions and 5 linear layers, got {len(self.convolutions)} and {len(self.linears)}"
            )

    def to(self, device: torch.device | str) -> LpipsWeights:
        """The same weights elsewhere; the distance is then computed there."""
        return LpipsWeights(
            tuple((kernel.to(device), bias.to(device)) for kernel, bias in self.convolutions),
            tuple(linear.to(device) for linear in self.linears),
        )


def _checked(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise WeightsBroken(f"expected {path} to be safetensors, got: {error}; {_AGAIN}") from error
    found = hashlib.sha256()
    for name in sorted(tensors):
        weights = tensors[name].contiguous()
        found.update(f"{name} {weights.dtype} {tuple(weights.shape)}\n".encode())
        found.update(weights.numpy().tobytes())
    if found.hexdigest() != SHA256[path.name]:
        raise WeightsBroken(
            f"expected weights with SHA-256 {SHA256[path.name]} in {path}, got {found.hexdigest()}; {_AGAIN}"
        )
    return tensors


def load_lpips(folder: str | Path) -> LpipsWeights:
    """Reads the weights from a data folder.

    Args:
        folder: where `ALEXNET_FILE` and `LINEAR_FILE` lie.

    Raises:
        WeightsMissing: if one of the files is not there.
        ValueError: if a file is not the one whose SHA-256 is known.

    Example:
        >>> try:
        ...     load_lpips("no/such/folder")
        ... except WeightsMissing as error:
        ...     print(str(error).split("; ")[1])
        run `seepage fetch lpips`, or name their folder with `--data DIR` or SEEPAGE_DATA
    """
    folder = Path(folder)
    missing = [name for name in SHA256 if not (folder / name).is_file()]
    if missing:
        raise WeightsMissing(
            f"expected the weights of LPIPS in {folder}, got no {' and no '.join(missing)}; "
            "run `seepage fetch lpips`, or name their folder with `--data DIR` or SEEPAGE_DATA"
        )
    alexnet, linear = _checked(folder / ALEXNET_FILE), _checked(folder / LINEAR_FILE)
    return LpipsWeights(
        tuple((alexnet[f"features.{place}.weight"], alexnet[f"features.{place}.bias"]) for place in CONVOLUTIONS),
        tuple(linear[f"alex.lin{depth}.model.1.weight"].flatten() for depth in range(len(CONVOLUTIONS))),
    )


def _prepared(pixels: Tensor, low: float, high: float, like: Tensor, smallest_side: int) -> Tensor:
    images = 2 * (pixels.to(like) - low) / (high - low) - 1
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    shortest = min(images.shape[-2:])
    if shortest < smallest_side:
        size = [round(side * smallest_side / shortest) for side in images.shape[-2:]]
        images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    # Channel by channel, because numbers made on the host cannot be part of a CUDA graph.
    return torch.stack([(images[:, i] - SHIFT[i]) / SCALE[i] for i in range(3)], 1)


def _features(images: Tensor, weights: LpipsWeights) -> list[Tensor]:
    """AlexNet's five maps after their rectifiers, each of unit length over channels."""
    maps, current = [], images
    for depth, (kernel, bias) in enumerate(weights.convolutions):
        if depth in POOLED_BEFORE:
            current = F.max_pool2d(current, kernel_size=3, stride=2)
        current = F.conv2d(current, kernel, bias, stride=STRIDES[depth], padding=PADDINGS[depth]).relu()
        maps.append(current / (current.square().sum(dim=1, keepdim=True).sqrt() + TINY))
    return maps


def perceptual_distance(
    left: Tensor, right: Tensor, low: float, high: float, weights: LpipsWeights, smallest_side: int = SMALLEST_SIDE
) -> Tensor:
    """Perceptual distance per image (n,), differentiable, of pixels as they stand.

    Args:
        left: raw pixels (n, c, h, w) with 1 or 3 channels.
        right: likewise.
        low: smallest raw value.
        high: largest raw value.
        weights: from `load_lpips`; the work is done on their device.
        smallest_side: images with a shorter one are enlarged to it.
    """
    like = weights.linears[0]
    distance = like.new_zeros(len(left))
    maps = (_features(_prepared(side, low, high, like, smallest_side), weights) for side in (left, right))
    for linear, one, other in zip(weights.linears, *maps, strict=True):
        distance = distance + torch.einsum("nchw,c->nhw", (one - other).square(), linear).mean(dim=(1, 2))
    return distance
