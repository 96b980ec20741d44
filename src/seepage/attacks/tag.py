"""TAG: texts by matching gradients over their embeddings.

Deng, Wang, Li, Wang, Shang, Liu, Rajasekaran and Ding, 2021, "TAG: Gradient attack on transformer-based language
models" (https://arxiv.org/abs/2103.06819).

The squared and the absolute distance between simulated and observed update, minimised over embeddings by Adam; the
tokens are those whose embeddings are nearest. Works on any network that looks its tokens up, after many local steps
and under defences, where exact attacks refuse; what comes back is mostly words, not their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.minimise import best_start, minimise
from seepage.engine.optimisers import adam
from seepage.engine.precision import Precision
from seepage.finding import Finding
from seepage.pieces.distances import squared_and_absolute
from seepage.pieces.embedded_texts import embedded, filled_places, nearest_tokens, simulation
from seepage.pieces.labels import guess_labels
from seepage.pieces.starts import normal_lanes
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["TAG"]


@dataclass(frozen=True)
class TAG:
    """Reconstruct texts by matching the update over embeddings.

    Args:
        absolute: weight of the absolute distance, α in eq. (3).
        lr: step size of Adam.
        steps: iterations.
        starts: restarts, of which the one with the lowest objective is answered.
        precision: of products on a GPU.

    Note:
        The paper's α is larger for layers near the input; here it is one number, as in the comparison of Balunović et
        al., 2022, whose lr, steps and α are the defaults. Embeddings stay as they are during simulated local steps.
        Places behind the last one that the gradient of learned positions names are taken to be empty.
    """

    name: ClassVar[str] = "tag"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    absolute: float = 0.01
    lr: float = 0.1
    steps: int = 2500
    starts: int = 1
    precision: Precision = "fp32"

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        texts = embedded(view)
        simulate = simulation(view, texts)
        labels, sure = guess_labels(view, rng / "labels")
        there = filled_places(view)

        def objective(
            x: Tensor, y: Tensor, there: Tensor, empty: Tensor, params: Params, buffers: Params, update: Params
        ) -> Tensor:
            return squared_and_absolute(simulate(x, y, there, empty, params, buffers), update, self.absolute)  # eq. (3)

        shape = (view.count, *view.task.spec.shape, texts.tables.shape[-1])
        found = minimise(
            objective,
            normal_lanes(view, self.starts, rng / "start", *shape),
            (labels, there, texts.tables[:, 0], texts.params, texts.buffers, texts.update),
            optimiser=adam(self.lr),
            steps=self.steps,
            batched=texts.task.batched,
            precision=self.precision,
        )
        best = best_start(found)
        allowed = torch.arange(1, texts.tables.shape[1], device=there.device)
        tokens = torch.stack(
            [nearest_tokens(x, table, allowed)[..., 0] for x, table in zip(best.x, texts.tables, strict=True)]
        )
        inputs = torch.where(there[:, None], tokens, 0)
        return Finding(inputs, labels, best.value, best.status, best.first_value, sure)
