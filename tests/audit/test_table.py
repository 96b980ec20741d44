"""Results on disk outlive the version that wrote them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from common.audits import perform, tiny
from seepage.audit.summary import read_rows, summarise
from seepage.audit.table import COLUMNS, Table
from seepage.report import render


def test_every_attacked_update_has_one_diagnosis_and_learning_has_none(tmp_path: Path) -> None:
    rows = perform(tiny(accuracy=True), tmp_path).read()
    attacked = rows[rows["attack"] != "none"]
    assert (attacked.groupby("client")["diagnosis"].nunique() == 1).all()
    assert (attacked["diagnosis"] != "").all()
    assert (rows.loc[rows["attack"] == "none", "diagnosis"] == "").all()


def test_a_table_from_before_there_were_diagnoses_is_read_summarised_and_shown(tmp_path: Path) -> None:
    perform(tiny(), tmp_path)
    for path in (tmp_path / "rows").iterdir():
        pq.write_table(pq.read_table(path).drop_columns(["diagnosis"]), path)
    index, rows, table = read_rows(tmp_path)
    assert list(rows) == COLUMNS.names
    assert set(rows["diagnosis"]) == {""}
    assert all(line.causes == {} for line in summarise(rows))
    page = render(index, rows, {trial: p for trial in index.trials if (p := table.pictures(trial)) is not None})
    assert "Why data did not come back" not in page


def test_old_and_new_tables_are_read_together(tmp_path: Path) -> None:
    perform(tiny(), tmp_path)
    (old,) = (tmp_path / "rows").iterdir()
    pq.write_table(pq.read_table(old).drop_columns(["diagnosis"]), old)
    perform(tiny(attack=[{"name": "inverting-gradients", "steps": 2}]), tmp_path)
    assert (Table(tmp_path).read()["diagnosis"] == "").any()
    assert (Table(tmp_path).read()["diagnosis"] != "").any()
