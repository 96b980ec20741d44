"""Model sparsification: the smallest of the weights that are sent become zero.

Zhao, Luo and Ding, 2023, "Deep Leakage from Model in Federated Learning" (https://arxiv.org/abs/2206.04887), section
5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["WeightSparsify"]


@dataclass(frozen=True)
class WeightSparsify(Defence):
    """Send weights of which those under a quantile of their magnitudes are zero.

    Args:
        share: of the weights that become zero, in [0, 1).
        per_tensor: a quantile for each tensor instead of one for the whole model.
        both: what an observer sees of the global model is pruned likewise; the client trains from the real one.

    Note:
        The text prunes what is sent by one quantile of the whole model. The released code, which is `as_code`, prunes
        each tensor by its own, and both snapshots; it compares weights, so its reading needs a recipe that sends them.

    Example:
        >>> weights = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([30.0, 40.0])}
        >>> WeightSparsify(0.5).on_weights(weights, None)
        {'a': tensor([0., 0.]), 'b': tensor([30., 40.])}
        >>> WeightSparsify(0.5, per_tensor=True).on_weights(weights, None)
        {'a': tensor([ 0., -2.]), 'b': tensor([ 0., 40.])}
    """

    name: ClassVar[str] = "weight-sparsify"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {},
        "as_code": {"per_tensor": True, "both": True},
    }
    changes_weights: ClassVar[bool] = True

    share: float = 0.5
    per_tensor: bool = False
    both: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"expected `share` in [0, 1), got {self.share}")

    def on_weights(self, weights: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Zero every weight whose magnitude is under the quantile."""
        sizes = {name: w.detach().abs() for name, w in weights.items()}
        if self.per_tensor:
            thresholds = {name: self._quantile(size) for name, size in sizes.items()}
        else:
            whole = self._quantile(torch.cat([size.reshape(-1) for size in sizes.values()]))
            thresholds = dict.fromkeys(sizes, whole)
        return {name: torch.where(sizes[name] >= thresholds[name], w, 0) for name, w in weights.items()}

    def on_global(self, weights: dict[str, Tensor], rng: Stream) -> dict[str, Tensor]:
        """The same, in the reading that covers the global model too."""
        return self.on_weights(weights, rng) if self.both else weights

    def wire(self, before: Wire) -> Wire:
        """Weights that are zero are left out; others are floats, whatever was done to the update."""
        return Wire(sparse=True)

    def _quantile(self, sizes: Tensor) -> Tensor:
        # `torch.quantile` refuses large tensors. It interpolates, so all up to the next place are under its answer.
        place = ceil(self.share * (sizes.numel() - 1))
        return sizes.reshape(-1).kthvalue(place + 1).values
