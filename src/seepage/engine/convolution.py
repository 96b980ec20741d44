"""Convolution for many lanes: three bilinear maps that are closed under differentiation.

With output y, weight w and input x, a convolution y = C(x, w) has the derivatives x̄ = Cₓ(ȳ, w) and w̄ = C_w(x, ȳ). Each
of the three is bilinear, and the derivatives of each are the other two: gradients of any order, forwards and backwards,
never leave them. So it is enough to know how to compute the three for many lanes at once:

- a weight that all lanes share, such as the global model's, meets lanes × images in one plain convolution;
- a weight per lane meets its own images as a product of matrices over shifted slices of the input. Here `torch.vmap`
  would make a grouped convolution, for which cuDNN has no fast kernel;
- where one lane's product in TF32 fills a GPU by itself, lanes follow one another as plain convolutions, which need no
  slices. In float32 cuDNN's kernels are the slower ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LaneConv2d"]

Bars = tuple[Tensor | None, Tensor | None, None]
Mapped = tuple[Tensor, int]

ALONE = 1e9  # multiplications of one lane


@dataclass(frozen=True)
class Shape:
    """What a convolution needs to know beside its operands; padding is by zeros."""

    image: tuple[int, int]  # of the input
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        sizes = zip(self.image, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes)
        return height, width


# Everywhere x is (lanes, n, channels, height, width), y likewise, and w is (lanes or 1, out, in, *kernel).


class _Bilinear(torch.autograd.Function):
    """What the three maps have in common: both operands are needed again, whichever way one differentiates."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Shape], output: Tensor) -> None:
        first, second, ctx.shape = inputs
        ctx.set_materialize_grads(False)  # a direction along which an operand does not change costs no product
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)


class _Output(_Bilinear):
    """y = C(x, w)."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, shape: Shape) -> Tensor:
        if len(w) == 1:
            y = functional.conv2d(x.flatten(0, 1), w[0], None, shape.stride, shape.padding, shape.dilation)
            return y.reshape(*x.shape[:2], *y.shape[1:])
        if _alone(x, w.shape[1], x.shape[2], shape):
            convolve = functional.conv2d
            lanes = zip(x, w, strict=True)
            return torch.stack([convolve(a, b, None, shape.stride, shape.padding, shape.dilation) for a, b in lanes])
        apart = _apart(w.shape[1], x.shape[1], shape)
        return _images(_matrices(w, x.shape[1], apart) @ _patches(x, shape, apart), x.shape[1], shape.out, apart)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> Bars:
        x, w = ctx.saved_tensors
        return (
            _Input.apply(y, w, ctx.shape) if ctx.needs_input_grad[0] else None,  # type: ignore[no-untyped-call]
            _like(w, _Weight.apply(x, y, ctx.shape)) if ctx.needs_input_grad[1] else None,  # type: ignore[no-untyped-call]
            None,
        )

    @staticmethod
    def jvp(ctx: Any, x_dot: Tensor | None, w_dot: Tensor | None, _: None) -> Tensor | None:
        return _product_rule(_Output, ctx, x_dot, w_dot)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, shape: Shape) -> Mapped:
        return _folded(_Output, info.batch_size, in_dims, x, w, shape)


class _Input(_Bilinear):
    """x̄ = Cₓ(ȳ, w)."""

    @staticmethod
    def forward(y: Tensor, w: Tensor, shape: Shape) -> Tensor:
        if len(w) == 1:
            like = y.new_empty(1).expand(y.shape[0] * y.shape[1], w.shape[2], *shape.image)
            x = _plain_adjoint(y.flatten(0, 1), like, w[0], shape, of_input=True)
            return x.reshape(*y.shape[:2], *x.shape[1:])
        if _alone(y, w.shape[1], w.shape[2], shape):
            like = y.new_empty(1).expand(y.shape[1], w.shape[2], *shape.image)
            return torch.stack([_plain_adjoint(a, like, b, shape, of_input=True) for a, b in zip(y, w, strict=True)])
        apart = _apart(w.shape[1], y.shape[1], shape)
        return _overlaid(_matrices(w, y.shape[1], apart).mT @ _columns(y, apart), y.shape[1], shape, apart)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Bars:
        y, w = ctx.saved_tensors
        return (
            _Output.apply(x, w, ctx.shape) if ctx.needs_input_grad[0] else None,  # type: ignore[no-untyped-call]
            _like(w, _Weight.apply(x, y, ctx.shape)) if ctx.needs_input_grad[1] else None,  # type: ignore[no-untyped-call]
            None,
        )

    @staticmethod
    def jvp(ctx: Any, y_dot: Tensor | None, w_dot: Tensor | None, _: None) -> Tensor | None:
        return _product_rule(_Input, ctx, y_dot, w_dot)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], y: Tensor, w: Tensor, shape: Shape) -> Mapped:
        return _folded(_Input, info.batch_size, in_dims, y, w, shape)


class _Weight(_Bilinear):
    """w̄ = C_w(x, ȳ), one for each lane."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, shape: Shape) -> Tensor:
        if len(x) == 1 or _alone(x, y.shape[2], x.shape[2], shape):
            like = y.new_empty(1).expand(y.shape[2], x.shape[2], *shape.kernel)
            return torch.stack([_plain_adjoint(b, a, like, shape, of_input=False) for a, b in zip(x, y, strict=True)])
        apart = _apart(y.shape[2], x.shape[1], shape)
        w = _columns(y, apart) @ _patches(x, shape, apart).mT  # (lanes or lanes × n, out, in × kernel)
        w = w.unflatten(0, (len(x), -1)).sum(1) if apart else w
        return w.reshape(*w.shape[:2], x.shape[2], *shape.kernel)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Bars:
        x, y = ctx.saved_tensors
        return (
            _Input.apply(y, w, ctx.shape) if ctx.needs_input_grad[0] else None,  # type: ignore[no-untyped-call]
            _Output.apply(x, w, ctx.shape) if ctx.needs_input_grad[1] else None,  # type: ignore[no-untyped-call]
            None,
        )

    @staticmethod
    def jvp(ctx: Any, x_dot: Tensor | None, y_dot: Tensor | None, _: None) -> Tensor | None:
        return _product_rule(_Weight, ctx, x_dot, y_dot)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor, shape: Shape) -> Mapped:
        return _folded(_Weight, info.batch_size, in_dims, x, y, shape)


def _plain_adjoint(y: Tensor, x: Tensor, w: Tensor, shape: Shape, of_input: bool) -> Tensor:
    """Torch's own derivative of a convolution with respect to the input or to the weight, without lanes.

    Of the operand that is asked for, shape and type alone are looked at.
    """
    wanted = [of_input, not of_input, False]
    bars: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        y, x, w, None, shape.stride, shape.padding, shape.dilation, False, [0, 0], 1, wanted
    )
    return bars[0] if of_input else bars[1]


def _like(w: Tensor, bar: Tensor) -> Tensor:
    """The derivative of a weight that several lanes share is the sum of theirs."""
    return bar if len(w) == len(bar) else bar.sum(0, keepdim=True)


def _product_rule(kind: Any, ctx: Any, first_dot: Tensor | None, second_dot: Tensor | None) -> Tensor | None:
    first, second = ctx.saved_tensors
    terms = []
    if first_dot is not None:
        terms.append(kind.apply(first_dot, second, ctx.shape))
    if second_dot is not None:
        terms.append(kind.apply(first, second_dot, ctx.shape))
    return sum(terms[1:], start=terms[0]) if terms else None


def _folded(
    kind: Any, size: int, in_dims: tuple[int | None, ...], first: Tensor, second: Tensor, shape: Shape
) -> Mapped:
    """A mapped axis becomes more lanes; a weight without one stays shared."""
    inside = first.shape[0 if in_dims[0] is None else _after(in_dims[0])]  # lanes before this axis was mapped

    def fold(tensor: Tensor, dim: int | None) -> Tensor:
        mapped = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return mapped.expand(size, inside, *mapped.shape[2:]).flatten(0, 1)

    stays_shared = kind is not _Weight and in_dims[1] is None and len(second) == 1
    other = second if stays_shared else fold(second, in_dims[1])
    return kind.apply(fold(first, in_dims[0]), other, shape).unflatten(0, (size, -1)), 0


def _after(dim: int) -> int:
    """Where the axis of lanes lies in a tensor whose mapped axis is `dim`."""
    return 1 if dim == 0 else 0


def _alone(images: Tensor, out: int, inside: int, shape: Shape) -> bool:
    """Whether the products of one lane are so many that a GPU has nothing left to do for another."""
    (height, width), (rows, columns) = shape.out, shape.kernel
    products = images.shape[1] * height * width * rows * columns * out * inside
    return images.is_cuda and torch.backends.cudnn.allow_tf32 and products >= ALONE


# A lane's images lie side by side in one matrix, or `apart`, in one for each image. Apart, activations need not change
# their places in memory, but each image needs a copy of the weight.


def _apart(channels: int, n: int, shape: Shape) -> bool:
    """Whether copies of the weight are smaller than what they save: as many patches as there are places."""
    return n > 1 and channels <= shape.out[0] * shape.out[1]


def _matrices(w: Tensor, n: int, apart: bool) -> Tensor:
    """The weight of each lane, (lanes, out, in × kernel), or of each image, (lanes × n, …)."""
    w = w.flatten(2)
    return w[:, None].expand(-1, n, -1, -1).flatten(0, 1) if apart else w


def _columns(y: Tensor, apart: bool) -> Tensor:
    """Images as matrices, (lanes, channels, n × places) or (lanes × n, channels, places)."""
    return y.flatten(0, 1).flatten(2) if apart else y.transpose(1, 2).flatten(2)


def _images(columns: Tensor, n: int, size: tuple[int, int], apart: bool) -> Tensor:
    """The inverse of `_columns`, (lanes, n, channels, height, width)."""
    if apart:
        return columns.reshape(-1, n, columns.shape[1], *size)
    return columns.reshape(*columns.shape[:2], n, *size).transpose(1, 2)


def _patches(x: Tensor, shape: Shape, apart: bool) -> Tensor:
    """What the kernel sees at each place, (lanes, in × kernel, n × places) or (lanes × n, in × kernel, places)."""
    (vertical, horizontal) = shape.padding
    x = functional.pad(x, (horizontal, horizontal, vertical, vertical))
    for axis, size, stride, step in zip((3, 4), shape.kernel, shape.stride, shape.dilation, strict=True):
        x = x.unfold(axis, step * (size - 1) + 1, stride)[..., ::step]  # places there, the kernel's entries behind
    if apart:
        return x.permute(0, 1, 2, 5, 6, 3, 4).flatten(0, 1).flatten(1, 3).flatten(2)
    return x.permute(0, 2, 5, 6, 1, 3, 4).flatten(1, 3).flatten(2)


def _overlaid(patches: Tensor, n: int, shape: Shape, apart: bool) -> Tensor:
    """The adjoint of `_patches`: every patch is added to where it was taken from, (lanes, n, in, height, width)."""
    if not apart:
        lanes, rows = patches.shape[:2]
        patches = patches.reshape(lanes, rows, n, -1).transpose(1, 2).reshape(lanes * n, rows, -1)
    x = functional.fold(patches, shape.image, shape.kernel, shape.dilation, shape.padding, shape.stride)
    return x.reshape(-1, n, *x.shape[1:])


class LaneConv2d(nn.Module):
    """A twin of `nn.Conv2d` without groups that is fast when it is mapped over lanes.

    Args:
        conv: the layer, whose parameters are shared.
        everywhere: also on a CPU, where torch's own convolution is a third faster even as a grouped one.

    Example:
        >>> conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        >>> x = torch.ones(4, 3, 9, 9)
        >>> bool(torch.allclose(LaneConv2d(conv, everywhere=True)(x), conv(x), atol=1e-6))
        True
    """

    def __init__(self, conv: nn.Conv2d, everywhere: bool = False) -> None:
        super().__init__()
        self.everywhere = everywhere
        self.weight, self.bias = conv.weight, conv.bias
        self.kernel, self.stride, self.dilation = (
            (sizes[0], sizes[1]) for sizes in (conv.kernel_size, conv.stride, conv.dilation)
        )
        self.before: list[int] = []  # what is padded before the convolution itself, last axis first
        self.mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        self.padding = (0, 0)
        if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
            self.padding = (conv.padding[0], conv.padding[1])
        elif conv.padding != "valid":
            self.before = list(conv._reversed_padding_repeated_twice)

    @staticmethod
    def fits(conv: nn.Conv2d) -> bool:
        """Whether there is a twin: grouped convolutions and others' kinds of convolution stay as they are."""
        return conv.groups == 1 and type(conv).forward is nn.Conv2d.forward

    def forward(self, x: Tensor) -> Tensor:
        """What `nn.Conv2d` would give."""
        if x.dim() == 3:
            return self.forward(x[None])[0]
        if self.before:
            x = functional.pad(x, self.before, mode=self.mode)
        if not (x.is_cuda or self.everywhere):
            return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        image = (x.shape[-2], x.shape[-1])
        shape = Shape(image, self.kernel, self.stride, self.padding, self.dilation)
        # Not `[0]`, whose derivative fills a tensor with zeros first.
        y: Tensor = _Output.apply(x[None], self.weight[None], shape).squeeze(0)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias[:, None, None]
