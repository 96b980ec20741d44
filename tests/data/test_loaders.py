"""Every loader on files of its format that are made here, and on the real ones where they are."""

from __future__ import annotations

import gzip
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from seepage.data import DataBroken, Dataset, load
from seepage.data.adult import COLUMNS
from seepage.data.flight_fares import HEADER

DRAW = np.random.default_rng(0)


def grey(n: int, *shape: int) -> np.typing.NDArray[np.uint8]:
    return DRAW.integers(0, 256, (n, *(shape or (28, 28))), dtype=np.uint8)


def test_bundled_images_are_balanced_small_and_licensed() -> None:
    data = load("fashion-mnist")
    assert torch.equal(data.train.y.bincount(), torch.full((10,), 80))
    assert torch.equal(data.test.y.bincount(), torch.full((10,), 20))
    assert data.train.x.mean().abs() < 0.05
    assert (data.train.x.std() - 1).abs() < 0.05
    files = resources.files("seepage.data")
    assert len(files.joinpath("fashion_mnist_1000.npz").read_bytes()) < 600_000
    assert "Zalando SE" in files.joinpath("LICENSE.fashion_mnist_1000.txt").read_text()
    assert len(load("fashion-mnist", split="train")) == 800


def test_fashion_mnist_in_full(tmp_path: Path) -> None:
    for half, n in (("train", 6), ("test", 3)):
        np.savez(tmp_path / f"fashion_mnist_{half}.npz", images=grey(n), labels=np.arange(n, dtype=np.uint8))
    data = load("fashion-mnist-full", tmp_path)
    assert (len(data.train), len(data.test)) == (6, 3)


def test_mnist_is_the_test_file_in_two(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist_test.npz", images=grey(10), labels=np.arange(10, dtype=np.uint8))
    data = load("mnist", tmp_path)
    assert torch.equal(data.train.y, torch.arange(9))
    assert torch.equal(data.test.y, torch.tensor([9]))
    np.savez(tmp_path / "mnist_train.npz", images=grey(20), labels=np.zeros(20, np.uint8))
    full = load("mnist-full", tmp_path)
    assert (len(full.train), len(full.test)) == (20, 10)


def test_emnist(tmp_path: Path) -> None:
    classes = np.array([chr(48 + i) for i in range(62)])
    np.savez(
        tmp_path / "emnist_byclass_test_first10000.npz",
        images=grey(10),
        labels=np.arange(52, 62, dtype=np.uint8),
        classes=classes,
    )
    data = load("emnist", tmp_path)
    assert data.classes == tuple(classes.tolist())
    assert len(data.train) == 9


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    # Writer 0: 60 images of which the last repeats the first; writer 1 has too few; writer 2 has exactly 50.
    writer = np.array([0] * 60 + [1] * 49 + [2] * 50, np.int16)
    images = grey(len(writer))
    images[59] = images[0]
    duplicate = np.zeros(len(writer), bool)
    duplicate[59] = True
    np.savez(
        tmp_path / "femnist_leaf_writers.npz",
        images=images,
        labels=(np.arange(len(writer)) % 62).astype(np.uint8),
        writer=writer,
        split=(np.arange(len(writer)) % 10 == 9).astype(np.uint8),
        duplicate=duplicate,
        classes=np.array([chr(48 + i) for i in range(62)]),
        extra_images=grey(20),
        extra_labels=np.zeros(20, np.uint8),
        extra_writer=np.repeat(np.arange(10, dtype=np.int16), 2),
        extra_duplicate=np.arange(20) == 1,
    )
    return tmp_path


def test_femnist_drops_duplicates_and_small_writers(femnist: Path) -> None:
    data = load("femnist", femnist)
    assert data.train_owner is not None
    assert data.test_owner is not None
    assert data.train_owner.bincount().tolist() == [54, 0, 45]
    assert data.test_owner.bincount().tolist() == [5, 0, 5]
    assert data.spec.mean == (0.9642384,)
    assert data.spec.std == (0.1576784,)


def test_writers_with_few_images_are_a_data_set_of_their_own(femnist: Path) -> None:
    data = load("femnist-fewer", femnist)
    assert data.train_owner is not None
    assert data.test_owner is not None
    assert data.train_owner.bincount().tolist() == [0, 45]
    assert data.test_owner.bincount().tolist() == [0, 4]


def test_other_writers_are_split_by_writer(femnist: Path) -> None:
    data = load("femnist-others", femnist)
    assert data.train_owner is not None
    assert data.test_owner is not None
    assert not set(data.train_owner.tolist()) & set(data.test_owner.tolist())
    assert (len(data.train), len(data.test)) == (17, 2)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar(name: str, classes: int, tmp_path: Path) -> None:
    labels = np.arange(4, dtype=np.uint8)
    names = np.array([f"class {i}" for i in range(classes)])
    for half in ("train", "train_first5000", "test"):
        np.savez(tmp_path / f"{name}_{half}.npz", images=grey(4, 32, 32, 3), labels=labels, classes=names)
    small, full = load(name, tmp_path), load(f"{name}-full", tmp_path)
    assert small.train.x.shape == full.test.x.shape == (4, 3, 32, 32)
    assert small.classes[3] == "class 3"
    assert not torch.equal(small.train.x, full.train.x)


def test_orl_owner_is_the_person(tmp_path: Path) -> None:
    person = np.repeat(np.arange(40, dtype=np.uint8), 10)
    shot = np.tile(np.arange(1, 11, dtype=np.uint8), 40)
    np.savez(tmp_path / "orl_faces.npz", images=grey(400, 112, 92), person=person, shot=shot)
    data = load("orl", tmp_path)
    assert data.train_owner is not None
    assert torch.equal(data.train_owner, data.train.y)
    assert torch.equal(data.train.y.bincount(), torch.full((40,), 8))
    assert len(data.test) == 80


def test_more_clients_with_faces_are_copies_of_the_ten(tmp_path: Path) -> None:
    person = np.repeat(np.arange(40, dtype=np.uint8), 10)
    shot = np.tile(np.arange(1, 11, dtype=np.uint8), 40)
    np.savez(tmp_path / "orl_faces.npz", images=grey(400, 112, 92), person=person, shot=shot)
    ten, twenty = load("orl-clients", tmp_path), load("orl-clients-20", tmp_path)
    assert ten.train_owner is not None
    assert twenty.train_owner is not None
    assert twenty.name == "orl-clients-20"
    hands = [ten.train.x[ten.train_owner == owner] for owner in range(10)]
    for owner in range(20):
        own = twenty.train.x[twenty.train_owner == owner]
        assert own.equal(hands[owner]) if owner < 10 else any(own.equal(hand) for hand in hands)


def test_imagenet(tmp_path: Path) -> None:
    labels = np.array([0, 999], np.int16)
    names = np.array([f"n{i}" for i in range(1000)])
    np.savez(tmp_path / "imagenet_1000x128.npz", images=grey(2, 128, 128, 3), labels=labels, names=names)
    np.savez(tmp_path / "imagenet_val32x128.npz", images=grey(2, 128, 128, 3), labels=labels)
    data = load("imagenet", tmp_path)
    assert data.test.y.tolist() == [0, 999]
    assert 0 <= data.normalised_by().train.x.min() < data.normalised_by().train.x.max() <= 1 + 1e-6


def adult_row(age: int, work: str, sex: str, income: str) -> str:
    cells = [age, work, 1000 + age, "HS-grad", 9, "Divorced", "Sales", "Wife", "White", sex, 0, 0, 40, "Cuba", income]
    return ", ".join(str(cell) for cell in cells)


@pytest.fixture
def adult(tmp_path: Path) -> Path:
    train = [
        adult_row(20, "Private", "Female", "<=50K"),
        adult_row(60, "?", "Male", ">50K"),
        adult_row(40, "Private", "Male", "<=50K"),
    ]
    test = ["|1x3 Cross validator", adult_row(80, "Unheard-of", "Female", ">50K.")]
    for file, rows in (("adult.data.gz", train), ("adult.test.gz", test)):
        (tmp_path / file).write_bytes(gzip.compress(("\n".join(rows) + "\n\n").encode()))
    return tmp_path


def test_adult_columns_say_what_each_feature_is(adult: Path) -> None:
    data = load("adult", adult)
    assert [column.name for column in data.columns] == list(COLUMNS)
    assert data.columns[-1].stop == data.spec.shape[0]
    sex = data.column("sex")
    assert sex.values == ("Female", "Male")
    assert data.train.x[:, sex.features].tolist() == [[1, 0], [0, 1], [0, 1]]
    assert data.train.y.tolist() == [0, 1, 0]
    assert data.test.y.tolist() == [1]
    assert data.column("workclass").values == ("?", "Private")
    assert data.test.x[0, data.column("workclass").features].tolist() == [0, 0]  # unknown to the training rows


def test_adult_numbers_are_standardised_and_can_be_read_back(adult: Path) -> None:
    data = load("adult", adult)
    age = data.column("age")
    x = data.train.x[:, age.features]
    torch.testing.assert_close(x.mean(), torch.tensor(0.0))
    torch.testing.assert_close(x.std(correction=0), torch.tensor(1.0))
    raw = data.spec.pixels(data.train.x)
    assert raw.min() >= -1e-6
    assert raw.max() <= 1 + 1e-6
    years = age.offset + age.scale * raw[:, age.start]
    torch.testing.assert_close(years, torch.tensor([20.0, 60.0, 40.0]))


@pytest.mark.parametrize("content", ["", "1, 2, 3\n", adult_row(20, "Private", "Male", "lots")])
def test_adult_refuses_other_files(content: str, adult: Path) -> None:
    (adult / "adult.data.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataBroken, match=r"expected .*adult\.data\.gz.*put the UCI file there"):
        load("adult", adult)


def fares(rows: list[str], header: tuple[str, ...] = HEADER) -> bytes:
    return gzip.compress("\n".join([",".join(header), *rows]).encode())


def test_flight_fares(tmp_path: Path) -> None:
    rows = [
        "IndiGo,24/03/2019,Banglore,New Delhi,BLR → DEL,22:20,01:10 22 Mar,2h 50m,non-stop,No info,3897",
        "Air India,1/05/2019,Kolkata,Banglore,CCU → BLR,05:50,13:15,7h 25m,2 stops,No Info,7662",
        "Air India,1/05/2019,Kolkata,Banglore,CCU → BLR,05:50,13:15,7h 25m,2 stops,No Info,7662",  # again
        "Vistara,1/05/2019,Kolkata,Banglore,,05:50,13:15,7h 25m,,No info,7662",  # missing cells
        "IndiGo,12/05/2019,Kolkata,Banglore,CCU → BLR,18:05,23:30,5h,1 stop,No info,6218",
        "IndiGo,13/05/2019,Kolkata,Banglore,CCU → BLR,18:05,23:30,5m,1 stop,No info,6000",
        "IndiGo,14/05/2019,Kolkata,Banglore,CCU → BLR,18:05,23:30,5h 5m,1 stop,No info,5000",
    ]
    (tmp_path / "flight_fares.csv.gz").write_bytes(fares(rows))
    data = load("flight-fares", tmp_path)
    assert (len(data.train), len(data.test)) == (4, 1)
    assert data.spec.classes is None
    assert data.train.y.shape == (4, 1)
    assert data.train.y.dtype == torch.float32
    assert data.target is not None
    prices = data.target.offset + data.target.scale * data.train.y[:, 0]
    torch.testing.assert_close(prices, torch.tensor([3897.0, 7662.0, 6218.0, 6000.0]))
    assert data.column("Additional_Info").values == ("no info",)
    assert data.train_owner is not None
    assert data.train_owner.tolist() == [1, 0, 1, 1]
    day = data.column("Day")
    assert day.offset == 23  # 24 March


def test_flight_fares_refuses_other_columns(tmp_path: Path) -> None:
    (tmp_path / "flight_fares.csv.gz").write_bytes(fares([], HEADER[1:]))
    with pytest.raises(DataBroken, match="expected the columns"):
        load("flight-fares", tmp_path)


def test_airlines_with_many_rows_keep_the_journey_and_not_what_tells_it(tmp_path: Path) -> None:
    def row(airline: str, price: int) -> str:
        stops = "non-stop" if price % 2 else "1 stop"
        return f"{airline},24/03/2019,Banglore,New Delhi,BLR → DEL,22:20,01:10,2h 50m,{stops},No info,{price}"

    small, large = [row("Trujet", 1)], [row("IndiGo", price) for price in range(1, 121)]
    (tmp_path / "flight_fares.csv.gz").write_bytes(fares(small + large))
    data = load("flight-airlines", tmp_path)
    assert (len(data.train), len(data.test)) == (96, 24)
    assert data.column("Airline").values == ("IndiGo",)
    assert not {column.name for column in data.columns} & {"Stops", "Duration", "Arrival"}
    journey = data.column("Journey")
    assert journey.values == ("direct", "with stops")
    assert data.train.x[:, journey.start].tolist() == [0.0, 1.0] * 48
    (tmp_path / "flight_fares.csv.gz").write_bytes(fares(small))
    with pytest.raises(DataBroken, match="an airline with 100 rows"):
        load("flight-airlines", tmp_path)


REAL = {
    "mnist": (9000, 1000, (1, 28, 28), 10),
    "emnist": (9000, 1000, (1, 28, 28), 62),
    "femnist": (14580, 1658, (1, 28, 28), 62),
    "femnist-fewer": (46, 4, (1, 28, 28), 62),
    "femnist-others": (2167, 235, (1, 28, 28), 62),
    "cifar10": (5000, 10000, (3, 32, 32), 10),
    "cifar100": (5000, 10000, (3, 32, 32), 100),
    "orl": (320, 80, (1, 112, 92), 40),
    "orl-clients": (1580, 80, (1, 80, 70), 40),
    "imagenet": (1000, 32, (3, 128, 128), 1000),
    "adult": (32561, 16281, (108,), 2),
    "adult-phd": (12298, 36544, (53,), 2),
    "flight-fares": (8370, 2092, (43,), None),
    "flight-airlines": (8351, 2088, (37,), None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str, shared: Path) -> None:
    data: Dataset = load(name, shared)
    assert (len(data.train), len(data.test), data.spec.shape, data.spec.classes) == REAL[name]
    for half in (data.train, data.test):
        assert half.x.dtype == torch.float32
        assert bool(half.x.isfinite().all())
    if data.spec.is_image:
        assert data.train.x.mean().abs() < 0.1  # the normalisation belongs to these images
        assert (data.train.x.std() - 1).abs() < 0.2
    if name == "femnist":
        assert data.train_owner is not None
        counts = data.train_owner.bincount()
        assert int((counts >= 50).sum()) == int((counts > 0).sum()) == 100
    if name == "orl-clients":
        assert data.train_owner is not None
        assert data.train_owner.bincount().tolist() == [176, 176, 176, 176, 140, 140, 140, 140, 140, 176]
        held = torch.stack([data.train.y[data.train_owner == owner].bincount() for owner in range(10)])
        assert (held == 8).sum(1).tolist() == [4] * 10  # all pictures of four people each
        assert (held == 8).sum(0).tolist() == [1] * 40  # and everybody is one of those of one client
        assert ((held == 8) | (held == 3) | (held == 4)).all()
    if name == "adult-phd":
        assert data.train_owner is not None
        assert data.train_owner.bincount().tolist() == [127, 281, 186, *[1672] * 7]
        age, education = data.column("age"), data.column("education")
        years = age.offset + age.scale * data.spec.pixels(data.train.x)[:, age.start]
        doctor = data.train.x[:, education.start + education.values.index("Doctorate")] == 1
        assert doctor.equal(data.train_owner < 3)
        assert not (data.test.x[:, education.start + education.values.index("Doctorate")] == 1).any()
        for owner, (low, high) in enumerate([(0, 37.5), (37.5, 52.5), (52.5, 100)]):
            of_owner = years[data.train_owner == owner]
            assert low < of_owner.min()
            assert of_owner.max() < high


def test_too_small_an_adult_cannot_be_dealt(adult: Path) -> None:
    with pytest.raises(DataBroken, match="expected more than 12300 records"):
        load("adult-phd", adult)
