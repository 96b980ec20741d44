"""Random pruning of gradients.

Zhu, Liu and Han, 2019, "Deep leakage from gradients" (https://arxiv.org/abs/1906.08935) prune what is small. Here
chance decides, as in Dimitrov, Balunović, Konstantinov and Vechev, 2022, "Data leakage in federated averaging"
(https://arxiv.org/abs/2206.12395), appendix C.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.placed import Placed, Where
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["RandomPruning"]


@dataclass(frozen=True)
class RandomPruning(Placed):
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
        super().__post_init__()
        if not 0 <= self.probability < 1:
            raise ValueError(f"expected `probability` in [0, 1), got {self.probability}")

    @property
    def expected(self) -> Defence:
        """What it does on average."""
        return replace(self, on_average=True)

    def changed(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """The gradient without the entries that chance took."""
        if rng is None or self.on_average:
            return (1 - self.probability) * gradient
        kept = torch.rand(gradient.shape, generator=rng.generator()) >= self.probability
        return gradient * kept.to(gradient.device)

    def wire(self, before: Wire) -> Wire:
        """Zeros are left out, where what is sent is pruned."""
        return replace(before, sparse=True) if self.where == "update" else before
