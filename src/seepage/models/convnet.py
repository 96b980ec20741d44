"""The ConvNet of Inverting Gradients (geiping2020, https://arxiv.org/abs/2003.14053)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from seepage.models.shapes import activation_named, channels, flat_size, outputs
from seepage.spec import DataSpec

__all__ = ["convnet"]

# Multiples of the width, one per 3 × 3 convolution; max-pooling of 3 follows the fifth and the eighth.
MULTIPLES = (1, 2, 2, 4, 4, 4, 4, 4)
POOLED = (5, 8)


def convnet(spec: DataSpec, *, width: int = 64, batch_norm: bool = True, activation: str = "relu") -> nn.Module:
    """Eight 3 × 3 convolutions with batch normalisation, max-pooling of 3 after the fifth and eighth, one linear layer.

    Args:
        spec: 3 × 32 × 32 gives the paper's 2304 inputs of the linear layer.
        width: channels of the first convolution; the last has four times as many.
        batch_norm: whether normalisation follows each convolution.
        activation: see `seepage.models.shapes.ACTIVATIONS`.
    """
    if width < 1:
        raise ValueError(f"expected `width` of 1 or more, got {width}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inside = channels(spec)
    for i, multiple in enumerate(MULTIPLES):
        layers[f"conv{i}"] = nn.Conv2d(inside, multiple * width, 3, padding=1)
        inside = multiple * width
        if batch_norm:
            layers[f"norm{i}"] = nn.BatchNorm2d(inside)
        layers[f"act{i}"] = activation_named(activation)
        if i + 1 in POOLED:
            layers[f"pool{i}"] = nn.MaxPool2d(3)
    layers["flatten"] = nn.Flatten()
    size = flat_size(nn.Sequential(layers), spec)
    layers["linear"] = nn.Linear(size, outputs(spec))
    return nn.Sequential(layers)
