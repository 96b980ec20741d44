"""Data sets: loaders, the folder they read from, and the download of public ones.

>>> data = load("fashion-mnist")
>>> data.train.x.shape
torch.Size([800, 1, 28, 28])
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, overload

from seepage.data import adult, cifar, fashion_mnist, femnist, flight_fares, imagenet, mnist, orl, text
from seepage.data.dataset import Column as Column
from seepage.data.dataset import Dataset as Dataset
from seepage.data.download import FetchFailed as FetchFailed
from seepage.data.download import fetch as fetch
from seepage.data.folder import DataBroken as DataBroken
from seepage.data.folder import DataMissing as DataMissing
from seepage.data.folder import data_folder as data_folder
from seepage.spec import Examples
from seepage.spelling import meant

__all__ = [
    "DATASETS",
    "Column",
    "DataBroken",
    "DataMissing",
    "Dataset",
    "FetchFailed",
    "data_folder",
    "fetch",
    "load",
]

DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "fashion-mnist": fashion_mnist.load_bundled,
    "fashion-mnist-full": fashion_mnist.load_full,
    "mnist": mnist.load_mnist,
    "mnist-full": mnist.load_mnist_full,
    "emnist": mnist.load_emnist,
    "femnist": femnist.load_femnist,
    "femnist-fewer": femnist.load_femnist_fewer,
    "femnist-others": femnist.load_femnist_others,
    "cifar10": cifar.load_cifar10,
    "cifar10-full": cifar.load_cifar10_full,
    "cifar100": cifar.load_cifar100,
    "cifar100-full": cifar.load_cifar100_full,
    "orl": orl.load_orl,
    "orl-clients": orl.load_orl_clients,
    "orl-clients-20": orl.load_orl_clients_20,
    "orl-clients-40": orl.load_orl_clients_40,
    "imagenet": imagenet.load_imagenet,
    "adult": adult.load_adult,
    "adult-phd": adult.load_adult_phd,
    "sentences": text.load_sentences,
    "flight-fares": flight_fares.load_flight_fares,
    "flight-airlines": flight_fares.load_flight_airlines,
}


@overload
def load(name: str, folder: str | Path | None = None, split: None = None) -> Dataset: ...
@overload
def load(name: str, folder: str | Path | None = None, *, split: Literal["train", "test"]) -> Examples: ...
def load(
    name: str, folder: str | Path | None = None, split: Literal["train", "test"] | None = None
) -> Dataset | Examples:
    """A data set by name.

    Args:
        name: one of `DATASETS`.
        folder: where the files are, see `data_folder`; `fashion-mnist` needs none.
        split: `"train"` or `"test"` for the examples of one half alone.

    Raises:
        ValueError: for an unknown name or split.
        DataMissing: when a file is not there.
        DataBroken: when a file is not what it should be.

    Example:
        >>> len(load("fashion-mnist", split="test"))
        200
    """
    if name not in DATASETS:
        raise ValueError(f"expected one of the data sets {sorted(DATASETS)}, got {name!r}{meant(name, DATASETS)}")
    if split not in (None, "train", "test"):
        raise ValueError(f"expected `split` to be 'train', 'test' or None, got {split!r}")
    data = DATASETS[name](data_folder(folder))
    if split is None:
        return data
    return data.train if split == "train" else data.test
