"""Where data files and weights live that do not come with Seepage."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["VARIABLE", "data_folder"]

VARIABLE = "SEEPAGE_DATA"


def data_folder(explicit: str | Path | None = None) -> Path:
    """The folder of data files: the argument, else the variable `SEEPAGE_DATA`, else `~/.cache/seepage`.

    Example:
        >>> data_folder("somewhere").name
        'somewhere'
    """
    chosen = explicit or os.environ.get(VARIABLE) or Path("~/.cache/seepage")
    return Path(chosen).expanduser()
