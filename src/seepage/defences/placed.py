"""Defences that act at one place of local training, which is theirs to choose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, get_args

from torch import Tensor

from seepage.defences.base import Defence
from seepage.streams import Stream

__all__ = ["Placed", "Where"]

Where = Literal["update", "step", "example"]
"""What a defence acts on: what is sent, the gradient of each local step, or that of each example in it."""


class Placed(Defence, ABC):
    """Does the same to each gradient of an example, to each gradient of a step, or to the update.

    A defence of this kind is a frozen dataclass with the fields below that says what it does in `changed`.

    Attributes:
        where: the place.
        reuse: whether every epoch draws the same numbers, for the gradient at the same place of it.
    """

    where: Where
    reuse: bool

    def __post_init__(self) -> None:
        if self.where not in get_args(Where):
            raise ValueError(f"expected `where` to be one of {get_args(Where)}, got {self.where!r}")

    @abstractmethod
    def changed(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """A gradient, or a tensor of the update, as the defence lets it through."""

    @property
    def per_example(self) -> bool:  # type: ignore[override]
        """Whether it acts on the gradients of single examples."""
        return self.where == "example"

    @property
    def per_step(self) -> bool:  # type: ignore[override]
        """Whether it acts on the gradient of each step."""
        return self.where == "step"

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        """Whether every epoch draws the same."""
        return self.reuse

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """The gradient of one example, where that is the place."""
        return self.changed(gradient, rng) if self.where == "example" else gradient

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """The gradient of a step, where that is the place."""
        return self.changed(gradient, rng) if self.where == "step" else gradient

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """What is sent, where that is the place."""
        if self.where != "update":
            return update
        return {name: self.changed(u, rng and rng / name) for name, u in update.items()}
