"""Tables to features: one-hot categories, standardised numbers, and a record of what went where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.data.dataset import Column
from seepage.spec import DataSpec

__all__ = ["Encoding", "Table"]

Table = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Encoding:
    """How a table becomes features, learnt from its training rows alone.

    Raw values lie in [0, 1] for every feature: categories are one-hot, numbers run from the smallest to the largest
    training value (test rows may lie outside). Normalisation then standardises the numbers and leaves one-hot
    features as they are, so `spec.low`, `spec.high`, `spec.mean` and `spec.std` mean the same as for images.

    Example:
        >>> table = {"age": np.array([20.0, 60.0]), "sex": np.array(["f", "m"])}
        >>> encoding = Encoding.of(table)
        >>> encoding.normalise(table)
        tensor([[-1.,  1.,  0.],
                [ 1.,  0.,  1.]])
        >>> encoding.columns[0].offset, encoding.columns[0].scale
        (20.0, 40.0)
    """

    columns: tuple[Column, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, train: Table, binary: Collection[str] = ()) -> Encoding:
        """Learns the categories, ranges, means and deviations of `train`; float columns are numeric, others not.

        Args:
            train: the rows.
            binary: columns of two values that become one feature instead of two.

        Raises:
            ValueError: when a column of `binary` has not two values.
        """
        columns: list[Column] = []
        mean: list[float] = []
        std: list[float] = []
        for name, values in train.items():
            start = len(mean)
            if np.issubdtype(values.dtype, np.floating):
                low, span = float(values.min()), float(np.ptp(values))
                scale = span or 1.0  # a constant column carries nothing, and must not divide by zero
                columns.append(Column(name, start, start + 1, "numeric", offset=low, scale=scale))
                raw = (values - low) / scale
                mean.append(float(raw.mean()))
                std.append(float(raw.std()) or 1.0)
            else:
                choices = tuple(sorted(str(value) for value in np.unique(values)))
                if name in binary and len(choices) != 2:
                    raise ValueError(f"expected two values in the binary column {name!r}, got {list(choices)}")
                width = 1 if name in binary else len(choices)
                columns.append(
                    Column(name, start, start + width, "binary" if name in binary else "categorical", choices)
                )
                mean += [0.0] * width
                std += [1.0] * width
        return cls(tuple(columns), tuple(mean), tuple(std))

    def spec(self, classes: int | None, targets: int = 1) -> DataSpec:
        """The description of the encoded rows."""
        categories = tuple((column.start, column.stop) for column in self.columns if column.kind != "numeric")
        return DataSpec(
            (len(self.mean),), classes, mean=self.mean, std=self.std, targets=targets, categories=categories
        )

    def raw(self, table: Table) -> Tensor:
        """Rows as raw values, (rows, features); a category unknown to the training rows is all zeros."""
        parts = []
        for column in self.columns:
            values = table[column.name]
            if column.kind == "numeric":
                parts.append(((values - column.offset) / column.scale)[:, None])
            else:
                choices = column.values[1:] if column.kind == "binary" else column.values
                parts.append((values[:, None] == np.array(choices)[None]).astype(np.float64))
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def normalise(self, table: Table) -> Tensor:
        """Rows as a module eats them, float32."""
        return self.spec(classes=None).normalise(self.raw(table)).float()
