"""Whose record is it? The client whose model knows it best.

Hu, Salcic, Sun, Dobbie and Zhang, 2021, "Source inference attacks in federated learning"
(https://arxiv.org/abs/2109.05659), with the vote over rounds of Driouich, Xu, Neglia, Giroire and Thomas, 2023
(https://arxiv.org/abs/2210.16205), appendix C.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import one_hot

from seepage.attacks.base import check_needs
from seepage.attacks.lmra import LMRA
from seepage.finding import Finding, NotApplicable
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["SourceInference"]


@dataclass(frozen=True)
class SourceInference:
    """Name for each target record the client whose model fits it best.

    Args:
        model: `"returned"` asks the models returned in each round and takes a vote; `"last-answer"` asks those of the
            last round, and `"lmra"` the clients' own models as Algorithm 2 reconstructs them.
        by: the smallest `"loss"`, or the largest `"margin"` of the true class over the best other one, which still
            tells models apart that are so sure of a record that their losses round to the same number.
    """

    name: ClassVar[str] = "source-inference"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TARGETS})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    model: Literal["returned", "last-answer", "lmra"] = "returned"
    by: Literal["loss", "margin"] = "loss"

    def __post_init__(self) -> None:
        if self.model not in ("returned", "last-answer", "lmra"):
            raise ValueError(f"expected `model` to be 'returned', 'last-answer' or 'lmra', got {self.model!r}")
        if self.by not in ("loss", "margin"):
            raise ValueError(f"expected `by` to be 'loss' or 'margin', got {self.by!r}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Compare all clients of the view."""
        check_needs(self, view)
        if len(view.clients) < 2:
            raise NotApplicable("expected at least two clients to tell apart, got one")
        if view.task.spec.classes is None and self.by == "margin":
            raise NotApplicable("expected classes for a margin between them, got a regression; use by = 'loss'")
        if view.kind == "gradient":
            raise NotApplicable("expected clients that return models or updates, got gradients: no model comes back")
        if self.model == "lmra":
            models = LMRA()(view, rng / "model").params
            assert models is not None
            return Finding(sources=self._fits(view, models))
        rounds = view.rounds if self.model == "returned" else view.rounds[-1:]
        fits = torch.stack(
            [self._fits(view, {name: p - seen.update[name] for name, p in seen.params.items()}) for seen in rounds]
        )  # (rounds, clients, targets)
        votes = one_hot(fits.argmax(1), len(view.clients)).sum(0).T
        # Where votes tie, the fit over all rounds decides: it is less than a vote.
        total = fits.mean(0)
        return Finding(sources=votes + torch.sigmoid(total - total.mean(0)) / 2)

    def _fits(self, view: View, models: Params) -> Tensor:
        """How well each client's model fits each target, the higher the better, (clients, targets)."""
        x, y = view.targets.x, view.targets.y
        like = {name: p.to(view.params[name].dtype) for name, p in models.items()}
        train = view.assumed_recipe.train

        def outputs(params: Params, buffers: Params) -> Tensor:
            return view.task.forward(params, x, buffers=buffers, train=train)[0]

        with torch.no_grad():
            out = vmap(outputs)(like, dict(view.buffers)).double()  # (clients, targets, …)
        if view.task.spec.classes is None:
            return -((out.flatten(2) - y.reshape(len(y), -1)) ** 2).sum(-1)
        true = out.gather(-1, y.expand(len(out), -1)[..., None])[..., 0]
        if self.by == "loss":
            return true - out.logsumexp(-1)
        return true - out.masked_fill(one_hot(y, view.task.spec.classes).bool(), -torch.inf).amax(-1)
