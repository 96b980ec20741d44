"""The runs in a folder: which there are, how far they are, and nothing outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from seepage.audit.summary import Index, read_index, read_rows
from seepage.audit.table import Table
from seepage.audit.values import SpecError
from seepage.report import headline

__all__ = ["LOG", "Run", "find_run", "find_runs", "log_tail", "new_folder", "verdict_so_far"]

LOG = "audit.log"
DEPTH = 3  # folders below folders in which runs are looked for
MOST = 500


@dataclass(frozen=True)
class Run:
    """A folder of results.

    Args:
        name: its path below the folder of runs, with slashes.
        folder: where it is.
        index: what it is about; `None` before the audit has read its specification.
        done: trials that are finished.
        changed: when its last trial was finished, or else when it began.
    """

    name: str
    folder: Path
    index: Index | None
    done: int
    changed: datetime

    @property
    def title(self) -> str:
        """Of the experiment."""
        return self.name if self.index is None else self.index.name

    @property
    def total(self) -> int:
        """Trials that the experiment has."""
        return 0 if self.index is None else len(self.index.trials)

    @property
    def complete(self) -> bool:
        """Whether every trial is finished."""
        return self.index is not None and self.done == self.total


def find_runs(root: Path) -> list[Run]:
    """The runs below a folder, the latest first; what cannot be read is left out."""
    found = []
    for path in _folders(root.resolve(), DEPTH):
        try:
            found.append(find_run(root, path.relative_to(root.resolve()).as_posix()))
        except SpecError:
            continue
        if len(found) == MOST:
            break
    return sorted(found, key=lambda run: run.changed, reverse=True)


def find_run(root: Path, name: str) -> Run:
    """One run by its name.

    Raises:
        SpecError: when there is none of that name inside of the folder, wherever links in it may lead.
    """
    folder = _inside(root, name)
    index = read_index(folder) if (folder / "experiment.json").exists() else None
    if index is None and not (folder / LOG).exists():
        raise SpecError(f"{name}: expected a folder of results, got none")
    done = set() if index is None else Table(folder).finished() & set(index.trials)
    rows = folder / "rows"
    changed = (rows if rows.is_dir() else folder).stat().st_mtime
    return Run(name, folder, index, len(done), datetime.fromtimestamp(changed))


def new_folder(root: Path, name: str) -> Path:
    """A folder of that name that is not there yet.

    Raises:
        SpecError: when the name is not one of a folder right here, or taken.
    """
    if not name or name.startswith(".") or not all(c.isalnum() or c in "-_. " for c in name) or len(name) > 80:
        raise SpecError(f"name: expected up to 80 letters, digits, spaces, dots, - and _, got {name!r}")
    folder = _inside(root, name)
    if folder.exists():
        raise SpecError(f"name: expected one that is free, got {name!r}, which is taken")
    return folder


def log_tail(run: Run, most: int = 4000) -> str:
    """The last that an audit said."""
    path = run.folder / LOG
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        return file.read().decode("utf-8", "replace")


def verdict_so_far(run: Run) -> str:
    """The sentence that the report would begin with now."""
    if run.index is None or run.done == 0:
        return ""
    index, rows, _ = read_rows(run.folder)
    return headline(rows, index.threshold, index.trials).sentence


def _folders(folder: Path, depth: int) -> list[Path]:
    if (folder / "experiment.json").exists() or (folder / LOG).exists():
        return [folder]
    if depth == 0:
        return []
    try:
        below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith("."))
    except PermissionError:
        return []
    return [found for path in below for found in _folders(path, depth - 1)]


def _inside(root: Path, name: str) -> Path:
    if "\0" in name:
        raise SpecError("name: expected that of a run, got one with a zero byte")
    base, folder = root.resolve(), (root / name).resolve()
    if not folder.is_relative_to(base):
        raise SpecError(f"{name}: expected a run inside of the folder, got one outside of it")
    return folder
