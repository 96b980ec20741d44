"""A table made by hand, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from seepage.audit.table import COLUMNS, Pictures


@dataclass
class Notebook:
    """Collects rows and pictures as a run would."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Pictures] = field(default_factory=dict)

    def add(self, metric: str, value: float, **columns: Any) -> None:
        common = {
            "trial": "t",
            "experiment": "e",
            "case": "small",
            "attack": "inverting-gradients",
            "attack_settings": "tv=0.1",
            "defence": "none",
            "defence_settings": "",
            "threat": "honest-server",
            "data": "fashion-mnist",
            "model": "lenet",
            "client": "0",
            "item": "0",
            "seed": 7,
            "outcome": "reduced",
            "device": "cpu",
            "seepage": "0.1.0",
            "torch": "2.13.0",
            "diagnosis": "",
        }
        self.rows.append({**common, **columns, "metric": metric, "value": value})

    def images(self, psnr: Sequence[float], *, prior: float = 10.0, threshold: float = 20.0, **columns: Any) -> None:
        """One client whose images came back with these PSNR."""
        for item, value in enumerate(psnr):
            self.add("psnr", value, item=str(item), **columns)
            self.add("ssim", value / 50, item=str(item), **columns)
            self.add("psnr_of_constant", prior, item=str(item), **columns)
        share = float(np.mean([value > threshold for value in psnr]))
        self.add("recovered", share, item="all", **columns)

    def table_rows(self, found: Sequence[float], *, prior: float | None = 0.2, **columns: Any) -> None:
        """One client whose rows of a table of five columns came back with these shares of their cells."""
        for item, value in enumerate(found):
            self.add("cell_accuracy", value, item=str(item), **columns)
            self.add("exact_match", value / 2 + 0.5, item=str(item), **columns)
            if prior is not None:
                self.add("cell_accuracy_of_majority", prior, item=str(item), **columns)
        self.add("rows_found", float(np.mean([value == 1 for value in found])), item="all", **columns)
        self.add("column_count", 5, item="all", **columns)

    def arrays(self, found: Sequence[float], *, prior: float | None = 0.2, **columns: Any) -> None:
        """One client whose examples of numbers that are no table came back with these shares of their features."""
        for item, value in enumerate(found):
            self.add("exact_match", value, item=str(item), **columns)
            self.add("mae", 1 - value, item=str(item), **columns)
            if prior is not None:
                self.add("exact_match_of_public_mean", prior, item=str(item), **columns)

    def labels(self, found: float, *, wrong: float, count: int = 4, prior: float = 0.25, **columns: Any) -> None:
        """One client of which only labels were attacked."""
        mine = {"attack": "count-labels", "attack_settings": "method=auto", "item": "all", "outcome": "answered"}
        columns = {**mine, **columns}
        self.add("label_accuracy", found, **columns)
        self.add("label_count_error", wrong, **columns)
        self.add("label_count", count, **columns)
        self.add("label_accuracy_of_even", prior, **columns)
        self.add("label_confidence", 0.75, **columns)

    def features(self, errors: Sequence[float], **columns: Any) -> None:
        """One client of which came back, with these errors, what enters a layer."""
        for item, value in enumerate(errors):
            self.add("feature_error", value, item=str(item), **{"attack": "analytic", "attack_settings": "", **columns})

    def model(self, error: float, **columns: Any) -> None:
        """One client whose own model came back with this error."""
        columns = {"attack": "local-model", "attack_settings": "", "item": "all", "outcome": "answered", **columns}
        self.add("relative_error", error, **columns)
        self.add("relative_error_of_global_model", 0.75, **columns)
        self.add("relative_error_of_last_answer", 0.5, **columns)

    def attribute(self, found: float, **columns: Any) -> None:
        """One client of whose sensitive column this share was found."""
        columns = {
            "attack": "attribute-inversion",
            "attack_settings": "",
            "item": "all",
            "outcome": "answered",
            **columns,
        }
        self.add("attribute_accuracy", found, **columns)
        self.add("attribute_accuracy_of_majority", 0.625, **columns)

    def source(self, found: float, **columns: Any) -> None:
        """One client of whose target records this share was traced to it."""
        columns = {"attack": "source-inference", "attack_settings": "", "item": "all", "outcome": "answered", **columns}
        self.add("source_accuracy", found, **columns)
        self.add("source_accuracy_of_chance", 0.125, **columns)

    def classes(self, likeness: float, **columns: Any) -> None:
        """One client whose images are that much like what was found for their classes."""
        columns = {"attack": "model-inversion", "attack_settings": "", "item": "all", "outcome": "reduced", **columns}
        self.add("class_ssim", likeness, **columns)
        self.add("class_ssim_of_constant", 0.125, **columns)
        self.add("class_ssim_of_public_mean", 0.375, **columns)

    def learning(self, accuracy: Sequence[float], **columns: Any) -> None:
        """Accuracy after each round."""
        for number, value in enumerate(accuracy, 1):
            mine = {"attack": "none", "attack_settings": "", "threat": "none", "client": "all", "outcome": "measured"}
            self.add("accuracy", value, item=str(number), **{**mine, **columns})

    def failure(self, outcome: str, **columns: Any) -> None:
        """A trial that gave no number."""
        self.add("none", math.nan, **{"client": "", "item": "", "outcome": outcome, **columns})

    def show(self, trial: str, psnr: Sequence[float], client: str = "0") -> None:
        """Pictures of a trial."""
        n = len(psnr)
        truth = np.arange(n * 16, dtype=np.uint8).reshape(n, 4, 4, 1)
        items = [str(i) for i in range(n)]
        self.pictures[trial] = Pictures([client] * n, items, truth, 255 - truth, np.array(psnr, dtype=float))

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows) if self.rows else COLUMNS.empty_table().to_pandas()


@pytest.fixture
def book() -> Notebook:
    return Notebook()
