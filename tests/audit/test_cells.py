"""Rows of a table, from the attack to the table of results."""

from __future__ import annotations

from pathlib import Path

import torch

from seepage.audit.experiment import parse
from seepage.audit.run import run


def test_rows_are_scored_cell_by_cell_beside_the_most_frequent_values(tmp_path: Path) -> None:
    spec = {
        "data": {"name": "seepage.data.leaf_synthetic:leaf_synthetic"},  # one column of two values, 99 of numbers
        "clients": {"count": 2, "examples": 2},
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "recipe": {"sends": "gradient"},
        "attack": [
            {"name": "tableak", "steps": 2, "starts": 2},
            {"name": "tableak", "preset": "no_pooling", "steps": 2},
        ],
    }
    rows = run(parse(spec, "cells.toml"), tmp_path, device=torch.device("cpu")).read()
    counts = rows.groupby(["attack_settings", "metric"])["value"].count().unstack(fill_value=0)
    for metric in ("cell_accuracy", "category_accuracy", "number_accuracy"):
        assert counts[metric].tolist() == [4, 4]  # two clients with two rows each
        assert counts[f"{metric}_of_majority"].tolist() == [4, 4]
    assert counts["rows_found"].tolist() == [2, 2]
    assert sorted(counts["sure_cell_accuracy"]) == [0, 2]  # one restart does not say how sure it is
    assert rows[rows["metric"] == "cell_accuracy"]["value"].between(0, 1).all()
