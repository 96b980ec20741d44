"""Downloads from files made here: every conversion, every way of failing, and no network."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seepage.data import FetchFailed, download, fetch, load
from seepage.data.convert import Unreadable, read_idx
from seepage.data.sources import BY_HAND, SOURCES, Part

DRAW = np.random.default_rng(0)
Bytes = np.typing.NDArray[np.uint8]


def pixels(*shape: int) -> Bytes:
    return DRAW.integers(0, 256, shape, dtype=np.uint8)


def idx(array: Bytes) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(head + array.tobytes())


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def checkpoint(state: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


class Server:
    """Serves bytes under file:// addresses, with right checksums, in place of the real addresses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        folder.mkdir()

    def serve(self, name: str, contents: dict[str, bytes], digest: str | None = None) -> None:
        source = SOURCES[name]
        assert {part.file for part in source.parts} == set(contents)
        parts = []
        for file, content in contents.items():
            (self.folder / file).write_bytes(content)
            right = "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()
            parts.append(Part(file, ((self.folder / file).as_uri(),), digest or right))
        self.monkeypatch.setitem(SOURCES, name, replace(source, parts=tuple(parts)))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path / "server", monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "data"


def mnist_files(train: int = 5, test: int = 10) -> dict[str, bytes]:
    files = {}
    for half, n in (("train", train), ("t10k", test)):
        files[f"{half}-images-idx3-ubyte.gz"] = idx(pixels(n, 28, 28))
        files[f"{half}-labels-idx1-ubyte.gz"] = idx(np.arange(n, dtype=np.uint8) % 10)
    return files


@pytest.mark.parametrize("name", ["mnist-full", "fashion-mnist-full"])
def test_mnist_and_its_likes(name: str, server: Server, folder: Path) -> None:
    server.serve(name, mnist_files())
    written = fetch(name, folder)
    assert [path.name for path in written] == list(SOURCES[name].files)
    data = load(name, folder)
    assert (len(data.train), len(data.test)) == (5, 10)
    assert sorted(path.name for path in folder.iterdir()) == sorted(SOURCES[name].files)  # no scratch left behind


def test_cifar10(server: Server, folder: Path) -> None:
    images = pixels(12, 3, 32, 32)
    records = [bytes([i % 10]) + image.tobytes() for i, image in enumerate(images)]
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": b"".join(records[2 * i - 2 : 2 * i]) for i in range(1, 6)}
    members["cifar-10-batches-bin/test_batch.bin"] = b"".join(records[10:])
    members["cifar-10-batches-bin/batches.meta.txt"] = "\n".join(f"c{i}" for i in range(10)).encode() + b"\n\n"
    server.serve("cifar10", {"cifar-10-binary.tar.gz": tarball(members)})
    fetch("cifar10", folder)
    data, full = load("cifar10", folder), load("cifar10-full", folder)
    assert data.train.y.tolist() == list(range(10))
    assert data.classes[9] == "c9"
    seen = (full.normalised_by().train.x * 255).round().to(torch.uint8).numpy()
    assert np.array_equal(seen, images[:10])
    assert torch.equal(data.train.x, full.train.x)


def test_cifar10_small_file_is_the_head(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.data.convert.FIRST", 3)
    monkeypatch.setitem(
        SOURCES, "cifar10", replace(SOURCES["cifar10"], files=("cifar10_train.npz", "cifar10_train_first3.npz"))
    )
    record = bytes([1]) + bytes(3072)
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": record for i in range(1, 6)}
    members["cifar-10-batches-bin/test_batch.bin"] = record
    members["cifar-10-batches-bin/batches.meta.txt"] = b"a b"
    server.serve("cifar10", {"cifar-10-binary.tar.gz": tarball(members)})
    fetch("cifar10", folder)
    with np.load(folder / "cifar10_train_first3.npz") as small, np.load(folder / "cifar10_train.npz") as full:
        assert len(small["images"]) == len(small["labels"]) == 3
        assert len(full["images"]) == 5
        assert small["classes"].tolist() == ["a", "b"]


def test_cifar100_takes_fine_labels(server: Server, folder: Path) -> None:
    record = bytes([4, 77]) + pixels(3072).tobytes()
    members = {
        "cifar-100-binary/train.bin": record * 2,
        "cifar-100-binary/test.bin": record,
        "cifar-100-binary/coarse_label_names.txt": "\n".join(f"c{i}" for i in range(20)).encode(),
        "cifar-100-binary/fine_label_names.txt": "\n".join(f"f{i}" for i in range(100)).encode(),
    }
    server.serve("cifar100", {"cifar-100-binary.tar.gz": tarball(members)})
    fetch("cifar100", folder)
    data = load("cifar100", folder)
    assert data.train.y.tolist() == [77, 77]
    assert data.classes[77] == "f77"
    with np.load(folder / "cifar100_test.npz") as stored:
        assert stored["coarse"].tolist() == [4]
        assert stored["coarse_classes"][4] == "c4"


def test_adult_is_kept_byte_for_byte(server: Server, folder: Path) -> None:
    server.serve("adult", {"adult.data": b"a, b\n", "adult.test": b"c\n"})
    written = fetch("adult", folder)
    assert [gzip.decompress(path.read_bytes()) for path in written] == [b"a, b\n", b"c\n"]


ALEXNET = {f"features.{i}.{p}": torch.randn(2, 3) for i in (0, 3, 6, 8, 10) for p in ("weight", "bias")}


def lpips_files(alexnet: dict[str, torch.Tensor]) -> dict[str, bytes]:
    linear = {
        f"{net}.pth": checkpoint({f"lin{i}.model.1.weight": torch.rand(1, 4, 1, 1) for i in range(count)})
        for net, count in (("alex", 5), ("vgg", 5), ("squeeze", 7))
    }
    return {"alexnet-owt-7be5be79.pth": checkpoint(alexnet), **linear}


def test_lpips_comes_with_the_convolutions_of_alexnet(server: Server, folder: Path) -> None:
    server.serve("lpips", lpips_files({**ALEXNET, "classifier.1.weight": torch.ones(9)}))
    convolutions, linear = map(load_file, fetch("lpips", folder))
    assert convolutions.keys() == ALEXNET.keys()
    assert all(torch.equal(convolutions[name], ALEXNET[name]) for name in ALEXNET)
    assert len(linear) == 17
    assert linear["squeeze.lin6.model.1.weight"].shape == (1, 4, 1, 1)


class Trap:
    """A pickle of this runs code when it is loaded carelessly."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a downloaded file ran code",))


def test_checkpoints_cannot_run_code(server: Server, folder: Path) -> None:
    server.serve("lpips", lpips_files({"features.0.weight": Trap()}))  # type: ignore[dict-item]
    with pytest.raises(FetchFailed, match="expected a checkpoint of plain tensors"):
        fetch("lpips", folder)


def test_checkpoints_must_have_the_tensors(server: Server, folder: Path) -> None:
    server.serve("lpips", lpips_files({"other": torch.ones(1)}))
    with pytest.raises(
        FetchFailed, match=r"expected the tensor 'features\.0\.weight' in the checkpoint, got \['other'\]"
    ):
        fetch("lpips", folder)


def test_wrong_checksum_leaves_nothing(server: Server, folder: Path) -> None:
    server.serve("mnist", mnist_files(), digest="md5:" + "0" * 32)
    with pytest.raises(FetchFailed, match=r"file://.*expected the md5 checksum 0{32}, got [0-9a-f]{32}.*copy them to"):
        fetch("mnist", folder)
    assert list(folder.iterdir()) == []


def test_second_address_is_tried(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.serve("mnist", mnist_files())
    parts = tuple(
        replace(part, addresses=((server.folder / "gone").as_uri(), *part.addresses)) for part in SOURCES["mnist"].parts
    )
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], parts=parts))
    assert len(fetch("mnist", folder)) == 2


@pytest.mark.parametrize("failure", [URLError("no route"), TimeoutError("too slow"), IncompleteRead(b"")])
def test_network_failure_names_the_address(failure: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(download, "urlopen", refuse)
    with pytest.raises(
        FetchFailed, match=r"could not fetch https://www\.cs\.toronto\.edu/.*check the network"
    ) as caught:
        fetch("cifar10", folder)
    assert "cifar10_test.npz" in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_cut_connection_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(io.BytesIO):
        headers = {"Content-Length": "100"}  # noqa: RUF012

    monkeypatch.setattr(download, "urlopen", lambda *_, **__: Answer(b"short"))
    with pytest.raises(FetchFailed, match="ended early, expected 100 bytes, got 5"):
        fetch("lpips", folder)


def test_progress_is_reported(server: Server, folder: Path) -> None:
    server.serve("adult", {"adult.data": b"1234", "adult.test": b"5"})
    seen: list[tuple[str, int, int | None]] = []
    fetch("adult", folder, lambda address, done, total: seen.append((address.rsplit("/", 1)[1], done, total)))
    assert seen == [("adult.data", 4, 4), ("adult.test", 1, 1)]


def test_what_is_there_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "urlopen", lambda *_, **__: pytest.fail("nothing to download"))
    folder.mkdir(parents=True)
    for file in SOURCES["adult"].files:
        (folder / file).write_bytes(b"mine")
    assert [path.read_bytes() for path in fetch("adult", folder)] == [b"mine", b"mine"]
    assert fetch("fashion-mnist", folder) == []


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_some_must_be_placed_by_hand(name: str, folder: Path) -> None:
    with pytest.raises(FetchFailed, match=r"cannot be fetched automatically; .*store"):
        fetch(name, folder)


def test_unknown_names_list_the_choices(folder: Path) -> None:
    with pytest.raises(FetchFailed, match=r"expected one of \['adult', 'cifar10', .* to fetch, got 'imagenette'"):
        fetch("imagenette", folder)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchFailed, match=r"could not write to the data folder .*choose another"):
        fetch("adult", tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "expected a gzipped idx file"),
        (gzip.compress(b"\x00\x00\x0d\x01"), "expected an idx file of bytes"),
        (gzip.compress(b"\x00\x00\x08\x03\x00"), "expected 3 lengths"),
        (gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x05ab"), r"expected \(5,\) bytes in .*, got 2"),
    ],
    ids=["no gzip", "other type", "no lengths", "too short"],  # a gzip file holds the time, and ids must not
)
def test_idx_files_are_checked(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=message):
        read_idx(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no tarball", "could not read it"),
        (tarball({"other": b""}), "could not read it"),
        (
            tarball(
                {
                    "cifar-100-binary/train.bin": b"short",
                    "cifar-100-binary/test.bin": b"",
                    "cifar-100-binary/coarse_label_names.txt": b"",
                    "cifar-100-binary/fine_label_names.txt": b"",
                }
            ),
            "expected a whole number of records of 3074 bytes, got 5 bytes",
        ),
    ],
    ids=["no tarball", "no such member", "odd length"],
)
def test_tarballs_are_checked(content: bytes, message: str, server: Server, folder: Path) -> None:
    server.serve("cifar100", {"cifar-100-binary.tar.gz": content})
    with pytest.raises(FetchFailed, match=message):
        fetch("cifar100", folder)


def test_every_address_is_complete() -> None:
    for source in SOURCES.values():
        for part in source.parts:
            assert all(address.startswith("http") and address.endswith(part.file) for address in part.addresses)
