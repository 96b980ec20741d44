"""Fashion-MNIST: Xiao, Rasul and Vollgraf, 2017 (https://arxiv.org/abs/1708.07747); a part of it ships with Seepage."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np

from seepage.data.dataset import Dataset
from seepage.data.images import image_examples, read_images
from seepage.spec import DataSpec

__all__ = ["BUNDLED", "load_bundled", "load_full"]

BUNDLED = "fashion_mnist_1000.npz"
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SPEC = DataSpec((1, 28, 28), classes=10, mean=(0.2860,), std=(0.3530,))
LICENCE = "MIT, copyright 2017 Zalando SE"
SOURCE = "https://github.com/zalandoresearch/fashion-mnist"


def load_bundled(folder: Path | None = None) -> Dataset:
    """The 1000 images inside the package: of each class the first 80 training and the first 20 test images.

    Args:
        folder: unused, so that every loader is called alike.

    Example:
        >>> data = load_bundled()
        >>> len(data.train), len(data.test), data.classes[data.train.y[0]]
        (800, 200, 'Ankle boot')
    """
    with (
        resources.files("seepage.data").joinpath(BUNDLED).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        train, test = (
            image_examples(archive[f"{half}_images"], archive[f"{half}_labels"], SPEC) for half in ("train", "test")
        )
    return Dataset("fashion-mnist", SPEC, train, test, None, CLASSES, LICENCE, SOURCE)


def load_full(folder: Path) -> Dataset:
    """All 60 000 training and 10 000 test images, as `fetch("fashion-mnist-full")` leaves them."""
    name = "fashion-mnist-full"
    train, test = (read_images(name, folder, f"fashion_mnist_{half}.npz", SPEC) for half in ("train", "test"))
    return Dataset(name, SPEC, train, test, None, CLASSES, LICENCE, SOURCE)
