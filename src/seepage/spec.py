"""What one example looks like: shape, range, normalisation, and what is predicted from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DataSpec", "Examples"]


@dataclass(frozen=True)
class DataSpec:
    """The public description of the data.

    Tensors named `x` anywhere in Seepage are what the module eats, that is normalised;
    `pixels` are values in [`low`, `high`] as a person would look at them.

    Args:
        shape: of one example, without the batch axis: `(channels, height, width)` or `(features,)`.
        classes: number of classes; `None` for regression.
        low: smallest raw value.
        high: largest raw value.
        mean: subtracted from raw values; one number, or one per channel (or feature).
        std: raw values are divided by it; one number, or one per channel (or feature).
        targets: number of regression targets.
        vocabulary: for text, how many token ids there are; an example is `(length,)` whole numbers, and id 0 fills up
            what is shorter. `None` for everything that is a number.
        categories: for tables, the first feature and one past the last of each column of categories, in ascending
            order: one-hot features, or a single one that is 0 or 1. All other features are numbers.

    Example:
        >>> spec = DataSpec((1, 2, 2), classes=10, mean=(0.5,), std=(0.25,))
        >>> spec.normalise(torch.ones(1, 1, 2, 2)).unique()
        tensor([2.])
        >>> spec.pixels(spec.normalise(torch.ones(1, 1, 2, 2))).unique()
        tensor([1.])
    """

    shape: tuple[int, ...]
    classes: int | None = None
    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    targets: int = 1
    vocabulary: int | None = None
    categories: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            count = len(getattr(self, name))
            if count not in (1, self.shape[0]):
                raise ValueError(
                    f"expected `{name}` of length 1 or {self.shape[0]} for shape {self.shape}, got length {count}"
                )
        if min(self.std) <= 0:
            raise ValueError(f"expected every `std` above 0, got {self.std}")
        if not self.low < self.high:
            raise ValueError(f"expected `low` below `high`, got {self.low} and {self.high}")
        if self.vocabulary is not None and (self.vocabulary < 2 or len(self.shape) != 1):
            raise ValueError(
                "expected text to have a `vocabulary` of 2 or more and the shape (length,), "
                f"got {self.vocabulary} and {self.shape}"
            )
        ends = [0, *(end for column in self.categories for end in column), self.shape[0]]
        if self.categories and (ends != sorted(ends) or any(start == stop for start, stop in self.categories)):
            raise ValueError(
                f"expected `categories` as (start, stop) in ascending order within {self.shape[0]} features, "
                f"got {self.categories}"
            )

    @property
    def is_image(self) -> bool:
        """Whether an example is channels × height × width."""
        return len(self.shape) == 3

    @property
    def is_text(self) -> bool:
        """Whether an example is a row of token ids."""
        return self.vocabulary is not None

    @property
    def columns(self) -> tuple[tuple[int, int], ...]:
        """For tables, where every column begins and ends among the features: of categories, or of numbers.

        Example:
            >>> DataSpec((5,), categories=((1, 3), (4, 5))).columns
            ((0, 1), (1, 3), (3, 4), (4, 5))
        """
        taken = {feature for column in self.categories for feature in range(*column)}
        numbers = [(feature, feature + 1) for feature in range(self.shape[0]) if feature not in taken]
        return tuple(sorted([*self.categories, *numbers]))

    def _along_channels(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        column = torch.tensor(values, dtype=like.dtype, device=like.device)
        return column.reshape(-1, *[1] * (len(self.shape) - 1))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Raw values to what the module eats; any leading axes."""
        return (pixels - self._along_channels(self.mean, pixels)) / self._along_channels(self.std, pixels)

    def pixels(self, x: Tensor) -> Tensor:
        """What the module eats back to raw values; any leading axes; nothing is clipped."""
        return x * self._along_channels(self.std, x) + self._along_channels(self.mean, x)

    def box(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and largest normalised values, of the type and device of `like`.

        Example:
            >>> DataSpec((1, 2, 2), mean=(0.5,), std=(0.25,)).box(torch.zeros(1))[1].flatten()
            tensor([2.])
        """
        low, high = (torch.full((), v, dtype=like.dtype, device=like.device) for v in (self.low, self.high))
        return self.normalise(low), self.normalise(high)


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs (normalised) and targets, example axis first.

    Example:
        >>> len(Examples(torch.zeros(5, 1, 28, 28), torch.zeros(5, dtype=torch.long))[:2])
        2
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"expected as many targets as inputs, got {len(self.x)} inputs and {len(self.y)} targets")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, which: slice | Tensor) -> Examples:
        return Examples(self.x[which], self.y[which])

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Examples:
        """The same examples elsewhere; whole numbers, such as class numbers and token ids, keep their type."""
        x, y = (
            part.to(device=device, dtype=dtype) if part.is_floating_point() else part.to(device)
            for part in (self.x, self.y)
        )
        return Examples(x, y)

    @staticmethod
    def join(parts: list[Examples]) -> Examples:
        """All parts one after another."""
        return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
