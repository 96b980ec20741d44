"""MNIST (LeCun, Cortes and Burges, 1998) and EMNIST (Cohen et al., 2017): handwriting without writers."""

from __future__ import annotations

from pathlib import Path

from seepage.data.dataset import Dataset
from seepage.data.folder import read_arrays
from seepage.data.images import head_and_tail, image_examples, read_images
from seepage.spec import DataSpec

__all__ = ["load_emnist", "load_mnist", "load_mnist_full"]

DIGITS = tuple("0123456789")
MNIST = DataSpec((1, 28, 28), classes=10, mean=(0.1307,), std=(0.3081,))
# Mean and standard deviation of the 10 000 images in the file.
EMNIST = DataSpec((1, 28, 28), classes=62, mean=(0.1728,), std=(0.3311,))
MNIST_LICENCE = "CC BY-SA 3.0, Yann LeCun and Corinna Cortes"
MNIST_SOURCE = "http://yann.lecun.com/exdb/mnist/"


def load_mnist(folder: Path) -> Dataset:
    """The 10 000 official test digits: 9000 to train on, the last 1000 to test on; small enough for quick audits."""
    examples = read_images("mnist", folder, "mnist_test.npz", MNIST)
    train, test = head_and_tail(examples)
    return Dataset("mnist", MNIST, train, test, None, DIGITS, MNIST_LICENCE, MNIST_SOURCE)


def load_mnist_full(folder: Path) -> Dataset:
    """The official 60 000 training and 10 000 test digits, as `fetch("mnist-full")` leaves them."""
    train, test = (read_images("mnist-full", folder, f"mnist_{half}.npz", MNIST) for half in ("train", "test"))
    return Dataset("mnist-full", MNIST, train, test, None, DIGITS, MNIST_LICENCE, MNIST_SOURCE)


def load_emnist(folder: Path) -> Dataset:
    """The first 10 000 test images of EMNIST ByClass: 9000 to train on, the last 1000 to test on.

    Note:
        White ink on black, unlike FEMNIST; the same handwriting can occur in both.
    """
    file = "emnist_byclass_test_first10000.npz"
    images, labels, classes = read_arrays("emnist", folder, file, ("images", "labels", "classes"))
    train, test = head_and_tail(image_examples(images, labels, EMNIST))
    return Dataset(
        "emnist",
        EMNIST,
        train,
        test,
        None,
        tuple(str(name) for name in classes),
        "NIST Special Database 19, a work of the US government",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    )
