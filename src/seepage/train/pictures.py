"""Images to learn from: a data set, a folder of files, or dead leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from seepage.data import DATASETS, load
from seepage.data.dead_leaves import dead_leaves
from seepage.streams import Stream

__all__ = ["DEAD_LEAVES", "PicturesMissing", "gather_pictures"]

DEAD_LEAVES = "dead-leaves"
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm"})


class PicturesMissing(ValueError):
    """There is nothing to learn from under that name."""


def gather_pictures(
    source: str, size: int, count: int | None, rng: Stream, device: torch.device, folder: Path | None
) -> Tensor:
    """Three-channel images as bytes, (n, 3, size, size), on the device.

    Args:
        source: `"dead-leaves"`, the name of a data set (its training half), or a folder of image files.
        size: height and width; images are scaled until they cover it, and their middle is taken.
        count: the most images; `None` is all there are, or 4096 dead leaves.
        rng: draws dead leaves.
        device: where the images are kept, and dead leaves painted.
        folder: of data sets.
    """
    if source == DEAD_LEAVES:
        # Painted in parts, because as bytes they take a quarter of the memory.
        wanted = count or 4096
        parts = [
            _as_bytes(dead_leaves(min(512, wanted - first), size, rng / first, device=device))
            for first in range(0, wanted, 512)
        ]
        return torch.cat(parts)
    if source in DATASETS:
        data = load(source, folder)
        if not data.spec.is_image:
            raise PicturesMissing(f"--images: expected a data set of images, got {source!r}, which is a table")
        x = data.train.x[:count]
        pixels = (data.spec.pixels(x) - data.spec.low) / (data.spec.high - data.spec.low)
        return torch.cat([_as_bytes(_fitted(part, size)) for part in pixels.split(512)]).to(device)
    home = Path(source)
    if not home.is_dir():
        raise PicturesMissing(
            f"--images: expected {DEAD_LEAVES!r}, a folder, or one of the data sets {sorted(DATASETS)}, got {source!r}"
        )
    files = sorted(f for f in home.rglob("*") if f.suffix.lower() in SUFFIXES)[:count]
    if not files:
        raise PicturesMissing(f"--images: expected files of type {sorted(SUFFIXES)} in {home}, got none")
    return torch.stack([_as_bytes(_fitted(_read(f)[None], size))[0] for f in files]).to(device)


def _read(file: Path) -> Tensor:
    from PIL import Image

    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    except OSError as error:
        raise PicturesMissing(f"--images: expected an image in {file}, got: {error}") from error
    return torch.from_numpy(pixels / 255).permute(2, 0, 1)


def _fitted(pixels: Tensor, size: int) -> Tensor:
    """Scaled so that the shorter side is `size`, and cut to the middle; grey becomes three channels."""
    height, width = pixels.shape[-2:]
    if min(height, width) != size:
        scale = size / min(height, width)
        sides = (max(size, round(height * scale)), max(size, round(width * scale)))
        pixels = functional.interpolate(pixels, sides, mode="bicubic", antialias=True, align_corners=False)
    top, left = (pixels.shape[-2] - size) // 2, (pixels.shape[-1] - size) // 2
    return pixels[..., top : top + size, left : left + size].expand(-1, 3, -1, -1)


def _as_bytes(pixels: Tensor) -> Tensor:
    return (255 * pixels.clamp(0, 1)).round().to(torch.uint8)
