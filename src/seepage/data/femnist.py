"""FEMNIST by writer: Caldas et al., 2018, LEAF (https://arxiv.org/abs/1812.01097)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seepage.data.dataset import Dataset
from seepage.data.folder import read_arrays
from seepage.data.images import image_examples
from seepage.spec import DataSpec

__all__ = ["load_femnist", "load_femnist_fewer", "load_femnist_others"]

FILE = "femnist_leaf_writers.npz"
# The numbers of dimitrov2022: black ink on a white ground, hence the mean close to 1.
SPEC = DataSpec((1, 28, 28), classes=62, mean=(0.9642384,), std=(0.1576784,))
LICENCE = "images: NIST Special Database 19, a work of the US government; LEAF: BSD-2-Clause"
SOURCE = "https://github.com/TalwalkarLab/leaf"
FEWEST = 50


def load_femnist(folder: Path) -> Dataset:
    """Writers with 50 images or more, split inside each writer as LEAF does; the owner is the writer.

    Note:
        LEAF stores one image of each writer twice, some pairs across train and test. The second copy is left out:
        it would be counted as a leak, or as a member that is none.
    """
    return _of_writers("femnist", folder, lambda images: images >= FEWEST)


def load_femnist_fewer(folder: Path) -> Dataset:
    """The writers whom `femnist` leaves out: the released code of dimitrov2022 attacks them like the others."""
    return _of_writers("femnist-fewer", folder, lambda images: images < FEWEST)


def load_femnist_others(folder: Path) -> Dataset:
    """Writers none of whom is in `femnist`: public data for an attacker; the last tenth of them is the test."""
    images, labels, writer, duplicate, classes = read_arrays(
        "femnist-others",
        folder,
        FILE,
        ("extra_images", "extra_labels", "extra_writer", "extra_duplicate", "classes"),
    )
    people = np.unique(writer)
    later = np.isin(writer, people[round(0.9 * len(people)) :])
    return _written("femnist-others", images, labels, writer, classes, ~duplicate & ~later, ~duplicate & later)


def _of_writers(name: str, folder: Path, wanted: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> Dataset:
    """Those of whom there are as many images, in both splits together, as `wanted` says."""
    images, labels, writer, split, duplicate, classes = read_arrays(
        name, folder, FILE, ("images", "labels", "writer", "split", "duplicate", "classes")
    )
    keep = ~duplicate & wanted(np.bincount(writer)[writer])
    return _written(name, images, labels, writer, classes, keep & (split == 0), keep & (split == 1))


def _written(
    name: str,
    images: NDArray[Any],
    labels: NDArray[Any],
    writer: NDArray[Any],
    classes: NDArray[Any],
    train: NDArray[np.bool_],
    test: NDArray[np.bool_],
) -> Dataset:
    return Dataset(
        name,
        SPEC,
        image_examples(images[train], labels[train], SPEC),
        image_examples(images[test], labels[test], SPEC),
        _owner(writer[train]),
        tuple(str(each) for each in classes),
        LICENCE,
        SOURCE,
        _owner(writer[test]),
    )


def _owner(writer: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(writer.astype(np.int64))
