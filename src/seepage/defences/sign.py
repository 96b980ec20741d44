"""signSGD: send the sign of every entry.

Bernstein, Wang, Azizzadenesheli and Anandkumar, 2018, "signSGD: compressed optimisation for non-convex problems"
(https://arxiv.org/abs/1802.04434); as a defence in Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a
false sense of security in federated learning" (https://arxiv.org/abs/2206.04055), eq. (5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["Sign"]


@dataclass(frozen=True)
class Sign(Defence):
    """Replace every entry of the update by its sign.

    Args:
        scaled: times the mean magnitude of the tensor, as in Karimireddy et al., 2019, "Error feedback fixes signSGD"
            (https://arxiv.org/abs/1901.09847). Without it, entries are ±1, and the server needs a small `server_lr`.
        keep_zero: zero stays zero, a third value, instead of becoming +1.
        slope: at zero of the tanh that stands for the sign where an attacker simulates it.
        by_size: the tanh takes an entry over the mean magnitude of its tensor; otherwise the entry as it is.
        smooth: that tanh instead of the sign: all that an attack can follow, since the sign has no slope.

    Note:
        The text has sign(0) = 0, the released code +1: `as_paper` and `as_code`. Both presets have the plain
        tanh(g′) of eq. (15), which the code leaves out. Where gradients are small, that is far from any sign; `by_size`
        is not in the paper.

    Example:
        >>> update = {"w": torch.tensor([0.5, -1.5, 0.0])}
        >>> Sign().on_update(update, Stream.from_seed(0))["w"]
        tensor([ 1., -1.,  1.])
        >>> Sign(scaled=True, keep_zero=True).on_update(update, Stream.from_seed(0))["w"]
        tensor([ 0.6667, -0.6667,  0.0000])
        >>> Sign(by_size=False).on_update(update, None)["w"]
        tensor([ 0.4621, -0.9051,  0.0000])
    """

    name: ClassVar[str] = "sign"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"keep_zero": True, "by_size": False},
        "as_code": {"by_size": False},
    }

    scaled: bool = False
    keep_zero: bool = False
    slope: float = 1.0
    by_size: bool = True
    smooth: bool = False

    def __post_init__(self) -> None:
        if self.slope <= 0:
            raise ValueError(
                f"expected `slope` above 0, got {self.slope}; the larger, the nearer the tanh is to a sign"
            )

    @property
    def expected(self) -> Defence:
        """A tanh in place of the sign, eq. (15)."""
        return replace(self, smooth=True)

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """The sign of each entry; without a stream its tanh."""
        return {name: self._signed(u, self.smooth or rng is None) for name, u in update.items()}

    def wire(self, before: Wire) -> Wire:
        """One bit, or two with a zero; a float for each tensor where it is scaled."""
        if self.keep_zero:
            return Wire(2, scales=self.scaled, sparse=before.sparse)
        return Wire(1, scales=self.scaled)

    def _signed(self, u: Tensor, smooth: bool) -> Tensor:
        size = u.abs().mean().clamp(min=torch.finfo(u.dtype).tiny)
        if smooth:
            sign = torch.tanh(self.slope * (u / size if self.by_size else u))
        else:
            sign = u.sign() if self.keep_zero else torch.where(u >= 0, 1, -1).to(u.dtype)
        return size * sign if self.scaled else sign
