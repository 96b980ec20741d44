"""The networks of Data Leakage in Federated Averaging (dimitrov2022): two convolutions, two linear layers."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from seepage.models.shapes import activation_named, channels, flat_size, outputs
from seepage.spec import DataSpec

__all__ = ["cnn_cifar", "cnn_femnist"]


def cnn_femnist(spec: DataSpec, *, activation: str = "relu") -> nn.Module:
    """Convolutions of 32 and 64 channels, 100 hidden units; 1 × 28 × 28 gives 3136 → 100 → 62.

    Note:
        Flax flattens channels last and PyTorch channels first; the two networks are equal up to the order of the
        inputs of the first linear layer.
    """
    return _cnn(spec, (32, 64), 100, activation)


def cnn_cifar(spec: DataSpec, *, activation: str = "relu") -> nn.Module:
    """Convolutions of 64 and 128 channels, 200 hidden units; 3 × 32 × 32 gives 8192 → 200 → 100."""
    return _cnn(spec, (64, 128), 200, activation)


def _cnn(spec: DataSpec, widths: tuple[int, int], hidden: int, activation: str) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = channels(spec)
    for i, wider in enumerate(widths, 1):
        layers[f"conv{i}"] = nn.Conv2d(width, wider, 3, padding=1)
        layers[f"act{i}"] = activation_named(activation)
        layers[f"pool{i}"] = nn.AvgPool2d(2)
        width = wider
    layers["flatten"] = nn.Flatten()
    size = flat_size(nn.Sequential(layers), spec)
    layers["linear1"] = nn.Linear(size, hidden)
    layers["act3"] = activation_named(activation)
    layers["linear2"] = nn.Linear(hidden, outputs(spec))
    return nn.Sequential(layers)
