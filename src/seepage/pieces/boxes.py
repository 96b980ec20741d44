"""Where inputs may lie."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.spec import DataSpec

__all__ = ["boxed"]


def boxed(spec: DataSpec, like: Tensor) -> Callable[[Tensor], Tensor]:
    """A projection to inputs whose raw values lie in the range of the data.

    Args:
        spec: the data.
        like: a tensor of the type and device that will be projected; the bounds are made once, because a copy from the
            host in every iteration could not be captured in a CUDA graph.

    Example:
        >>> boxed(DataSpec((2,), mean=(0.5,)), torch.zeros(1))(torch.tensor([-3.0, 0.25]))
        tensor([-0.5000,  0.2500])
    """
    lower, upper = spec.box(like)

    def project(x: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(x, upper), lower)

    return project
