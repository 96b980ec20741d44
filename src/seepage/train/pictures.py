"""Images to learn from: a data set, a folder of files, or dead leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from seepage.data import DATASETS, Dataset, load
from seepage.data.dead_leaves import dead_leaves
from seepage.streams import Stream

__all__ = ["DEAD_LEAVES", "PicturesMissing", "gather_classes", "gather_pictures"]

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
        return _of_data(_images_of(source, folder), size, count).to(device)
    return _of_files(_files(source, f"{DEAD_LEAVES!r}, a folder")[:count], size).to(device)


def gather_classes(
    source: str, size: int, count: int | None, device: torch.device, folder: Path | None
) -> tuple[Tensor, Tensor, int]:
    """Three-channel images as bytes (n, 3, size, size), their classes (n,), and how many classes there are.

    Args:
        source: the name of a data set (its training half), or a folder with one folder of image files for each class;
            classes are numbered in the order of their names.
        size: height and width, as in `gather_pictures`.
        count: the most images; of a folder, taken class by class in turn.
        device: where the images are kept.
        folder: of data sets.
    """
    if source in DATASETS:
        data = _images_of(source, folder)
        if not data.classes:
            raise PicturesMissing(f"--images: expected a data set with classes, got {source!r}, which has none")
        return _of_data(data, size, count).to(device), data.train.y[:count].to(device), len(data.classes)
    files = _files(source, "a folder")
    home = Path(source)
    names = sorted({f.relative_to(home).parts[0] for f in files if f.parent != home})
    if len(names) < 2:
        raise PicturesMissing(f"--images: expected a folder for each of at least two classes in {home}, got {names}")
    numbers = {name: number for number, name in enumerate(names)}
    turn: dict[str, int] = dict.fromkeys(names, 0)
    dealt: list[tuple[int, int, Path]] = []
    for file in files:
        if file.parent != home:
            name = file.relative_to(home).parts[0]
            dealt.append((turn[name], numbers[name], file))
            turn[name] += 1
    kept = sorted(dealt)[:count]
    labels = torch.tensor([number for _, number, _ in kept], device=device)
    return _of_files([file for _, _, file in kept], size).to(device), labels, len(names)


def _images_of(source: str, folder: Path | None) -> Dataset:
    data = load(source, folder)
    if not data.spec.is_image:
        raise PicturesMissing(f"--images: expected a data set of images, got {source!r}, which is a table")
    return data


def _of_data(data: Dataset, size: int, count: int | None) -> Tensor:
    pixels = (data.spec.pixels(data.train.x[:count]) - data.spec.low) / (data.spec.high - data.spec.low)
    return torch.cat([_as_bytes(_fitted(part, size)) for part in pixels.split(512)])


def _files(source: str, expected: str) -> list[Path]:
    home = Path(source)
    if not home.is_dir():
        raise PicturesMissing(
            f"--images: expected {expected}, or one of the data sets {sorted(DATASETS)}, got {source!r}"
        )
    files = sorted(f for f in home.rglob("*") if f.suffix.lower() in SUFFIXES)
    if not files:
        raise PicturesMissing(f"--images: expected files of type {sorted(SUFFIXES)} in {home}, got none")
    return files


def _of_files(files: Sequence[Path], size: int) -> Tensor:
    return torch.stack([_as_bytes(_fitted(_read(f)[None], size))[0] for f in files])


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
