"""From stored bytes to what a module eats: channels first, scaled to [0, 1], normalised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seepage.data.folder import DataBroken, read_arrays
from seepage.spec import DataSpec, Examples

__all__ = ["head_and_tail", "image_examples", "read_images"]


def image_examples(images: NDArray[Any], labels: NDArray[Any], spec: DataSpec) -> Examples:
    """Bytes of shape (n, height, width[, channels]) and class numbers as normalised examples.

    Example:
        >>> spec = DataSpec((1, 2, 2), classes=10, mean=(0.5,), std=(0.5,))
        >>> image_examples(np.full((3, 2, 2), 255, np.uint8), np.arange(3), spec).x.unique()
        tensor([1.])
    """
    if images.dtype != np.uint8:
        raise DataBroken(f"expected images of type uint8, got {images.dtype}")
    if images.ndim == 3:
        images = images[..., None]
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(255)  # (n, c, h, w)
    if pixels.shape[1:] != spec.shape:
        raise DataBroken(f"expected images of shape {spec.shape} (channels first), got {tuple(pixels.shape[1:])}")
    if len(labels) != len(images):
        raise DataBroken(f"expected one label per image, got {len(labels)} labels for {len(images)} images")
    y = torch.from_numpy(labels.astype(np.int64))
    if spec.classes is not None and len(y) and not 0 <= int(y.min()) <= int(y.max()) < spec.classes:
        raise DataBroken(f"expected labels 0 to {spec.classes - 1}, got {int(y.min())} to {int(y.max())}")
    return Examples(spec.normalise(pixels), y)


def read_images(dataset: str, folder: Path, file: str, spec: DataSpec) -> Examples:
    """The arrays `images` and `labels` of an npz file as normalised examples."""
    images, labels = read_arrays(dataset, folder, file, ("images", "labels"))
    return image_examples(images, labels, spec)


def head_and_tail(examples: Examples, share: float = 0.9) -> tuple[Examples, Examples]:
    """The first `share` for training and the rest for testing, for files that come in one piece.

    Example:
        >>> head, tail = head_and_tail(Examples(torch.zeros(10, 2), torch.zeros(10)))
        >>> len(head), len(tail)
        (9, 1)
    """
    cut = round(share * len(examples))
    return examples[:cut], examples[cut:]
