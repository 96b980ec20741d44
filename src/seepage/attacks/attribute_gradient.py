"""A sensitive column by matching gradients: the values whose gradients point where the updates do.

Lyu and Chen, 2021, "A novel attribute reconstruction attack in federated learning" (https://arxiv.org/abs/2108.06910),
as Driouich, Xu, Neglia, Giroire and Thomas, 2023 (https://arxiv.org/abs/2210.16205) write it in eq. (2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.minimise import Solution, minimise
from seepage.engine.optimisers import adam
from seepage.finding import Finding, NotApplicable
from seepage.pieces.record_gradients import record_gradients
from seepage.pieces.spans import spread_rounds
from seepage.streams import Stream
from seepage.threat import Fact, View

__all__ = ["AttributeGradient"]


@dataclass(frozen=True)
class AttributeGradient:
    """Choose the column whose full-batch gradients at the models sent have the largest cosine with the updates.

    Eq. (2) asks for one value per record. Here each record has a probability for each value, and its gradient is their
    mean: at whole values that is the objective of the paper, and between them no network has to be run again.

    Args:
        rounds: how many of the rounds seen to use, evenly spaced.
        steps: of Adam on the logarithms of the probabilities.
        lr: its step size.
    """

    name: ClassVar[str] = "attribute-gradient"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.PUBLIC_COLUMNS})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    rounds: int = 5
    steps: int = 100
    lr: float = 0.1

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.steps < 1:
            raise ValueError(f"expected `rounds` and `steps` of at least 1, got {self.rounds} and {self.steps}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        if view.records.sensitive.numeric:
            raise NotApplicable("expected a column with a few values to weigh against each other, got one of numbers")
        found = [self._column(view, i) for i in range(len(view.clients))]
        return Finding(
            attributes=torch.stack([one.x[0, 0].argmax(0) for one in found]),
            objective=torch.cat([one.value[:, 0] for one in found]),
            first_objective=torch.cat([one.first_value[:, 0] for one in found]),
            status=torch.cat([one.status[:, 0] for one in found]),
        )

    def _column(self, view: View, client: int) -> Solution:
        records = view.records
        y, values = records.y[client], records.sensitive.values
        candidates = [records.filled(client, value) for value in values]
        company = records.filled(client, values.mean(0))
        products, cosines = [], []
        for seen in spread_rounds(view.rounds, self.rounds):
            sent, update, buffers = (
                {name: t[client] for name, t in tree.items()} for tree in (seen.params, seen.update, seen.buffers)
            )
            train = view.assumed_recipe.train
            factors = record_gradients(view.task, sent, company, candidates, y, buffers=buffers, train=train)
            watched = [name for name in (*factors.weights, *factors.biases) if name is not None]
            length = torch.stack([update[name].norm() for name in watched]).norm()
            products.append(factors.products())
            cosines.append(factors.along(update) / length)

        def objective(logits: Tensor, products: Tensor, along: Tensor) -> Tensor:
            share = logits.softmax(0).flatten()
            length = ((products @ share) @ share).clamp_min(1e-30).sqrt()
            return 1 - (along @ share / length).mean()

        start = candidates[0].new_zeros(1, 1, len(values), len(y))
        given = (torch.stack(products)[None], torch.stack(cosines)[None])
        return minimise(objective, start, given, optimiser=adam(self.lr), steps=self.steps)
