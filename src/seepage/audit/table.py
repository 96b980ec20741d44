"""The table of results: one parquet file per finished trial, written by rename.

A kill loses at most the trial in flight, many machines can write side by side, and pandas, polars or duckdb read the
folder as one table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

__all__ = ["COLUMNS", "Pictures", "Table"]

COLUMNS = pa.schema(
    [
        ("trial", pa.string()),
        ("experiment", pa.string()),
        ("case", pa.string()),
        ("attack", pa.string()),
        ("attack_settings", pa.string()),
        ("defence", pa.string()),
        ("defence_settings", pa.string()),
        ("threat", pa.string()),
        ("data", pa.string()),
        ("model", pa.string()),
        ("client", pa.string()),
        ("item", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("seed", pa.int64()),
        ("outcome", pa.string()),
        ("device", pa.string()),
        ("seepage", pa.string()),
        ("torch", pa.string()),
        ("diagnosis", pa.string()),
    ]
)


@dataclass(frozen=True, eq=False)
class Pictures:
    """True images beside what the attack made of them.

    Args:
        client: names, one per picture.
        item: place among the client's examples.
        truth: bytes, (n, height, width, channels); of no height where it is not known.
        guess: likewise.
        psnr: dB, (n,).
    """

    client: Sequence[str]
    item: Sequence[str]
    truth: NDArray[np.uint8]
    guess: NDArray[np.uint8]
    psnr: NDArray[np.float64]

    @classmethod
    def join(cls, parts: Iterable[Pictures]) -> Pictures:
        """Those of several clients, one after another."""
        whole = list(parts)
        return cls(
            [name for part in whole for name in part.client],
            [item for part in whole for item in part.item],
            np.concatenate([part.truth for part in whole]),
            np.concatenate([part.guess for part in whole]),
            np.concatenate([part.psnr for part in whole]),
        )

    @property
    def scored(self) -> bool:
        """Whether there is a truth to hold guesses against."""
        return self.truth.ndim < 2 or self.truth.shape[1] > 0


@dataclass(frozen=True)
class Table:
    """A folder of results."""

    folder: Path

    def finished(self) -> set[str]:
        """Digests of the trials whose rows are there."""
        rows = self.folder / "rows"
        return {path.stem for path in rows.glob("*.parquet")} if rows.exists() else set()

    def write(self, trial: str, rows: Iterable[Mapping[str, Any]], pictures: Pictures | None, note: Any) -> None:
        """Add a finished trial: pictures and the note first, since its rows are what says that it is finished.

        Args:
            trial: its digest.
            rows: its measured numbers.
            pictures: for the report.
            note: what may differ between two runs of the same trial, such as the seconds it took.
        """
        if pictures is not None:
            arrays = {
                "client": np.array(list(pictures.client)),
                "item": np.array(list(pictures.item)),
                "truth": pictures.truth,
                "guess": pictures.guess,
                "psnr": pictures.psnr,
            }
            with _replacing(self.folder / "pictures" / f"{trial}.npz") as scratch, scratch.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
        with _replacing(self.folder / "notes" / f"{trial}.json") as scratch:
            scratch.write_text(json.dumps(note, indent=1))
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=COLUMNS)
        with _replacing(self.folder / "rows" / f"{trial}.parquet") as scratch:
            pq.write_table(table, scratch)

    def read(self, trials: Iterable[str] | None = None) -> pd.DataFrame:
        """All rows, or those of some trials, in an order that does not depend on who finished first."""
        order = sorted(self.finished()) if trials is None else list(dict.fromkeys(trials))
        found = self.finished()
        parts: list[pd.DataFrame] = [
            pq.read_table(self._rows(t), schema=COLUMNS).to_pandas() for t in order if t in found
        ]
        if not parts:
            empty: pd.DataFrame = COLUMNS.empty_table().to_pandas()
            return empty
        # Tables of earlier versions have no diagnosis.
        return pd.concat(parts, ignore_index=True).fillna({"diagnosis": ""})

    def pictures(self, trial: str) -> Pictures | None:
        """The pictures of a trial, if it has any."""
        path = self.folder / "pictures" / f"{trial}.npz"
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            return Pictures(
                arrays["client"].tolist(), arrays["item"].tolist(), arrays["truth"], arrays["guess"], arrays["psnr"]
            )

    def note(self, trial: str) -> dict[str, Any]:
        """The note of a trial, empty if it has none."""
        path = self.folder / "notes" / f"{trial}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def forget(self, trial: str) -> None:
        """Remove the rows of a trial, so that it runs again."""
        self._rows(trial).unlink(missing_ok=True)

    def _rows(self, trial: str) -> Path:
        return self.folder / "rows" / f"{trial}.parquet"


class _replacing:
    """A file to write that takes its real name only when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scratch = path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.scratch

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            os.replace(self.scratch, self.path)
        else:
            self.scratch.unlink(missing_ok=True)
