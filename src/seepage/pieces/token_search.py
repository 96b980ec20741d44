"""Texts whose every place lies in a space, where what stands at a place depends on all tokens of the text.

As in Gauss and Newton's method: all exchanges of a single token are tried, which says how each moves every place, and
the mixture of exchanges that brings all places into the space is a linear least-squares problem with weights that are
a share for each token of a place. A row of attention is nearly linear in what is attended to, so that this holds far
beyond single exchanges. Rounded to one token a place, it is where the next step sets out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Choices", "Outside", "settle"]

Outside = Callable[[Tensor], Tensor]
"""From texts (n, length) to what lies outside of the space, (n, length, directions), and nothing at empty places."""

COLUMNS = 8
"""Mixtures that are looked for at once, from different beginnings: with several texts there is more than one."""

STEPS = 200
"""Steps of accelerated projected gradient descent to each of them."""

DECISION = 0.002
"""By how much of the largest curvature mixtures are driven apart, at last: a text has one token a place."""

AVOIDANCE = 0.0005
"""How much of it a token costs at first that a known text has at the same place, so that others are set out for."""

NEAR = 0.05
"""A place of this distance counts half as much as one that lies in the space; its token is likely to be wrong."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What may stand at each place; 0 is nothing.

    Args:
        tokens: (length, most), filled up.
        there: which of them are choices, (length, most).
    """

    tokens: Tensor
    there: Tensor

    @staticmethod
    def of(candidates: Sequence[Tensor], device: torch.device) -> Choices:
        """The candidates of each place, or nothing, which is how lengths are found; the first place is never empty."""
        some = [c if i == 0 and len(c) else torch.cat([c, c.new_zeros(1)]) for i, c in enumerate(candidates)]
        most = max(len(c) for c in some)
        tokens = torch.stack([torch.cat([c, c.new_zeros(most - len(c))]) for c in some]).to(device)
        sizes = torch.tensor([len(c) for c in some], device=device)
        return Choices(tokens, torch.arange(most, device=device) < sizes[:, None])

    @property
    def trust(self) -> Tensor:
        """How likely a token is the right one when nothing more is known, (length,)."""
        return 1 / (self.tokens != 0).sum(-1).clamp(min=1)

    def exchanged(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """The text with every choice at its place, (n, length), and the place, (n,)."""
        places = self.there.nonzero()[:, 0]
        texts = text.repeat(len(places), 1)
        texts[torch.arange(len(places)), places] = self.tokens[self.there]
        return texts, places

    def shares(self, weights: Tensor) -> Tensor:
        """The nearest weights that are not negative and sum up to 1 at each place, (…, length, most)."""
        lowest = torch.finfo(weights.dtype).min
        ordered = weights.masked_fill(~self.there, lowest).sort(-1, descending=True).values
        number = torch.arange(1, self.there.shape[1] + 1, device=weights.device)
        beyond = ordered.masked_fill(ordered == lowest, 0.0).cumsum(-1) - 1
        kept = ((ordered - beyond / number) > 0).sum(-1, keepdim=True)
        return (weights - beyond.gather(-1, kept - 1) / kept).clamp(min=0) * self.there


def settle(
    text: Tensor, choices: Choices, outside: Outside, known: Sequence[Tensor], sweeps: int, rng: torch.Generator
) -> tuple[Tensor, float] | None:
    """Where joint exchanges lead from a text, and how far its places lie outside in the mean; `None` for known texts.

    Where they lead back, the best single exchange is made as long as it helps.

    Args:
        text: token ids, (length,).
        choices: for each place.
        outside: what should be nothing.
        known: texts that were found before.
        sweeps: how often all exchanges are tried.
        rng: of where mixtures begin.
    """
    trust, seen = choices.trust, {_key(text)}
    old = {_key(one) for one in known}
    cost = torch.zeros_like(choices.tokens, dtype=torch.float64)
    for one in known:
        cost[(choices.tokens == one.to(text)[:, None]) & (choices.tokens != 0)] = AVOIDANCE
    distance = float("inf")
    for _ in range(sweeps):
        base = outside(text[None])[0]
        texts, places = choices.exchanged(text)
        moved = outside(texts)
        distance, single = float(_mean(base[None], text[None])), _mean(moved, texts)
        change = moved - base
        # A place says which tokens it sees while its own is right: what another one there would do is left out.
        change[torch.arange(len(places)), places] = 0.0
        solved = _solved(change * trust[:, None], base * trust[:, None], choices, cost, rng)
        cost = torch.zeros_like(cost)
        distances = _mean(outside(solved), solved)
        best = int(distances.argmin())
        if _key(solved[best]) in old:
            return None
        if _key(solved[best]) not in seen:
            text, distance = solved[best], float(distances[best])
        else:
            single = single.masked_fill(torch.tensor([_key(t) in old for t in texts]).to(single.device), float("inf"))
            if float(single.min()) >= distance:
                break
            text, distance = texts[int(single.argmin())], float(single.min())
        seen.add(_key(text))
        trust = NEAR / (outside(text[None])[0].norm(dim=-1) + NEAR)
    return text, distance


def _solved(change: Tensor, base: Tensor, choices: Choices, cost: Tensor, rng: torch.Generator) -> Tensor:
    """Texts whose exchanges together take back `base` where they move each place by `change`, (columns, length)."""
    there, moves = choices.there, change.flatten(1)
    gram, slope = moves @ moves.T, moves @ base.flatten()
    drawn = torch.rand(COLUMNS, *there.shape, generator=rng, dtype=torch.float64).to(moves)
    curvature = _largest(gram).clamp(min=torch.finfo(moves.dtype).tiny)
    weights = choices.shares(2 * drawn)
    ahead, pace = weights, 1.0
    for step in range(STEPS):
        descent = torch.zeros_like(ahead)
        descent[:, there] = (ahead[:, there] @ gram + slope) / curvature
        descent += cost.to(ahead) - DECISION * step / STEPS * ahead
        before, weights = weights, choices.shares(ahead - descent)
        quicker = (1 + (1 + 4 * pace**2) ** 0.5) / 2
        ahead, pace = weights + (pace - 1) / quicker * (weights - before), quicker
    return choices.tokens.expand(COLUMNS, -1, -1).gather(-1, weights.argmax(-1, keepdim=True))[..., 0]


def _largest(gram: Tensor) -> Tensor:
    """Largest eigenvalue, from powers of the matrix and a little more to be safe."""
    direction = gram.sum(0) + gram.diagonal()
    for _ in range(30):
        direction = gram @ (direction / direction.norm().clamp(min=torch.finfo(gram.dtype).tiny))
    largest: Tensor = 1.05 * direction.norm()
    return largest


def _mean(outside: Tensor, texts: Tensor) -> Tensor:
    """Distance of the places that are filled, (n,)."""
    filled = texts != 0
    mean: Tensor = (outside.norm(dim=-1) * filled).sum(-1) / filled.sum(-1).clamp(min=1)
    return mean


def _key(text: Tensor) -> tuple[int, ...]:
    return tuple(text.tolist())
