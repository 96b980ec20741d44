"""What a loader returns: examples ready for a module, and everything public about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from seepage.spec import DataSpec, Examples

__all__ = ["Column", "Dataset"]


@dataclass(frozen=True)
class Column:
    """Where one column of a table went: its slice of the feature axis, and how to read it back.

    Args:
        name: as in the source file.
        start: first feature.
        stop: one past the last feature.
        kind: `"numeric"` is one feature; `"categorical"` is one feature per value, one-hot; `"binary"` is one feature
            that is 1 for the second of two values.
        values: the values of a categorical or binary column, in feature order.
        offset: numeric only; the value in the source file is `offset + scale * raw`.
        scale: see `offset`.

    Example:
        >>> sex = Column("sex", 6, 8, "categorical", ("Female", "Male"))
        >>> sex.features
        slice(6, 8, None)
    """

    name: str
    start: int
    stop: int
    kind: Literal["numeric", "categorical", "binary"]
    values: tuple[str, ...] = ()
    offset: float = 0.0
    scale: float = 1.0

    @property
    def features(self) -> slice:
        """The features of this column, to index the last axis with."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory, on the CPU.

    Args:
        name: as in `seepage.data.DATASETS`.
        spec: shape, range and normalisation of the examples.
        train: normalised float32 inputs; targets are long class numbers, or float32 of shape (n, targets).
        test: likewise, never trained on.
        train_owner: who each training example belongs to by nature (a writer, a person, an airline).
        classes: the name of each class, by default its number; empty for regression.
        licence: one line.
        source: where it comes from.
        test_owner: likewise for the test examples.
        columns: for tables, what each feature is.
        target: for regression, how to read the target back: source value = `offset + scale * y`.
        vocabulary: for text, each token by its id.

    Example:
        >>> import torch
        >>> half = Examples(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.long))
        >>> spec = DataSpec((1, 2, 2), classes=2, mean=(0.5,), std=(0.5,))
        >>> data = Dataset("toy", spec, half, half)
        >>> data.normalised_by().train.x.unique(), data.classes
        (tensor([0.5000]), ('0', '1'))
    """

    name: str
    spec: DataSpec
    train: Examples
    test: Examples
    train_owner: Tensor | None = None
    classes: tuple[str, ...] = ()
    licence: str = ""
    source: str = ""
    test_owner: Tensor | None = None
    columns: tuple[Column, ...] = ()
    target: Column | None = None
    vocabulary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for half, examples, owner in (
            ("train", self.train, self.train_owner),
            ("test", self.test, self.test_owner),
        ):
            if examples.x.shape[1:] != self.spec.shape:
                raise ValueError(
                    f"expected {half} examples of shape {self.spec.shape}, got {tuple(examples.x.shape[1:])}; "
                    "make `spec.shape` and the examples agree"
                )
            if not self.spec.is_text and not examples.x.is_floating_point():
                raise ValueError(
                    f"expected normalised {half} examples in floating point, got {examples.x.dtype}; "
                    "divide as `spec.normalise` does"
                )
            _check_labels(examples.y, self.spec, half)
            if owner is not None and len(owner) != len(examples):
                raise ValueError(
                    f"expected one {half} owner per example, got {len(owner)} owners for {len(examples)} examples"
                )
        if self.spec.classes is not None and not self.classes:
            object.__setattr__(self, "classes", tuple(map(str, range(self.spec.classes))))
        if self.spec.classes is not None and len(self.classes) != self.spec.classes:
            raise ValueError(f"expected {self.spec.classes} class names, got {len(self.classes)}")

    def column(self, name: str) -> Column:
        """The column of that name; a table's only."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"expected one of the columns {[c.name for c in self.columns]} of {self.name!r}, got {name!r}")

    def normalised_by(self, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,)) -> Dataset:
        """The same data under another normalisation; without arguments raw values, as some papers feed them."""
        if self.spec.is_text:
            raise ValueError(f"expected numbers to normalise, got the text {self.name!r}; leave `raw` out")
        spec = replace(self.spec, mean=mean, std=std)

        def again(half: Examples) -> Examples:
            return Examples(spec.normalise(self.spec.pixels(half.x)), half.y)

        return replace(self, spec=spec, train=again(self.train), test=again(self.test))

    def resized(self, size: int) -> Dataset:
        """The same images with `size` × `size` pixels, by bicubic interpolation."""
        if not self.spec.is_image:
            raise ValueError(f"expected images to resize, got the table {self.name!r}; leave `size` out")
        spec = replace(self.spec, shape=(self.spec.shape[0], size, size))

        def again(half: Examples) -> Examples:
            pixels = self.spec.pixels(half.x)
            pixels = interpolate(pixels, (size, size), mode="bicubic", antialias=True)
            return Examples(spec.normalise(pixels.clamp(spec.low, spec.high)), half.y)

        return replace(self, spec=spec, train=again(self.train), test=again(self.test))


def _check_labels(y: Tensor, spec: DataSpec, half: str) -> None:
    if spec.classes is None:
        return
    if y.dtype != torch.long or y.ndim != 1:
        raise ValueError(
            f"expected {half} labels as one whole number per example, torch.int64 of shape (n,), got {y.dtype} "
            f"of shape {tuple(y.shape)}; call `.long()`, after `.argmax(1)` where there is a score for each class"
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < spec.classes:
        raise ValueError(
            f"expected {half} labels 0 to {spec.classes - 1}, got {int(y.min())} to {int(y.max())}; "
            "make `spec.classes` and the labels agree"
        )
