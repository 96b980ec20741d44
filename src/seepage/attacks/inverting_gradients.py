"""Inverting Gradients.

Geiping, Bauermeister, Dröge and Moeller, 2020, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (https://arxiv.org/abs/2003.14053).

The angle between simulated and observed update, minimised over images by Adam on the sign of the gradient, with total
variation as prior. Where clients take several local steps, these are simulated (section 6 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.minimise import best_start, minimise
from seepage.engine.optimisers import Optimiser, adam, drops, interrupted, lbfgs, signed
from seepage.engine.optimisers import cosine as annealed
from seepage.engine.precision import Precision
from seepage.finding import Finding
from seepage.pieces.boxes import boxed
from seepage.pieces.distances import cosine, squared
from seepage.pieces.filters import median
from seepage.pieces.labels import guess_labels
from seepage.pieces.layers import masked, parse_layers, tensor_mask
from seepage.pieces.priors import total_variation
from seepage.pieces.simulation import simulated_update
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
        lr: step size.
        steps: iterations.
        starts: restarts, of which the one with the lowest objective is answered.
        distance: `"cosine"` as in eq. (4), or `"squared"`, the Euclidean distance of eq. (3).
        optimiser: `"adam"`, or `"lbfgs"`, the solver of earlier works that the paper compares with.
        signed: hand Adam the sign of the gradient.
        decay: `"drops"`, the learning rate by ten at 3/8, 5/8 and 7/8 of the run; `"cosine"`; or `"none"`.
        layers: which tensors are compared: `"all"`, `"top10"` (of largest norm), `"first10"` or `"last10"`.
        median_every: pass images through a median filter after that many steps; 0 is never.
        boxed: keep pixels inside their range after every step.
        precision: of products on a GPU; `"tf32"` is faster, and the row says so.
        compiled: on a GPU, compile the simulation of local training, which takes a minute and pays for long runs.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.
        keep_every: in the simulation of local steps, keep every k-th state and recompute the others; `None` keeps all.

    Note:
        Batches of local training are taken in stored order: a client that shuffles small batches does so in an order
        that the attacker does not know. Labels are those of each batch where the threat model grants them; else counted
        labels are laid out in ascending order.
    """

    name: ClassVar[str] = "inverting-gradients"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "euclidean": {
            "distance": "squared",
            "optimiser": "lbfgs",
            "lr": 1.0,
            "tv": 0.0,
            "decay": "none",
            "signed": False,
            "boxed": False,
        },
    }

    tv: float = 1e-6
    lr: float = 0.1
    steps: int = 4800
    starts: int = 1
    distance: Literal["cosine", "squared"] = "cosine"
    optimiser: Literal["adam", "lbfgs"] = "adam"
    signed: bool = True
    decay: Literal["drops", "cosine", "none"] = "drops"
    layers: str = "all"
    median_every: int = 0
    boxed: bool = True
    precision: Precision = "fp32"
    compiled: bool = False
    chunk: int | None = None
    keep_every: int | None = None

    def __post_init__(self) -> None:
        parse_layers(self.layers)
        if self.median_every < 0:
            raise ValueError(f"expected `median_every` of at least 0, got {self.median_every}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        task, recipe = view.task, view.assumed_recipe
        # Known batches are those of the first epoch: variables are shared between epochs.
        known = view.knows(Fact.BATCH_LABELS)
        labels, sure = (view.batch_labels[:, 0], None) if known else guess_labels(view, rng / "labels")
        distance = {"cosine": cosine, "squared": squared}[self.distance]
        mask = {} if self.layers == "all" else tensor_mask(view.update, self.layers)

        def objective(x: Tensor, y: Tensor, params: Params, buffers: Params, update: Params, mask: Params) -> Tensor:
            schedule = recipe.schedule(x, y)
            guess = simulated_update(
                view, params, schedule, recipe, buffers, keep_every=self.keep_every, compiled=self.compiled
            )
            if mask:
                guess, update = masked(guess, mask), masked(update, mask)
            value = distance(guess, update)  # eq. (4)
            return value + self.tv * total_variation(x) if self.tv and task.spec.is_image else value

        start = normal_start(view, self.starts, rng / "start")
        found = minimise(
            objective,
            start,
            (labels, view.params, view.buffers, view.update, mask),
            optimiser=self._optimiser(task.spec.is_image),
            steps=self.steps,
            project=boxed(task.spec, start) if self.boxed else None,
            chunk=self.chunk,
            batched=task.batched,
            precision=self.precision,
        )
        best = best_start(found)
        return Finding(best.x, labels, best.value, best.status, best.first_value, sure)

    def _optimiser(self, images: bool) -> Optimiser:
        step: Optimiser = adam(self.lr) if self.optimiser == "adam" else lbfgs(self.lr)
        if self.signed and self.optimiser == "adam":
            step = signed(step)
        if self.decay == "drops":
            step = drops(step, self.steps)
        elif self.decay == "cosine":
            step = annealed(step, self.steps)
        if self.median_every and images:
            step = interrupted(step, median, self.median_every)
        return step
