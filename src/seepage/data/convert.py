"""From the files their authors publish to the files the loaders read; nothing is unpickled, nothing unpacked to disk.

Every function here takes the downloaded files by name and writes its results into a folder.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Unreadable", "adult", "cifar10", "cifar100", "fashion_mnist", "lpips", "mnist", "read_idx"]

Files = Mapping[str, Path]
FIRST = 5000
PIXELS = 3 * 32 * 32


class Unreadable(ValueError):
    """A downloaded file does not have the layout that its authors document."""


def read_idx(path: Path) -> NDArray[np.uint8]:
    """A gzipped idx file of bytes, the format of MNIST.

    Raises:
        Unreadable: when it is no such file.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"expected a gzipped idx file, got {path.name}: {error}") from error
    # Two zero bytes, the type (8 = unsigned byte), the number of axes, then each length as a big-endian integer.
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise Unreadable(f"expected an idx file of bytes, got {path.name} starting with {content[:4]!r}")
    axes = content[3]
    if len(content) < 4 + 4 * axes:
        raise Unreadable(f"expected {axes} lengths at the head of {path.name}, got {len(content)} bytes in all")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if data.size != int(np.prod(shape)):
        raise Unreadable(f"expected {shape} bytes in {path.name}, got {data.size}")
    return data.reshape(shape)


def mnist(files: Files, out: Path, stem: str = "mnist") -> None:
    """The four idx files of MNIST, or of a set in its format, to `{stem}_train.npz` and `{stem}_test.npz`."""
    for theirs, ours in (("train", "train"), ("t10k", "test")):
        images = read_idx(files[f"{theirs}-images-idx3-ubyte.gz"])
        labels = read_idx(files[f"{theirs}-labels-idx1-ubyte.gz"])
        np.savez_compressed(out / f"{stem}_{ours}.npz", images=images, labels=labels)


def fashion_mnist(files: Files, out: Path) -> None:
    """The four idx files of Fashion-MNIST."""
    mnist(files, out, "fashion_mnist")


def cifar10(files: Files, out: Path) -> None:
    """The binary tarball of CIFAR-10: one label byte, then 3072 bytes of red, green and blue planes."""
    folder = "cifar-10-batches-bin"
    members = _read_tar(
        files["cifar-10-binary.tar.gz"],
        [f"{folder}/{name}" for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")],
        [f"{folder}/batches.meta.txt"],
    )
    *train, test, names = members
    classes = _names(names)
    for half, content in (("train", b"".join(train)), ("test", test)):
        (labels,), images = _records(content, 1)
        _save_cifar(out, f"cifar10_{half}", half, images=images, labels=labels, classes=classes)


def cifar100(files: Files, out: Path) -> None:
    """The binary tarball of CIFAR-100: coarse label, fine label, then 3072 bytes."""
    folder = "cifar-100-binary"
    train, test, coarse_names, fine_names = _read_tar(
        files["cifar-100-binary.tar.gz"],
        [f"{folder}/train.bin", f"{folder}/test.bin"],
        [f"{folder}/coarse_label_names.txt", f"{folder}/fine_label_names.txt"],
    )
    names = {"classes": _names(fine_names), "coarse_classes": _names(coarse_names)}
    for half, content in (("train", train), ("test", test)):
        (coarse, fine), images = _records(content, 2)
        _save_cifar(out, f"cifar100_{half}", half, images=images, labels=fine, coarse=coarse, **names)


def adult(files: Files, out: Path) -> None:
    """The two text files of Adult, gzipped without a time stamp so that the result is always the same."""
    for name in ("adult.data", "adult.test"):
        (out / f"{name}.gz").write_bytes(gzip.compress(files[name].read_bytes(), mtime=0))


def lpips(files: Files, out: Path) -> None:
    """The weights of LPIPS v0.1: the convolutions of torchvision's AlexNet, and its own linear layers."""
    state = _read_weights(files["alexnet-owt-7be5be79.pth"])
    wanted = [f"features.{layer}.{part}" for layer in (0, 3, 6, 8, 10) for part in ("weight", "bias")]
    _save_weights(out / "alexnet_features_imagenet.safetensors", {name: _entry(state, name) for name in wanted})
    layers = {"alex": 5, "vgg": 5, "squeeze": 7}
    weights = {}
    for net, count in layers.items():
        state = _read_weights(files[f"{net}.pth"])
        for layer in range(count):
            name = f"lin{layer}.model.1.weight"
            weights[f"{net}.{name}"] = _entry(state, name)
    _save_weights(out / "lpips_linear_v0.1.safetensors", weights)


def _read_tar(path: Path, *groups: list[str]) -> list[bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            contents = []
            for name in [name for group in groups for name in group]:
                member = archive.extractfile(name)
                if member is None:
                    raise Unreadable(f"expected a plain file {name} in {path.name}")
                contents.append(member.read())
            return contents
    except (KeyError, tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"expected the tarball {path.name} of its authors, could not read it: {error}") from error


def _names(text: bytes) -> NDArray[np.str_]:
    return np.array(text.decode("ascii").split())


def _records(content: bytes, labels: int) -> tuple[list[NDArray[np.uint8]], NDArray[np.uint8]]:
    size = labels + PIXELS
    if len(content) % size:
        raise Unreadable(f"expected a whole number of records of {size} bytes, got {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # channels last, as every stored image
    return [records[:, i] for i in range(labels)], np.ascontiguousarray(images)


def _save_cifar(out: Path, stem: str, half: str, **arrays: NDArray[Any]) -> None:
    np.savez_compressed(out / f"{stem}.npz", allow_pickle=False, **arrays)
    if half == "train":
        names = ("classes", "coarse_classes")
        head = {name: values if name in names else values[:FIRST] for name, values in arrays.items()}
        np.savez_compressed(out / f"{stem}_first{FIRST}.npz", allow_pickle=False, **head)


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; each means the same here
        raise Unreadable(f"expected a checkpoint of plain tensors in {path.name}, could not read it") from error
    return state


def _entry(state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in state:
        raise Unreadable(f"expected the tensor {name!r} in the checkpoint, got {sorted(state)}")
    return state[name].contiguous()


def _save_weights(path: Path, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(weights, str(path))
