"""Where data files live, and reading them without running anything that is in them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seepage.data.sources import how_to_get
from seepage.home import VARIABLE
from seepage.home import data_folder as data_folder

__all__ = ["DataBroken", "DataMissing", "data_folder", "find_file", "read_arrays"]


class DataMissing(FileNotFoundError):
    """A data file is not there; the message says which, where it was looked for, and how to get it."""


class DataBroken(ValueError):
    """A data file is there and is not what it should be."""


def find_file(dataset: str, folder: Path, file: str) -> Path:
    """The path of `file`, which must exist.

    Raises:
        DataMissing: when it does not.
    """
    path = folder / file
    if not path.is_file():
        raise DataMissing(
            f"data set {dataset!r} expects the file {file!r}, looked in {folder} and did not find it; "
            f"name another folder with `--data DIR` or the variable {VARIABLE}, or: {how_to_get(dataset)}"
        )
    return path


def read_arrays(dataset: str, folder: Path, file: str, names: tuple[str, ...]) -> tuple[NDArray[Any], ...]:
    """The arrays called `names` from an npz file; pickled objects are refused, so nothing in it runs.

    Raises:
        DataMissing: when the file is not there.
        DataBroken: when it is no npz file, or lacks an array.
    """
    path = find_file(dataset, folder, file)
    advice = f"remove {path} and then: {how_to_get(dataset)}"
    try:
        # Opened here, because numpy leaves a file that it cannot read open.
        with path.open("rb") as content:
            archive = np.load(content, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataBroken(f"expected an npz file at {path}, got a single array; {advice}")
            if not set(names) <= set(archive.files):
                raise DataBroken(f"expected arrays {list(names)} in {file}, got {archive.files}; {advice}")
            return tuple(archive[name] for name in names)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataBroken(f"expected an npz file at {path}, could not read it ({error}); {advice}") from error
    except ValueError as error:
        if isinstance(error, DataBroken):
            raise
        raise DataBroken(f"expected plain arrays in {path}, got something else ({error}); {advice}") from error
