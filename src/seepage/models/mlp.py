"""Multilayer perceptrons for tables, and for images laid flat."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from seepage.models.shapes import activation_named, outputs
from seepage.spec import DataSpec

__all__ = ["mlp"]


def mlp(
    spec: DataSpec,
    *,
    hidden: Sequence[int] = (256, 256, 256),
    activation: str = "relu",
    bias: bool = True,
    batch_norm: bool = False,
) -> nn.Module:
    """Linear layers with an activation between them; three of 256 units as in driouich2023 unless told otherwise.

    Args:
        spec: any shape.
        hidden: units of each hidden layer; zhao2023 uses `(32,)`.
        activation: see `seepage.models.shapes.ACTIVATIONS`.
        bias: of every linear layer.
        batch_norm: whether normalisation precedes each activation, the second variant of driouich2023.
    """
    if not isinstance(hidden, list | tuple) or any(units < 1 for units in hidden):
        raise ValueError(f"expected `hidden` to be a list of sizes of 1 or more such as [256, 256], got {hidden!r}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = math.prod(spec.shape)
    for i, units in enumerate(hidden, 1):
        layers[f"linear{i}"] = nn.Linear(width, units, bias=bias)
        if batch_norm:
            layers[f"norm{i}"] = nn.BatchNorm1d(units)
        layers[f"act{i}"] = activation_named(activation)
        width = units
    layers[f"linear{len(hidden) + 1}"] = nn.Linear(width, outputs(spec), bias=bias)
    return nn.Sequential(layers)
