"""LeNets of the gradient-inversion papers: Zhu et al., 2019 (sigmoid, 3 convolutions) and yue2023 (ReLU, 2)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from seepage.models.shapes import activation_named, channels, flat_size, outputs
from seepage.spec import DataSpec

__all__ = ["lenet_yue", "lenet_zhu"]


def lenet_zhu(spec: DataSpec, *, activation: str = "sigmoid") -> nn.Module:
    """Three 5 × 5 convolutions of 12 channels with strides 2, 2, 1, and one linear layer.

    The network of Deep Leakage from Gradients (https://arxiv.org/abs/1906.08935) in the form that geiping2020 attacks:
    smooth, so that second derivatives are informative. Its initialisation is U(−½, ½) for every parameter.

    Args:
        spec: 3 × 32 × 32 gives the paper's 768 inputs of the linear layer.
        activation: see `seepage.models.shapes.ACTIVATIONS`.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = channels(spec)
    for i, stride in enumerate((2, 2, 1), 1):
        layers[f"conv{i}"] = nn.Conv2d(width, 12, 5, stride, padding=2)
        layers[f"act{i}"] = activation_named(activation)
        width = 12
    layers["flatten"] = nn.Flatten()
    size = flat_size(nn.Sequential(layers), spec)
    layers["linear"] = nn.Linear(size, outputs(spec))
    return nn.Sequential(layers)


def lenet_yue(spec: DataSpec, *, activation: str = "relu", bias: bool = False) -> nn.Module:
    """Two 5 × 5 convolutions (32, 64), max-pooling after each, 512 hidden units.

    The LeNet of Gradient Obfuscation Gives a False Sense of Security (yue2023); as in their code, the linear layers
    have no bias.

    Args:
        spec: 3 × 128 × 128 gives the paper's 65 536 inputs of the first linear layer.
        activation: see `seepage.models.shapes.ACTIVATIONS`.
        bias: of the linear layers.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = channels(spec)
    for i, wider in enumerate((32, 64), 1):
        layers[f"conv{i}"] = nn.Conv2d(width, wider, 5, padding=2)
        layers[f"act{i}"] = activation_named(activation)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        width = wider
    layers["flatten"] = nn.Flatten()
    size = flat_size(nn.Sequential(layers), spec)
    layers["linear1"] = nn.Linear(size, 512, bias=bias)
    layers["act3"] = activation_named(activation)
    layers["linear2"] = nn.Linear(512, outputs(spec), bias=bias)
    return nn.Sequential(layers)
