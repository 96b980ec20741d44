"""The table of results: one parquet file per finished trial, written by rename.

A kill loses at most the trial in flight, many machines can write side by side, and pandas, polars or duckdb read the
folder as one table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from seepage.audit.values import SpecError
from seepage.untrusted import Refused, check_npz, parse_json, read_text

__all__ = ["COLUMNS", "Footage", "Pictures", "Table"]

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
class Footage:
    """How some of the pictures came about.

    Args:
        of: places of these pictures among all, (k,).
        moments: updates made at each frame, the first 0 and the last all, (moments,).
        way: bytes, (k, moments, height, width, channels).
        epochs: bytes, what was found for each epoch by itself, (k, epochs, height, width, channels); of no epochs where
            an attack does not keep them apart.
    """

    of: NDArray[np.int64]
    moments: NDArray[np.int64]
    way: NDArray[np.uint8]
    epochs: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Pictures:
    """True images beside what the attack made of them.

    Args:
        client: names, one per picture.
        item: place among the client's examples.
        truth: bytes, (n, height, width, channels); of no height where it is not known.
        guess: likewise.
        psnr: dB, (n,).
        footage: how some of them came about, where that was filmed.
    """

    client: Sequence[str]
    item: Sequence[str]
    truth: NDArray[np.uint8]
    guess: NDArray[np.uint8]
    psnr: NDArray[np.float64]
    footage: Footage | None = None

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
            _joined_footage(whole),
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
            if pictures.footage is not None:
                arrays |= {f"footage_{field.name}": getattr(pictures.footage, field.name) for field in fields(Footage)}
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
        parts = [self._read_rows(trial) for trial in order if trial in found]
        if not parts:
            empty: pd.DataFrame = COLUMNS.empty_table().to_pandas()
            return empty
        # In one piece: looking up one row in a column of a thousand pieces takes as long as in a thousand columns.
        whole: pd.DataFrame = pa.concat_tables(parts).combine_chunks().to_pandas()
        return whole.fillna({"diagnosis": ""})  # tables of earlier versions have none

    def pictures(self, trial: str) -> Pictures | None:
        """The pictures of a trial, if it has any."""
        path = self.folder / "pictures" / f"{trial}.npz"
        if not path.exists():
            return None
        try:
            check_npz(path)
            with np.load(path, allow_pickle=False) as arrays:
                names = [f"footage_{field.name}" for field in fields(Footage)]
                return Pictures(
                    arrays["client"].tolist(),
                    arrays["item"].tolist(),
                    arrays["truth"],
                    arrays["guess"],
                    arrays["psnr"],
                    Footage(*(arrays[name] for name in names)) if names[0] in arrays else None,
                )
        except Exception as error:
            raise SpecError(f"{path}: expected pictures as `seepage audit` writes them, got: {error}") from error

    def note(self, trial: str) -> dict[str, Any]:
        """The note of a trial, empty if it has none."""
        path = self.folder / "notes" / f"{trial}.json"
        if not path.exists():
            return {}
        try:
            note = parse_json(read_text(path), "json")
        except Refused as refused:
            raise SpecError(f"{path}: {refused}") from refused
        if not isinstance(note, dict):
            raise SpecError(f"{path}: expected what `seepage audit` writes, got {note!r:.60}; run the audit again")
        return note

    def _read_rows(self, trial: str) -> pa.Table:
        path = self._rows(trial)
        try:
            return pq.read_table(path, schema=COLUMNS)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SpecError(f"{path}: expected rows as `seepage audit` writes them, got: {error}") from error

    def _rows(self, trial: str) -> Path:
        return self.folder / "rows" / f"{trial}.parquet"


def _joined_footage(parts: Sequence[Pictures]) -> Footage | None:
    """Of those that were filmed at the same moments as the first."""
    offsets = np.cumsum([0, *(len(part.psnr) for part in parts)])
    filmed = [(part.footage, int(offset)) for part, offset in zip(parts, offsets, strict=False) if part.footage]
    alike = [(one, offset) for one, offset in filmed if _frames(one) == _frames(filmed[0][0])]
    if not alike:
        return None
    return Footage(
        np.concatenate([one.of + offset for one, offset in alike]),
        alike[0][0].moments,
        np.concatenate([one.way for one, _ in alike]),
        np.concatenate([one.epochs for one, _ in alike]),
    )


def _frames(footage: Footage) -> tuple[list[int], tuple[int, ...], tuple[int, ...]]:
    return footage.moments.tolist(), footage.way.shape[1:], footage.epochs.shape[1:]


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
