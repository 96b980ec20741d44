"""Top-k sparsification: send only the largest entries.

Aji and Heafield, 2017, "Sparse communication for distributed gradient descent" (https://arxiv.org/abs/1704.05021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["Kept", "TopK"]


@dataclass(frozen=True)
class TopK(Defence):
    """Keep the given share of entries, the largest in magnitude over all tensors together; the rest become zero.

    Args:
        share: of the entries that are kept, in (0, 1].
        per_tensor: that share of each tensor instead.
        strict: keep what is above the k-th largest of n entries, with k = ⌈share · n⌉, instead of the k-th too. Of a
            small tensor, such as the bias of ten classes, nothing is left then.

    Note:
        Yue et al., 2023, "Gradient obfuscation gives a false sense of security in federated learning"
        (https://arxiv.org/abs/2206.04055) keep 5 %: over "the gradient" by the text, `as_paper`; of each tensor and
        strictly in the released code, `as_code`.

    Example:
        >>> update = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0]), "b": torch.tensor([0.1, 0.2])}
        >>> TopK(0.5).on_update(update, None)
        {'w': tensor([0., 2., 3., 4.]), 'b': tensor([0., 0.])}
        >>> TopK(0.5, per_tensor=True).on_update(update, None)
        {'w': tensor([0., 0., 3., 4.]), 'b': tensor([0.0000, 0.2000])}
    """

    name: ClassVar[str] = "top-k"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"share": 0.05},
        "as_code": {"share": 0.05, "per_tensor": True, "strict": True},
    }

    share: float = 0.1
    per_tensor: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected `share` in (0, 1], got {self.share}")

    def given(self, sent: dict[str, Tensor]) -> Defence:
        """The message shows which entries were kept, and by the smallest of them how large another one can be."""
        least = {name: torch.where(s != 0, s.abs(), torch.inf).min() for name, s in sent.items()}
        if not self.per_tensor:
            least = dict.fromkeys(least, torch.stack(list(least.values())).min())
        return Kept(sent, least)

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Zero all entries under the k-th largest magnitude."""
        sizes = {name: u.detach().abs() for name, u in update.items()}
        if self.per_tensor:
            thresholds = {name: self._threshold(size.reshape(-1)) for name, size in sizes.items()}
        else:
            whole = self._threshold(torch.cat([size.reshape(-1) for size in sizes.values()]))
            thresholds = dict.fromkeys(sizes, whole)
        compare = torch.gt if self.strict else torch.ge
        return {name: u * compare(sizes[name], thresholds[name]) for name, u in update.items()}

    def wire(self, before: Wire) -> Wire:
        """Zeros are left out."""
        return replace(before, sparse=True)

    def _threshold(self, sizes: Tensor) -> Tensor:
        # The released code multiplies by 1 − sparsity, which rounding puts above the share: 51 of 1000 for 0.95.
        keep = ceil(len(sizes) * (1 - (1 - self.share))) if self.strict else max(1, round(self.share * len(sizes)))
        return sizes.topk(max(1, keep)).values[-1]


@dataclass(frozen=True, eq=False)
class Kept(Defence):
    """A choice of entries that was seen, as an attacker can follow it.

    Compared as it is with a message of which most entries are zeros that were small numbers, a guess shrinks. Compared
    on the kept entries alone, it may have large ones elsewhere, which would have been sent. So entries of a guess are
    compared where the message has any, and where they are larger than the smallest that was sent.

    Args:
        sent: the message.
        least: magnitude above which an entry is sent, for each tensor.

    Example:
        >>> seen = Kept({"w": torch.tensor([0.0, 0.0, 3.0])}, {"w": torch.tensor(3.0)})
        >>> seen.on_update({"w": torch.tensor([2.0, 5.0, 1.0])}, None)
        {'w': tensor([0., 5., 1.])}
    """

    name: ClassVar[str] = "kept"

    sent: dict[str, Tensor]
    least: dict[str, Tensor]

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Zero what is zero in the message and small enough for that."""
        return {
            name: u * ((self.sent[name] != 0) | (u.detach().abs() > self.least[name])) for name, u in update.items()
        }
