"""How exactly a GPU multiplies.

PyTorch lets convolutions on recent GPUs round their operands to TF32, ten bits of mantissa, unless told otherwise. A
client's update, and the small differences between simulated and observed updates that attacks live on, deserve all 23.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch

__all__ = ["Precision", "arithmetic"]

Precision: TypeAlias = Literal["fp32", "tf32"]
"""`"fp32"` is exact to float32; `"tf32"` is faster on GPUs that have it, and changes nothing elsewhere."""


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Within this context, products of float32 are computed with this precision.

    Example:
        >>> with arithmetic("fp32"):
        ...     torch.backends.cudnn.allow_tf32
        False
    """
    if precision not in ("fp32", "tf32"):
        raise ValueError(f"expected `precision` to be 'fp32' or 'tf32', got {precision!r}")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
