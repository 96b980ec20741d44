"""Where the public files come from: one table for what can be downloaded, one for what must be placed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seepage.data import convert
from seepage.data.convert import Files

__all__ = ["BY_HAND", "SOURCES", "Part", "Source", "how_to_get"]


@dataclass(frozen=True)
class Part:
    """One file to download.

    Args:
        file: its name.
        addresses: tried in order until one answers.
        digest: `"md5:…"` or `"sha256:…"`, the beginning is enough; `None` where its authors publish none.
    """

    file: str
    addresses: tuple[str, ...]
    digest: str | None = None


@dataclass(frozen=True)
class Source:
    """A set of files that can be downloaded.

    Args:
        parts: what is downloaded.
        files: what the loaders read, as `convert` writes them.
        convert: from the downloaded files, by name, to `files` in a folder.
    """

    parts: tuple[Part, ...]
    files: tuple[str, ...]
    convert: Callable[[Files, Path], None]


def _parts(bases: tuple[str, ...], digests: dict[str, str | None]) -> tuple[Part, ...]:
    return tuple(Part(file, tuple(base + file for base in bases), digest) for file, digest in digests.items())


_MNIST = Source(
    _parts(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    ("mnist_train.npz", "mnist_test.npz"),
    convert.mnist,
)
_FASHION = Source(
    _parts(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    ("fashion_mnist_train.npz", "fashion_mnist_test.npz"),
    convert.fashion_mnist,
)
_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
# The binary tarballs, not the Python ones: those are pickles, which run code when read.
_CIFAR10 = Source(
    _parts(_TORONTO, {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"}),
    ("cifar10_train.npz", "cifar10_train_first5000.npz", "cifar10_test.npz"),
    convert.cifar10,
)
_CIFAR100 = Source(
    _parts(_TORONTO, {"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"}),
    ("cifar100_train.npz", "cifar100_train_first5000.npz", "cifar100_test.npz"),
    convert.cifar100,
)

SOURCES: dict[str, Source] = {
    "fashion-mnist-full": _FASHION,
    "mnist": _MNIST,
    "mnist-full": _MNIST,
    "cifar10": _CIFAR10,
    "cifar10-full": _CIFAR10,
    "cifar100": _CIFAR100,
    "cifar100-full": _CIFAR100,
    "adult": Source(
        _parts(
            ("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",),
            {
                "adult.data": "md5:5d7c39d7b8804f071cdd1f2a7c460872",
                "adult.test": "md5:35238206dfdf7f1fe215bbb874adecdc",
            },
        ),
        ("adult.data.gz", "adult.test.gz"),
        convert.adult,
    ),
    "lpips": Source(
        (
            # torchvision puts the beginning of the SHA-256 into the name.
            *_parts(("https://download.pytorch.org/models/",), {"alexnet-owt-7be5be79.pth": "sha256:7be5be79"}),
            # These have no published checksum; what is made of them is checked when it is read.
            *_parts(
                ("https://raw.githubusercontent.com/richzhang/PerceptualSimilarity/master/lpips/weights/v0.1/",),
                {"alex.pth": None, "vgg.pth": None, "squeeze.pth": None},
            ),
        ),
        ("alexnet_features_imagenet.safetensors", "lpips_linear_v0.1.safetensors"),
        convert.lpips,
    ),
}

_IMAGES = "`images` (n, height, width[, 3]) uint8"
_FEMNIST = (
    "build it with LEAF (https://github.com/TalwalkarLab/leaf, data/femnist, `./preprocess.sh -s niid --sf 0.05 -k 0 "
    f"-t sample`) and store femnist_leaf_writers.npz with {_IMAGES}, `labels`, `writer`, `split` (0 train, 1 test), "
    "`duplicate` (bool), `classes`, and the same with `extra_` in front for writers outside the federation"
)
BY_HAND: dict[str, str] = {
    "femnist": _FEMNIST,
    "femnist-fewer": _FEMNIST,
    "femnist-others": _FEMNIST,
    "emnist": (
        "get EMNIST ByClass from https://www.nist.gov/itl/products-and-services/emnist-dataset and store its first "
        f"10000 test images, upright, as emnist_byclass_test_first10000.npz with {_IMAGES}, `labels`, `classes`"
    ),
    "orl": (
        "get the faces from https://www.cl.cam.ac.uk/research/dtg/attarchive/facedatabase.html and store "
        f"orl_faces.npz with {_IMAGES}, `person` (0 to 39), `shot` (1 to 10)"
    ),
    "imagenet": (
        "its terms want every user to register at https://image-net.org; store imagenet_1000x128.npz with "
        f"{_IMAGES}, `labels`, `names` and imagenet_val32x128.npz with `images`, `labels`"
    ),
    "flight-fares": (
        "get the training sheet of MachineHack's 'Predict the Flight Ticket Price' and store it as gzipped CSV, "
        "flight_fares.csv.gz"
    ),
}


def how_to_get(dataset: str) -> str:
    """One sentence on how the files of a data set come into the folder.

    Example:
        >>> how_to_get("cifar10")
        'run `seepage fetch cifar10`'
    """
    if dataset in SOURCES:
        return f"run `seepage fetch {dataset}`"
    return BY_HAND.get(dataset, "put the file there")
