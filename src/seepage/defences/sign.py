"""signSGD: send the sign of every entry.

Bernstein, Wang, Azizzadenesheli and Anandkumar, 2018, "signSGD: compressed optimisation for non-convex problems"
(https://arxiv.org/abs/1802.04434); as a defence in Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a
false sense of security in federated learning" (https://arxiv.org/abs/2206.04055), eq. (5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.defences.base import Defence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["Followed", "Sign"]


@dataclass(frozen=True)
class Sign(Defence):
    """Replace every entry of the update by its sign.

    Args:
        scaled: times the mean magnitude of the tensor, as in Karimireddy et al., 2019, "Error feedback fixes signSGD"
            (https://arxiv.org/abs/1901.09847). Without it, entries are ±1, and the server needs a small `server_lr`.
        keep_zero: zero stays zero, a third value, instead of becoming +1.
        followed: by an attacker who has seen the message: the `"sign"` itself, see `Followed`, or the `"tanh"` that any
            other one has in its place.
        slope: of that tanh at zero.
        by_size: the tanh takes an entry over the mean magnitude of its tensor; otherwise the entry as it is.
        smooth: that tanh instead of the sign, which has no slope.

    Note:
        The text has sign(0) = 0, the released code +1: `as_paper` and `as_code`. Both presets have the plain
        tanh(g′) of eq. (15), which the code leaves out. Where gradients are small, that is far from any sign, and no
        tanh reaches it, so that the true images are not those that fit best. `by_size` and `followed = "sign"` are not
        in the paper.

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
        "as_paper": {"keep_zero": True, "followed": "tanh", "by_size": False},
        "as_code": {"followed": "tanh", "by_size": False},
    }

    scaled: bool = False
    keep_zero: bool = False
    followed: Literal["sign", "tanh"] = "sign"
    slope: float = 1.0
    by_size: bool = True
    smooth: bool = False

    def __post_init__(self) -> None:
        if self.followed not in ("sign", "tanh"):
            raise ValueError(f"expected `followed` to be 'sign' or 'tanh', got {self.followed!r}")
        if self.slope <= 0:
            raise ValueError(
                f"expected `slope` above 0, got {self.slope}; the larger, the nearer the tanh is to a sign"
            )

    @property
    def expected(self) -> Defence:
        """A tanh in place of the sign, eq. (15)."""
        return replace(self, smooth=True)

    def given(self, sent: dict[str, Tensor]) -> Defence:
        """The sign itself can be held against signs that were seen."""
        return Followed(replace(self, smooth=False)) if self.followed == "sign" else self

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """The sign of each entry; without a stream its tanh."""
        return {name: self.signed(u, self.smooth or rng is None) for name, u in update.items()}

    def wire(self, before: Wire) -> Wire:
        """One bit, or two with a zero; a float for each tensor where it is scaled."""
        if self.keep_zero:
            return Wire(2, scales=self.scaled, sparse=before.sparse)
        return Wire(1, scales=self.scaled)

    def signed(self, u: Tensor, smooth: bool = False) -> Tensor:
        """The sign of each entry of one tensor, or its tanh."""
        size = _size(u)
        if smooth:
            sign = torch.tanh(self.slope * (u / size if self.by_size else u))
        else:
            sign = u.sign() if self.keep_zero else torch.where(u >= 0, 1, -1).to(u.dtype)
        return size * sign if self.scaled else sign


@dataclass(frozen=True)
class Followed(Defence):
    """Signs as an attacker can follow them: each has the slope of its entry over the mean magnitude of its tensor.

    That is the straight-through estimator of Bengio, Léonard and Courville, 2013 (https://arxiv.org/abs/1308.3432). The
    squared distance to signs s is then four times their share that is wrong, and falls like Σ max(0, −s·g′) / Σ |g′|,
    the share of the guess that has a wrong sign: true images are at its minimum, and how large a guess is does not
    matter.

    Args:
        signs: what the client does.

    Example:
        >>> guess = torch.tensor([0.5, -1.5], requires_grad=True)
        >>> Followed(Sign()).on_update({"w": guess}, None)["w"].detach()
        tensor([ 1., -1.])
    """

    name: ClassVar[str] = "followed-sign"

    signs: Sign

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """The sign of each entry."""
        return {name: self._followed(u) for name, u in update.items()}

    def _followed(self, u: Tensor) -> Tensor:
        sloped = u if self.signs.scaled else u / _size(u)
        return self.signs.signed(u.detach()) + (sloped - sloped.detach())


def _size(u: Tensor) -> Tensor:
    return u.abs().mean().clamp(min=torch.finfo(u.dtype).tiny)
