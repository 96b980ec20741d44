"""Random pruning of gradients.

Zhu, Liu and Han, 2019, "Deep leakage from gradients" (https://arxiv.org/abs/1906.08935) prune what is small. Here
chance decides, as in Dimitrov, Balunović, Konstantinov and Vechev, 2022, "Data leakage in federated averaging"
(https://arxiv.org/abs/2206.12395), appendix C.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.gradient_noise import Where
from seepage.streams import Stream

__all__ = ["RandomPruning"]


@dataclass(frozen=True)
class RandomPruning(Defence):
    """Set each entry of every gradient to zero with a probability; the others stay as they are.

    Args:
        probability: p in Table 6.
        where: prune the gradient of each local `"step"`, that of each `"example"`, or the `"update"` that is sent.
        reuse: the same entries in every epoch, of the gradient at the same place of it.
        on_average: multiply by 1 − p instead, which is what pruning does on average: an attacker who knows the
            defence can simulate no more of it.

    Note:
        The text prunes "the entries of the gradient": `as_paper` is each step's. The released code prunes each
        example's, and draws once for all epochs: `as_code`.

    Example:
        >>> RandomPruning(0.25).on_gradient(torch.tensor([4.0, 8.0]), None)
        tensor([3., 6.])
    """

    name: ClassVar[str] = "random-pruning"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"where": "step"},
        "as_code": {"where": "example", "reuse": True},
    }

    probability: float = 0.2
    where: Where = "step"
    reuse: bool = False
    on_average: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise ValueError(f"expected `probability` in [0, 1), got {self.probability}")
        if self.where not in get_args(Where):
            raise ValueError(f"expected `where` to be one of {get_args(Where)}, got {self.where!r}")

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

    @property
    def expected(self) -> Defence:
        """What it does on average."""
        return replace(self, on_average=True)

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """The gradient of one example, pruned."""
        return self._pruned(gradient, rng) if self.where == "example" else gradient

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """The gradient of a step, pruned."""
        return self._pruned(gradient, rng) if self.where == "step" else gradient

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """What is sent, pruned."""
        if self.where != "update":
            return update
        return {name: self._pruned(u, rng and rng / name) for name, u in update.items()}

    def _pruned(self, whole: Tensor, rng: Stream | None) -> Tensor:
        if rng is None or self.on_average:
            return (1 - self.probability) * whole
        kept = torch.rand(whole.shape, generator=rng.generator()) >= self.probability
        return whole * kept.to(whole.device)
