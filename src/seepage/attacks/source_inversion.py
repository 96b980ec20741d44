"""Whose record is it? The client whose updates its gradient is a part of.

Not in driouich2023 (https://arxiv.org/abs/2210.16205), whose source inference asks models; the same idea as
`attribute-inversion`: an update is a sum of gradients of records, so it is solved for who is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.precision import arithmetic
from seepage.finding import Finding, NotApplicable
from seepage.pieces.record_gradients import record_gradients
from seepage.pieces.spans import spread_rounds
from seepage.streams import Stream
from seepage.threat import Fact, Seen, View

__all__ = ["SourceInversion"]


@dataclass(frozen=True)
class SourceInversion:
    """Explain each client's update by the gradients of the target records, and see who needs which.

    What a client has beside them is noise, whose shape the targets themselves show: the best linear answer is then a
    ridge regression of the update on the targets' gradients. Its coefficients are brought to one scale in each client,
    since updates are larger where steps are more, and added up over rounds.

    Args:
        rounds: how many of the rounds seen to use, evenly spaced.
        ridge: what is left beside the gradients of records, over the mean square of one.
    """

    name: ClassVar[str] = "source-inversion"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TARGETS})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    rounds: int = 10
    ridge: float = 0.01

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.ridge <= 0:
            raise ValueError(f"expected `rounds` of at least 1 and `ridge` above 0, got {self.rounds} and {self.ridge}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Compare all clients of the view."""
        check_needs(self, view)
        if len(view.clients) < 2:
            raise NotApplicable("expected at least two clients to tell apart, got one")
        with arithmetic("fp32"):
            parts = [self._parts(view, seen) for seen in spread_rounds(view.rounds, self.rounds)]
        return Finding(sources=torch.stack(parts).sum(0))

    def _parts(self, view: View, seen: Seen) -> Tensor:
        """How much of each target is in each client's update of one round, (clients, targets)."""
        train, targets = view.assumed_recipe.train, view.targets
        params, buffers = ({name: t[0] for name, t in tree.items()} for tree in (seen.params, seen.buffers))
        factors = record_gradients(view.task, params, targets.x, [targets.x], targets.y, buffers=buffers, train=train)
        along = torch.stack(
            [factors.along({name: u[i] for name, u in seen.update.items()}) for i in range(len(view.clients))], 1
        ).double()
        products = factors.products().double()
        ridge = self.ridge * products.diagonal().mean() * torch.eye(len(products)).to(products)
        found = torch.linalg.solve(products + ridge, along)
        scaled: Tensor = (found - found.mean(0)) / found.std(0)
        return scaled.T
