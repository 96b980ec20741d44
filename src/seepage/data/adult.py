"""Adult, also called Census Income: Becker and Kohavi, 1996 (https://archive.ics.uci.edu/dataset/2/adult)."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import torch

from seepage.data.dataset import Dataset
from seepage.data.folder import DataBroken, find_file
from seepage.data.tabular import Encoding, Table
from seepage.spec import Examples

__all__ = ["load_adult"]

NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
CLASSES = ("<=50K", ">50K")


def load_adult(folder: Path) -> Dataset:
    """Census rows with income above 50K as the class; a missing value is a category of its own, `?`."""
    (train, train_y), (test, test_y) = (_read(folder, file) for file in ("adult.data.gz", "adult.test.gz"))
    encoding = Encoding.of(train)
    return Dataset(
        "adult",
        encoding.spec(classes=2),
        Examples(encoding.normalise(train), train_y),
        Examples(encoding.normalise(test), test_y),
        None,
        CLASSES,
        "CC BY 4.0, UCI Machine Learning Repository",
        "https://archive.ics.uci.edu/dataset/2/adult",
        columns=encoding.columns,
    )


def _read(folder: Path, file: str) -> tuple[Table, torch.Tensor]:
    path = find_file("adult", folder, file)
    with gzip.open(path, "rt", encoding="ascii", newline="") as lines:
        # The test file opens with a remark and both end with an empty line: neither has fifteen cells.
        rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == len(COLUMNS) + 1]
    if not rows:
        raise DataBroken(f"expected rows of {len(COLUMNS) + 1} cells in {path}, got none; put the UCI file there")
    cells = np.array(rows)
    table = {name: cells[:, i].astype(np.float64) if name in NUMERIC else cells[:, i] for i, name in enumerate(COLUMNS)}
    income = np.char.rstrip(cells[:, -1], ".")  # only the test file ends its labels with a full stop
    unknown = sorted(set(income.tolist()) - set(CLASSES))
    if unknown:
        raise DataBroken(f"expected incomes {list(CLASSES)} in {path}, got {unknown}; put the UCI file there")
    return table, torch.from_numpy((income == CLASSES[1]).astype(np.int64))
