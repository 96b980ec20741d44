"""QSGD: stochastic quantisation that is right on average.

Alistarh, Grubic, Li, Tomioka and Vojnovic, 2017, "QSGD: communication-efficient SGD via gradient quantization and
encoding" (https://arxiv.org/abs/1610.02132), section 3.1; as a defence in Yue, Jin, Wong, Baron and Dai, 2023,
"Gradient obfuscation gives a false sense of security in federated learning" (https://arxiv.org/abs/2206.04055).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from seepage.defences.base import Defence, NoDefence
from seepage.defences.uniform_quantise import on_levels
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["QSGD"]


@dataclass(frozen=True)
class QSGD(Defence):
    """Move every entry at random to one of the two levels around it, such that its mean stays what it was.

    Args:
        levels: above zero, s in the paper, at even distances up to the norm of the tensor; with signs and zero there
            are 2s + 1 values.
        norm: of a tensor: `"euclidean"`, under which large tensors become mostly zeros, or its `"max"`.

    Note:
        The paper has the Euclidean norm, and so has `as_paper`, with the 3 bits of yue2023. The released code of
        yue2023, which is `as_code`, takes the largest magnitude and ships with s = 15. The paper's buckets, which cut a
        tensor into pieces with norms of their own, are left out, and so is its Elias code: the size on the wire is that
        of codes of fixed width.

    Example:
        >>> import torch
        >>> update = {"w": torch.tensor([3.0, -4.0, 0.0])}
        >>> QSGD(levels=5).on_update(update, Stream.from_seed(0))["w"]  # the norm is 5
        tensor([ 3., -4.,  0.])
        >>> QSGD().expected
        NoDefence()
    """

    name: ClassVar[str] = "qsgd"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"levels": 3, "norm": "euclidean"},
        "as_code": {"levels": 15, "norm": "max"},
    }

    levels: int = 3
    norm: Literal["euclidean", "max"] = "euclidean"

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise ValueError(f"expected `levels` of at least 1, got {self.levels}; one level above zero is the fewest")
        if self.norm not in ("euclidean", "max"):
            raise ValueError(f"expected `norm` to be 'euclidean' or 'max', got {self.norm!r}")

    @property
    def expected(self) -> Defence:
        """The update as it was, which is its mean (lemma 3.1)."""
        return NoDefence()

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """‖v‖ · sgn(vᵢ) · ξᵢ(v, s) for each tensor; without a stream its mean."""
        if rng is None:
            return update
        return {name: on_levels(u, self._norm(u), self.levels, rng / name) for name, u in update.items()}

    def wire(self, before: Wire) -> Wire:
        """Codes for 2s + 1 values and the norm of each tensor; zeros stay zeros."""
        return Wire((2 * self.levels).bit_length(), scales=True, sparse=before.sparse)

    def _norm(self, u: Tensor) -> Tensor:
        return u.abs().max() if self.norm == "max" else u.norm()
