"""Average pooling as a linear map whose derivatives are as fast as it is.

The kernel that torch has for the derivative of average pooling is five times slower than a copy on a GPU, and the
simulation of local training calls it six times a step. There pooling and its adjoint are a pair of functions that are
each other's derivative. On a CPU torch's own is six times slower than a copy and more in both directions, and a
product with a small matrix is not: each row of windows is one row of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LaneAvgPool2d"]

Window = tuple[int, int]


class _Pool(torch.autograd.Function):
    """Means over windows that tile the last two axes."""

    @staticmethod
    def forward(x: Tensor, window: Window) -> Tensor:
        pooled = functional.avg_pool2d(x.reshape(-1, *x.shape[-3:]), window)
        return pooled.reshape(*x.shape[:-3], *pooled.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: Tensor) -> None:
        ctx.window = inputs[1]

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(y, ctx.window), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, x: Tensor, _: None) -> Tensor:
        return _Pool.apply(x, ctx.window)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, window: Window) -> tuple[Tensor, int]:
        return _Pool.apply(x.movedim(in_dims[0], 0), window), 0  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """Each entry, divided by the size of a window, to every place of its window."""

    @staticmethod
    def forward(y: Tensor, window: Window) -> Tensor:
        *before, height, width = y.shape
        tall, wide = window
        share = (y / (tall * wide))[..., :, None, :, None].expand(*before, height, tall, width, wide)
        return share.reshape(*before, height * tall, width * wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: Tensor) -> None:
        ctx.window = inputs[1]

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> tuple[Tensor, None]:
        return _Pool.apply(x, ctx.window), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, y: Tensor, _: None) -> Tensor:
        return _Spread.apply(y, ctx.window)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], y: Tensor, window: Window) -> tuple[Tensor, int]:
        return _Spread.apply(y.movedim(in_dims[0], 0), window), 0  # type: ignore[no-untyped-call]


class LaneAvgPool2d(nn.Module):
    """A twin of an `nn.AvgPool2d` whose windows tile the image.

    Example:
        >>> x = torch.arange(25.0).reshape(1, 1, 5, 5)
        >>> bool((LaneAvgPool2d(nn.AvgPool2d(2))(x) == nn.AvgPool2d(2)(x)).all())
        True
    """

    def __init__(self, pool: nn.AvgPool2d) -> None:
        super().__init__()
        self.window = _pair(pool.kernel_size)

    @staticmethod
    def fits(pool: nn.AvgPool2d) -> bool:
        """Whether there is a twin: windows that overlap or reach over the border stay as they are."""
        tiles = _pair(pool.stride) == _pair(pool.kernel_size) and _pair(pool.padding) == (0, 0)
        plain = not pool.ceil_mode and pool.divisor_override is None
        return tiles and plain and type(pool).forward is nn.AvgPool2d.forward

    def forward(self, x: Tensor) -> Tensor:
        """What `nn.AvgPool2d` would give."""
        tall, wide = self.window
        height, width = x.shape[-2] // tall * tall, x.shape[-1] // wide * wide  # what is left over is not looked at
        x = x[..., :height, :width]
        if not _as_pair(x):
            rows = x.reshape(*x.shape[:-2], height // tall, tall * width)
            return rows @ _shares(width, self.window, x)
        pooled: Tensor = _Pool.apply(x, self.window)  # type: ignore[no-untyped-call]
        return pooled


def _as_pair(x: Tensor) -> bool:
    """Whether the pair of functions is the faster of the two ways."""
    return x.is_cuda


def _shares(width: int, window: Window, like: Tensor) -> Tensor:
    """What each of `width` entries in each row of a window gives to each window, (tall × width, windows)."""
    tall, wide = window
    own = torch.eye(width // wide, dtype=like.dtype, device=like.device).repeat_interleave(wide, 0)
    return own.repeat(tall, 1) / (tall * wide)


def _pair(size: int | tuple[int, int]) -> Window:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
