"""CIFAR-10 and CIFAR-100: Krizhevsky, 2009, Learning Multiple Layers of Features from Tiny Images."""

from __future__ import annotations

from pathlib import Path

from seepage.data.dataset import Dataset
from seepage.data.folder import read_arrays
from seepage.data.images import image_examples, read_images
from seepage.spec import DataSpec

__all__ = ["load_cifar10", "load_cifar10_full", "load_cifar100", "load_cifar100_full"]

# geiping2020's numbers for CIFAR-10, dimitrov2022's for CIFAR-100.
CIFAR10 = DataSpec((3, 32, 32), classes=10, mean=(0.4915, 0.4823, 0.4468), std=(0.2470, 0.2435, 0.2616))
CIFAR100 = DataSpec((3, 32, 32), classes=100, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))


def load_cifar10(folder: Path) -> Dataset:
    """The first 5000 training images and all 10 000 test images of CIFAR-10."""
    return _load("cifar10", CIFAR10, folder, "cifar10_train_first5000.npz", "cifar10_test.npz")


def load_cifar10_full(folder: Path) -> Dataset:
    """All 50 000 training images and all 10 000 test images of CIFAR-10."""
    return _load("cifar10-full", CIFAR10, folder, "cifar10_train.npz", "cifar10_test.npz")


def load_cifar100(folder: Path) -> Dataset:
    """The first 5000 training images and all 10 000 test images of CIFAR-100, fine labels."""
    return _load("cifar100", CIFAR100, folder, "cifar100_train_first5000.npz", "cifar100_test.npz")


def load_cifar100_full(folder: Path) -> Dataset:
    """All 50 000 training images and all 10 000 test images of CIFAR-100, fine labels."""
    return _load("cifar100-full", CIFAR100, folder, "cifar100_train.npz", "cifar100_test.npz")


def _load(name: str, spec: DataSpec, folder: Path, train_file: str, test_file: str) -> Dataset:
    images, labels, classes = read_arrays(name, folder, train_file, ("images", "labels", "classes"))
    train = image_examples(images, labels, spec)
    test = read_images(name, folder, test_file, spec)
    return Dataset(
        name,
        spec,
        train,
        test,
        None,
        tuple(str(label) for label in classes),
        "none stated; cite Krizhevsky 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
    )
