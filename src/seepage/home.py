"""Which Seepage this is, and where data files and weights live that do not come with it."""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from pathlib import Path

__all__ = ["VARIABLE", "data_folder", "version"]

VARIABLE = "SEEPAGE_DATA"


def data_folder(explicit: str | Path | None = None) -> Path:
    """The folder of data files: the argument, else the variable `SEEPAGE_DATA`, else `~/.cache/seepage`.

    Example:
        >>> data_folder("somewhere").name
        'somewhere'
    """
    chosen = explicit or os.environ.get(VARIABLE) or Path("~/.cache/seepage")
    return Path(chosen).expanduser()


@cache
def version() -> str:
    """The installed version of Seepage, or that of the source tree."""
    try:
        return importlib.metadata.version("seepage")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0"
