"""A sensitive column from the updates themselves: the update is linear in it, so it is solved for.

Not in the paper that sets the scene, Driouich, Xu, Neglia, Giroire and Thomas, 2023, "Local Model Reconstruction
Attacks in Federated Learning and their Uses" (https://arxiv.org/abs/2210.16205), section 2.3; the linear reconstruction
of Kasiviswanathan, Rudelson and Smith, 2013 (https://arxiv.org/abs/1210.2381), carried over to gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.precision import arithmetic
from seepage.finding import Finding, NotApplicable
from seepage.pieces.column_posterior import ColumnPosterior, NumberPosterior, Visits, added_variance
from seepage.pieces.record_gradients import record_gradients
from seepage.pieces.spans import spread_rounds
from seepage.recipe import SGD, Recipe
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, Seen, Sensitive, View

__all__ = ["AttributeInversion"]

MOST_ROWS = 10_000  # whose products with each other are held, where columns are missing


@dataclass(frozen=True)
class AttributeInversion:
    """Solve the updates of several rounds for the sensitive column, in which batches are not known.

    Gradients are taken where local training is on average, between the model sent and the one returned; several steps
    are thereby right to second order.

    Args:
        rounds: how many of the rounds seen to use, evenly spaced; each takes a product of matrices with as many rows
            as records.
        passes: over these rounds; from the second on the weights of records are told apart with what is known by then.
            A column of numbers takes many.
        noise: variance that the sum of gradients leaves open in each direction, over that of one record's part: for
            rounding, and for what several steps bend.
        measured: add to it what updates have outside of the span of all records' gradients: noise of the clients.

    Note:
        Columns that are missing beside the sensitive one are solved for together with it, every combination of their
        values as one value; a missing number has seven, by whole deviations. Who knows that clients clip the gradient
        of each example (the fact `defence`) clips those of the records too.
    """

    name: ClassVar[str] = "attribute-inversion"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.PUBLIC_COLUMNS, Fact.RECIPE})
    # In train mode the values of all records move the statistics of each, and with them its gradient: small steps.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "batch_norm": {"noise": 0.1, "passes": 20},
        "noisy": {"measured": True},
        "numbers": {"passes": 30, "rounds": 2},
    }

    rounds: int = 5
    passes: int = 2
    noise: float = 1e-3
    measured: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.passes < 1:
            raise ValueError(f"expected `rounds` and `passes` of at least 1, got {self.rounds} and {self.passes}")
        if self.noise <= 0:
            raise ValueError(f"expected `noise` above 0, got {self.noise}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        _check_steps(view.recipe)
        with arithmetic("fp32"):
            return Finding(attributes=torch.stack([self._column(view, i) for i in range(len(view.clients))]))

    def _column(self, view: View, client: int) -> Tensor:
        records, recipe = view.records, view.recipe
        y, sensitive = records.y[client], records.sensitive
        visits, values = Visits.of(recipe, len(y)), sensitive.values
        if sensitive.numeric:
            posterior: ColumnPosterior | NumberPosterior = NumberPosterior(values, len(y), records.x, self.passes)
        else:
            values = sensitive.combinations
            _check_rows(len(values), len(y), sensitive)
            posterior = ColumnPosterior(len(values), len(y), records.x)
        for _ in range(self.passes):
            company, candidates = posterior.tables(partial(records.filled, client), values)
            for seen in spread_rounds(view.rounds, self.rounds):
                middle, gradient = _middle(seen, client, recipe, visits.steps)
                buffers = {name: b[client] for name, b in seen.buffers.items()}
                factors = record_gradients(
                    view.task, middle, company, candidates, y, buffers=buffers, train=recipe.train
                )
                factors = factors.clipped(view.assumed_defence.example_norm)
                products, along = factors.products(), factors.along(gradient)
                added = added_variance(products, along, *_size(gradient)) if self.measured else 0.0
                posterior.add(products, along, visits, self.noise, added)
            posterior.close_pass()
        return posterior.answer(len(sensitive.values))


def _check_rows(combinations: int, n: int, sensitive: Sensitive) -> None:
    if sensitive.missing and combinations * n > MOST_ROWS:
        raise NotApplicable(
            f"expected at most {MOST_ROWS} gradients to tell apart, got {combinations} combinations of "
            f"{[sensitive.name, *(column.name for column in sensitive.missing)]} for each of {n} records; "
            "grant more columns"
        )


def _check_steps(recipe: Recipe) -> None:
    if recipe.sends == "gradient":
        return
    optimiser = recipe.optimiser
    if not isinstance(optimiser, SGD) or optimiser.momentum or optimiser.weight_decay:
        raise NotApplicable(
            f"expected clients that take plain steps along gradients, got {optimiser}: their updates are no weighted "
            "sum of the records' gradients"
        )


def _size(gradient: Params) -> tuple[float, int]:
    """Sum of squares and number of entries."""
    return sum(float((g.double() ** 2).sum()) for g in gradient.values()), sum(g.numel() for g in gradient.values())


def _middle(seen: Seen, client: int, recipe: Recipe, steps: int) -> tuple[Params, Params]:
    """Where gradients of local training are taken on average, and the sum of them that the update is."""
    sent = {name: p[client] for name, p in seen.params.items()}
    update = {name: u[client] for name, u in seen.update.items()}
    if recipe.sends == "gradient":
        return sent, update
    share = (steps - 1) / (2 * steps)
    middle = {name: p - share * update[name] for name, p in sent.items()}
    return middle, {name: u / recipe.optimiser.lr for name, u in update.items()}
