"""Uniform quantisation: few levels between nothing and the largest entry of each tensor.

Reisizadeh, Mokhtari, Hassani, Jadbabaie and Pedarsani, 2020, "FedPAQ" (https://arxiv.org/abs/1909.13014), as a defence
in Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a false sense of security in federated learning"
(https://arxiv.org/abs/2206.04055), eq. (6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence, NoDefence
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["Rounded", "UniformQuantise", "on_levels"]


def on_levels(values: Tensor, scale: Tensor, levels: int, rng: Stream | None) -> Tensor:
    """Each entry moved to one of the `levels` multiples of scale / levels, or zero, and its sign.

    Args:
        values: with no magnitude above `scale`.
        scale: one number.
        levels: s in eq. (6).
        rng: chance decides between the two levels around an entry, so that it stays right on average; without a stream
            the nearest one is taken, the even one of two equally near.

    Example:
        >>> on_levels(torch.tensor([0.1, -0.6, 1.0]), torch.tensor(1.0), 2, None)
        tensor([ 0.0000, -0.5000,  1.0000])
    """
    tiny = torch.finfo(values.dtype).tiny  # a tensor of zeros has no scale, and stays zero
    scale = scale.clamp(min=tiny)
    place = (values.abs() / scale * levels).clamp(max=levels)  # in [0, s]
    if rng is None:
        level = place.round()
    else:
        chance = torch.rand(values.shape, generator=rng.generator(), dtype=torch.float64).to(values)
        level = place.floor()
        level = level + (chance < place - level)  # eq. (7)
    return values.sign() * (level / levels) * scale


@dataclass(frozen=True)
class UniformQuantise(Defence):
    """Move every entry of the update to the nearest of 2s + 1 levels, which divide [−max, max] of its tensor evenly.

    Args:
        bits: of one entry; s = 2^(bits − 1) − 1, the largest for which 2s + 1 levels fit into them.
        stochastic: chance decides between the two levels around an entry instead, which makes the result right on
            average, and is QSGD with the largest entry for its norm.

    Note:
        Eq. (6) leaves the norm ‖g‖_p and κ open. The released code takes the largest magnitude and κ = 1, as here. The
        text has 3 bits: `as_paper`. The code ships with s = 15, which is `as_code`: 5 bits.

    Example:
        >>> from seepage.streams import Stream
        >>> update = {"w": torch.tensor([0.3, -0.7, 3.0])}
        >>> UniformQuantise(bits=3).on_update(update, Stream.from_seed(0))["w"]
        tensor([ 0., -1.,  3.])
        >>> UniformQuantise(bits=3).expected
        Rounded(levels=3)
    """

    name: ClassVar[str] = "uniform-quantise"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as_paper": {"bits": 3}, "as_code": {"bits": 5}}

    bits: int = 3
    stochastic: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 32:
            raise ValueError(
                f"expected `bits` from 2 to 32, got {self.bits}; one bit has no zero: that is the defence `sign`"
            )

    @property
    def levels(self) -> int:
        """Levels above zero, s in eq. (6)."""
        return (1 << (self.bits - 1)) - 1

    @property
    def expected(self) -> Defence:
        """Where chance rounds, the update as it was, which is its mean; else see `Rounded`."""
        return NoDefence() if self.stochastic else Rounded(self.levels)

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Each tensor on levels of its own; without a stream as it was, see `expected`."""
        if rng is None:
            return update
        return {
            name: on_levels(u, u.abs().max(), self.levels, rng / name if self.stochastic else None)
            for name, u in update.items()
        }

    def wire(self, before: Wire) -> Wire:
        """Codes of `bits` and the largest magnitude of each tensor; zeros stay zeros."""
        return Wire(self.bits, scales=True, sparse=before.sparse)


@dataclass(frozen=True)
class Rounded(Defence):
    """Rounding to the nearest level as an attacker can follow it, who has the levels from the message.

    Compared as it is with a message of which most entries are zeros that were small numbers, a guess shrinks. Compared
    after it was rounded to the same levels, the truth explains the message to the last entry. Rounding has no slope;
    the attack takes it to be 1, the straight-through estimator of Bengio, Léonard and Courville, 2013
    (https://arxiv.org/abs/1308.3432). yue2023 leaves rounding out.

    Args:
        levels: above zero.

    Example:
        >>> sent = {"w": torch.tensor([3.0, 0.0])}
        >>> Rounded(levels=3).given(sent).on_update({"w": torch.tensor([1.9, 0.4])}, None)
        {'w': tensor([2., 0.])}
    """

    name: ClassVar[str] = "rounded"

    levels: int

    def given(self, sent: dict[str, Tensor]) -> Defence:
        """The largest entry of each tensor is sent as it is, and the levels are parts of it."""
        return _RoundedTo(self.levels, {name: s.abs().max() for name, s in sent.items()})


@dataclass(frozen=True, eq=False)
class _RoundedTo(Defence):
    name: ClassVar[str] = "rounded"

    levels: int
    scales: dict[str, Tensor]

    def on_update(self, update: dict[str, Tensor], rng: Stream | None) -> dict[str, Tensor]:
        """Each tensor on the levels, with the slope of the identity."""
        return {
            name: on_levels(u.detach(), self.scales[name], self.levels, None) + (u - u.detach())
            for name, u in update.items()
        }
