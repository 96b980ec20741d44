"""TabLeak: whole rows of a table, categories and numbers, from an update.

Vero, Balunović, Dimitrov and Vechev, 2023, "TabLeak: Tabular Data Leakage in Federated Learning"
(https://arxiv.org/abs/2210.01785).

Categories are relaxed to probabilities by a softmax over each column and numbers are held in their range by a sigmoid,
so that the search is a smooth one. Which category a row falls into is decided early and differently from restart to
restart: the rows of all restarts are matched and pooled, and where restarts disagree, the attack is not sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.attacks.base import check_needs
from seepage.engine.minimise import best_start, minimise
from seepage.engine.optimisers import adam, signed
from seepage.engine.precision import Precision
from seepage.finding import Finding
from seepage.pieces.assign import match_epochs
from seepage.pieces.distances import cosine
from seepage.pieces.labels import guess_labels
from seepage.pieces.simulation import simulated_update
from seepage.pieces.starts import normal_start
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["TabLeak", "decided", "relaxed"]


@dataclass(frozen=True)
class TabLeak:
    """Reconstruct rows by matching the direction of the update, and pool what the restarts come to.

    Args:
        lr: step size of Adam on the sign of the gradient.
        steps: iterations.
        starts: restarts, all of which are pooled: N in the paper.
        softmax: relax categories to probabilities; else they are numbers of their own, as for images.
        pooled: answer the median over the restarts, each matched with the best one; else the best one itself.
        precision: of products on a GPU; `"tf32"` is faster, and the row says so.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.
        keep_every: in the simulation of local steps, keep every k-th state and recompute the others; `None` keeps all.

    Note:
        The paper says of a number how sure it is by the entropy of a Gaussian with the deviation over the restarts,
        which has no lower bound; here it is e^(−deviation), which orders cells alike. Restarts begin at normal numbers
        and are matched by the squared distance of rows with equal labels, where the released code has uniform ones and
        counts the cells in which rows differ.
        Inputs without columns of categories, images among them, are taken for numbers.
        Batches of local training are taken in stored order, and rows are the same in all epochs.
    """

    name: ClassVar[str] = "tableak"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "no_pooling": {"starts": 1, "pooled": False},
        "no_softmax": {"softmax": False},
    }

    lr: float = 0.06
    steps: int = 1500
    starts: int = 30
    softmax: bool = True
    pooled: bool = True
    precision: Precision = "fp32"
    chunk: int | None = None
    keep_every: int | None = None

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        task, recipe, spec = view.task, view.assumed_recipe, view.task.spec
        # Known batches are those of the first epoch: variables are shared between epochs.
        known = view.knows(Fact.BATCH_LABELS)
        labels, sure = (view.batch_labels[:, 0], None) if known else guess_labels(view, rng / "labels")

        def objective(z: Tensor, y: Tensor, params: Params, buffers: Params, update: Params) -> Tensor:
            schedule = recipe.schedule(relaxed(z, spec, softmax=self.softmax), y)
            return cosine(simulated_update(view, params, schedule, recipe, buffers, keep_every=self.keep_every), update)

        found = minimise(
            objective,
            normal_start(view, self.starts, rng / "start"),
            (labels, view.params, view.buffers, view.update),
            optimiser=signed(adam(self.lr)),
            steps=self.steps,
            chunk=self.chunk,
            batched=task.batched,
            precision=self.precision,
        )
        best_first = found.value.nan_to_num(nan=torch.inf).argsort(dim=1, stable=True)
        matched = [
            _matched(relaxed(z[order if self.pooled else order[:1]], spec, softmax=self.softmax), y, spec)
            for z, y, order in zip(found.x, labels, best_first, strict=True)
        ]
        best, agree = best_start(found), self.pooled and self.starts > 1 and len(spec.shape) == 1
        return Finding(
            torch.stack([decided(rows.median(0).values, spec) for rows in matched]),
            labels,
            best.value,
            best.status,
            best.first_value,
            confidence=sure,
            certainty=torch.stack([_certainty(rows, spec) for rows in matched]) if agree else None,
        )


def relaxed(z: Tensor, spec: DataSpec, *, softmax: bool = True) -> Tensor:
    """Rows as a module eats them, of any numbers: categories become probabilities, numbers lie in their range.

    Args:
        z: (…, *spec.shape).
        spec: of the data.
        softmax: over each column of categories; else each of their features lies between 0 and 1 for itself.

    Example:
        >>> relaxed(torch.tensor([0.0, 1.0, 1.0]), DataSpec((3,), low=0.0, high=8.0, categories=((1, 3),)))
        tensor([4.0000, 0.5000, 0.5000])
    """
    raw = spec.low + (spec.high - spec.low) * z.sigmoid()
    if spec.categories:
        raw = torch.cat([_column(z, raw, *column, spec, softmax) for column in spec.columns], -1)
    return spec.normalise(raw)


def _column(z: Tensor, numbers: Tensor, start: int, stop: int, spec: DataSpec, softmax: bool) -> Tensor:
    if (start, stop) not in spec.categories:
        return numbers[..., start:stop]
    return z[..., start:stop].softmax(-1) if softmax and stop - start > 1 else z[..., start:stop].sigmoid()


def decided(x: Tensor, spec: DataSpec) -> Tensor:
    """Rows whose columns of categories hold the likeliest one alone; numbers stay as they are.

    Example:
        >>> decided(torch.tensor([4.0, 0.4, 0.5, 0.6]), DataSpec((4,), categories=((1, 3), (3, 4))))
        tensor([4., 0., 1., 1.])
    """
    if not spec.categories:
        return x
    raw = spec.pixels(x)
    parts = []
    for start, stop in spec.columns:
        cell = raw[..., start:stop]
        if (start, stop) in spec.categories:
            cell = (one_hot(cell.argmax(-1), stop - start) if stop - start > 1 else cell > 0.5).to(raw)
        parts.append(cell)
    return spec.normalise(torch.cat(parts, -1))


def _matched(rows: Tensor, labels: Tensor, spec: DataSpec) -> Tensor:
    """The rows of all restarts of one client in the order of the best one, which is the first, (starts, n, …)."""
    of = labels.expand(len(rows), -1) if spec.classes is not None else None
    orders = match_epochs(spec.pixels(rows), of, "squared").to(rows.device)
    return torch.stack([start[order] for start, order in zip(rows, orders, strict=True)])


def _certainty(matched: Tensor, spec: DataSpec) -> Tensor:
    """How far restarts agree, (n, columns): 1 − entropy / log(categories) of their mean, or e^(−their deviation)."""
    mean, deviation = spec.pixels(matched).mean(0), matched.std(0, correction=0)
    cells = []
    for start, stop in spec.columns:
        if (start, stop) not in spec.categories:
            cells.append((-deviation[:, start]).exp())
            continue
        likely = mean[:, start:stop]
        likely = likely / likely.sum(-1, keepdim=True) if stop - start > 1 else torch.cat([likely, 1 - likely], -1)
        cells.append(1 + torch.special.xlogy(likely, likely).sum(-1) / math.log(likely.shape[-1]))
    return torch.stack(cells, -1)
