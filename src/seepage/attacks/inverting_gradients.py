"""Inverting Gradients.

Geiping, Bauermeister, Dröge and Moeller, 2020, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (https://arxiv.org/abs/2003.14053).

The angle between simulated and observed update, minimised over images by Adam on the sign of the gradient, with total
variation as prior. Where clients take several local steps, these are simulated (section 6 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.minimise import best_start, minimise
from seepage.engine.optimisers import adam, drops, signed
from seepage.finding import Finding
from seepage.local import local_update
from seepage.pieces.boxes import boxed
from seepage.pieces.distances import cosine
from seepage.pieces.labels import recover_labels
from seepage.pieces.priors import total_variation
from seepage.pieces.starts import normal_start
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["InvertingGradients"]


@dataclass(frozen=True)
class InvertingGradients:
    """Reconstruct inputs by matching the direction of the update.

    Args:
        tv: weight of total variation, α in eq. (4); images only.
        lr: step size of Adam.
        steps: iterations.
        starts: restarts, of which the one with the lowest objective is answered.
        boxed: keep pixels inside their range after every step.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.
        keep_every: in the simulation of local steps, keep every k-th state and recompute the others; `None` keeps all.

    Note:
        The batches of local training are taken in stored order: a client that shuffles small batches does so in an
        order that the attacker does not know.
    """

    name: ClassVar[str] = "inverting-gradients"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    tv: float = 1e-6
    lr: float = 0.1
    steps: int = 4800
    starts: int = 1
    boxed: bool = True
    chunk: int | None = None
    keep_every: int | None = None

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        task, recipe = view.task, view.assumed_recipe
        labels = recover_labels(view, rng / "labels")

        def objective(x: Tensor, y: Tensor, params: Params, buffers: Params, update: Params) -> Tensor:  # eq. (4)
            schedule = recipe.schedule(x, y)
            guess = local_update(
                task, params, schedule, recipe, view.assumed_defence, buffers=buffers, keep_every=self.keep_every
            )
            distance = cosine(guess, update)
            return distance + self.tv * total_variation(x) if self.tv and task.spec.is_image else distance

        start = normal_start(view, self.starts, rng / "start")
        found = minimise(
            objective,
            start,
            (labels, view.params, view.buffers, view.update),
            optimiser=drops(signed(adam(self.lr)), self.steps),
            steps=self.steps,
            project=boxed(task.spec, start) if self.boxed else None,
            chunk=self.chunk,
            batched=task.batched,
        )
        best = best_start(found)
        return Finding(best.x, labels, best.value, best.status, best.first_value)
