from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seepage.data import DATASETS, DataBroken, DataMissing, data_folder, load
from seepage.data.folder import read_arrays
from seepage.data.sources import BY_HAND, SOURCES


def test_the_argument_wins_then_the_variable_then_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "variable"))
    assert data_folder(tmp_path / "argument") == tmp_path / "argument"
    assert data_folder() == tmp_path / "variable"
    monkeypatch.delenv("SEEPAGE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "seepage"


# Data sets that are other federations of the same files.
OTHERWISE_DEALT = {"adult-phd": "adult", "flight-airlines": "flight-fares"} | dict.fromkeys(
    ("orl-clients", "orl-clients-20", "orl-clients-40"), "orl"
)
NEED_NO_FILE = {"fashion-mnist", "sentences", "leaf-synthetic"}


@pytest.mark.parametrize("name", sorted(set(DATASETS) - NEED_NO_FILE))
def test_missing_files_say_how_to_get_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "`--data DIR`" in message
    assert "SEEPAGE_DATA" in message
    origin = OTHERWISE_DEALT.get(name, name)
    assert (f"seepage fetch {origin}" in message) == (origin in SOURCES)
    assert (origin in BY_HAND) == (origin not in SOURCES)


def test_missing_data_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mnist_test\.npz"):
        load("mnist", tmp_path)


def test_no_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist_test.npz", images=np.array([{}], dtype=object), labels=np.zeros(1))
    with pytest.raises(DataBroken, match="expected plain arrays"):
        load("mnist", tmp_path)


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros(1))
    with pytest.raises(DataBroken, match=r"expected arrays \['images', 'labels'\] in a\.npz, got \['images'\]"):
        read_arrays("mnist", tmp_path, "a.npz", ("images", "labels"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"\x93NUMPY\x01\x00", b"<html>not found</html>"])
def test_broken_files_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mnist_test.npz").write_bytes(content)
    with pytest.raises(DataBroken, match=r"mnist_test\.npz"):
        load("mnist", tmp_path)


def test_a_bare_array_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "mnist_test.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataBroken, match="expected an npz file"):
        load("mnist", tmp_path)
