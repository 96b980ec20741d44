"""The VGG-7 of Gradient Obfuscation Gives a False Sense of Security (yue2023), without batch normalisation."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from seepage.models.shapes import activation_named, channels, flat_size, outputs
from seepage.spec import DataSpec

__all__ = ["vgg7"]


def vgg7(spec: DataSpec, *, width: int = 128, hidden: int = 1024, activation: str = "relu") -> nn.Module:
    """Three pairs of 3 × 3 convolutions (128, 256, 512), max-pooling after each pair, 1024 hidden units.

    Args:
        spec: 3 × 128 × 128 gives the paper's 131 072 inputs of the first linear layer.
        width: channels of the first pair; each later pair has twice as many.
        hidden: units of the first linear layer.
        activation: see `seepage.models.shapes.ACTIVATIONS`.
    """
    if width < 1 or hidden < 1:
        raise ValueError(f"expected `width` and `hidden` of 1 or more, got {width} and {hidden}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inside = channels(spec)
    for pair, wider in enumerate((width, 2 * width, 4 * width), 1):
        for half in "ab":
            layers[f"conv{pair}{half}"] = nn.Conv2d(inside, wider, 3, padding=1)
            layers[f"act{pair}{half}"] = activation_named(activation)
            inside = wider
        layers[f"pool{pair}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    size = flat_size(nn.Sequential(layers), spec)
    layers["linear1"] = nn.Linear(size, hidden)
    layers["act4"] = activation_named(activation)
    layers["linear2"] = nn.Linear(hidden, outputs(spec))
    return nn.Sequential(layers)
