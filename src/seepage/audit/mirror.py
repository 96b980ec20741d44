"""A copy of the results in a shared folder or an object store, from which another machine can go on.

Any address that fsspec understands will do: `s3://bucket/audit`, `gs://…`, `file:///mnt/shared/audit`. Rows, notes and
pictures are copied as they are finished; captures and secrets stay where they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from seepage.audit.pool import Done
from seepage.audit.values import SpecError

__all__ = ["Mirror"]

PARTS = (("pictures", "npz"), ("notes", "json"), ("rows", "parquet"))
"""Rows last: they are what says that a trial is finished."""


@dataclass(frozen=True)
class Mirror:
    """A folder of results, and the place where it is copied to.

    Args:
        url: of the copy.
        folder: of the results.
    """

    url: str
    folder: Path

    def fetch(self) -> int:
        """Bring what is finished there and not here; says how many trials that is.

        Raises:
            SpecError: when there is no such kind of place.
        """
        store, root = self._open()
        before = len(list((self.folder / "rows").glob("*.parquet")))
        for part, kind in PARTS:
            place = f"{root}/{part}"
            for remote in sorted(store.ls(place, detail=False)) if store.exists(place) else []:
                name = str(remote).rsplit("/", 1)[-1]
                here = self.folder / part / name
                if name.startswith(".") or not name.endswith(f".{kind}") or here.exists():
                    continue
                here.parent.mkdir(parents=True, exist_ok=True)
                scratch = here.with_name(f".{name}.{os.getpid()}")
                store.get_file(remote, str(scratch))
                os.replace(scratch, here)
        return len(list((self.folder / "rows").glob("*.parquet"))) - before

    def landed(self, done: Done) -> None:
        """Copy a trial that was just finished."""
        for part, kind in PARTS:
            self._put(f"{part}/{done.trial.digest}.{kind}")

    def close(self) -> None:
        """Copy what tells which trials belong together."""
        self._put("experiment.json")

    def _put(self, name: str) -> None:
        here = self.folder / name
        if not here.exists():
            return
        store, root = self._open()
        there = f"{root}/{name}"
        folder, _, last = there.rpartition("/")
        store.makedirs(folder, exist_ok=True)
        scratch = f"{folder}/.{last}.{os.getpid()}"
        store.put_file(str(here), scratch)
        store.mv(scratch, there)  # whole, or not at all

    def _open(self) -> tuple[Any, str]:
        try:
            store, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise SpecError(f"--mirror: expected an address that fsspec can open, got {self.url!r}: {error}") from error
        return store, str(root).rstrip("/")
