"""Linear and logistic regression."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from seepage.models.shapes import outputs
from seepage.spec import DataSpec

__all__ = ["linear"]


def linear(spec: DataSpec, *, bias: bool = True) -> nn.Module:
    """One linear layer: logistic regression under cross-entropy, linear regression under squared error.

    Args:
        spec: any shape.
        bias: whether there is an intercept.
    """
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(math.prod(spec.shape), outputs(spec), bias=bias))
    )
