"""Operations in the words that a compiler fuses best: what convolutions of many lanes are made of, written for it anew.

Inductor fuses whatever is written out of elementwise operations and shifted reads. Left to itself, it adds patches up
by atomic operations, computes a pooled image anew for each of the nine patches that a pixel is in, and hands outer
products, which are nothing but the writing of their result, to a routine for products of large matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["FUSED", "is_short"]

aten = torch.ops.aten

SHORT = 12  # columns and rows between two matrices: so few are read from a cache as fast as their sum is written


def windows(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """`unfold` of an image in memory: strides make a compiler put it there, where it would compute it for each window.

    Example:
        >>> windows(torch.arange(4.0), 0, 2, 1)
        tensor([[0., 1.],
                [1., 2.],
                [2., 3.]])
    """
    shape, strides = [*x.shape], [*x.stride()]
    shape[axis] = (shape[axis] - size) // step + 1
    strides[axis] *= step
    return x.as_strided([*shape, size], [*strides, x.stride(axis)], x.storage_offset())


def gathered(
    patches: Tensor, image: list[int], kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> Tensor:
    """`col2im` as a sum of shifted slices.

    Example:
        >>> gathered(torch.ones(1, 2, 3), [1, 4], [1, 2], [1, 1], [0, 0], [1, 1])
        tensor([[[[1., 2., 2., 1.]]]])
    """
    sizes = zip(image, kernel, dilation, padding, stride, strict=True)
    places = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in sizes]
    entries = patches.reshape(*patches.shape[:-2], -1, *kernel, *places)
    terms = []
    for at in itertools.product(*map(range, kernel)):
        term, margins = entries[..., at[0], at[1], :, :], []
        for axis in (-1, -2):
            if stride[axis] > 1:  # zeros between the places
                gaps = (0, 0) * (-1 - axis) + (0, stride[axis] - 1)
                term = functional.pad(term.unflatten(axis, (-1, 1)), gaps).flatten(axis - 1, axis)
            before = at[axis] * dilation[axis] - padding[axis]
            margins += [before, image[axis] - before - term.shape[axis]]
        terms.append(functional.pad(term, margins))
    return kept(sum(terms[1:], start=terms[0]))


def as_sum(a: Tensor, b: Tensor) -> Any:
    """A product of matrices with few columns and rows between them as a sum, which fuses with what it is added to.

    Returns:
        The product, or `NotImplemented` where it is better left a product.

    Example:
        >>> as_sum(torch.ones(1, 30, 2), torch.ones(1, 2, 30)).unique()
        tensor([2.])
    """
    (_, rows, short), columns = a.shape, b.shape[2]
    if not is_short(rows, short, columns):
        return NotImplemented
    a, b = kept(a), kept(b)
    terms = [a[:, :, k, None] * b[:, k, None] for k in range(short)]
    total = sum(terms[1:], start=terms[0])
    # A layer's gradient is added to its weights and looked at nowhere else; the output of a convolution is.
    outer = rows * columns > 4 * short * (rows + columns)
    return total if outer else kept(total)


def is_short(rows: int, between: int, columns: int) -> bool:
    """Whether a product of matrices is larger than what it is made of, and few products are added up in each entry.

    Example:
        >>> is_short(30, 2, 30), is_short(2, 30, 2)
        (True, False)
    """
    return between <= SHORT and rows * columns > between * (rows + columns)


def kept(x: Tensor) -> Tensor:
    """The same tensor, in memory of its own: a compiler does not compute it anew for each of its uses.

    Example:
        >>> kept(torch.ones(2, 3).mT).stride()
        (2, 1)
    """
    x = x.clone(memory_format=torch.contiguous_format)
    return x.as_strided(x.shape, x.stride(), 0)


FUSED: dict[Any, Callable[..., Any]] = {
    aten.unfold.default: windows,
    aten.col2im.default: gathered,
    aten.bmm.default: as_sum,
}
