"""Local model reconstruction, for least squares: the model that a client would have trained alone.

Driouich, Xu, Neglia, Giroire and Thomas, 2023, "Local Model Reconstruction Attacks in Federated Learning and their
Uses" (https://arxiv.org/abs/2210.16205), section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.finding import Finding, NotApplicable
from seepage.pieces.local_optimum import WORST, find_optimum, fit_optimum
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["LocalModel"]


@dataclass(frozen=True)
class LocalModel:
    """Compute each client's own optimum from many rounds of a linear regression.

    It takes one more round than the model has parameters, in which the client answered; neither the learning rate nor
    the number of local steps. `objective` is the share of what was seen that the client's fitted map leaves open.

    Args:
        rounds: `"best"` computes from as many rounds as it takes, the best conditioned, and is exact where clients
            take full batches (Proposition 1); `"all"` fits all of them, for the noise of mini-batches (Proposition 3).
        worst: largest relative error from rounding to answer with.

    Note:
        Weight decay makes the answer the optimum with that decay, and momentum changes nothing: both leave a round an
        affine map. Adam does not.
    """

    name: ClassVar[str] = "local-model"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    rounds: Literal["best", "all"] = "best"
    worst: float = WORST

    def __post_init__(self) -> None:
        if self.rounds not in ("best", "all"):
            raise ValueError(f"expected `rounds` to be 'best' or 'all', got {self.rounds!r}")
        if self.worst <= 0:
            raise ValueError(f"expected `worst` above 0, got {self.worst}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        _check_least_squares(view, rng / "probe")
        sent = torch.stack([_flat(seen.params) for seen in view.rounds], 1)  # (clients, rounds, d)
        update = torch.stack([_flat(seen.update) for seen in view.rounds], 1)
        solve = find_optimum if self.rounds == "best" else fit_optimum
        found = [solve(theta, delta, worst=self.worst) for theta, delta in zip(sent, update, strict=True)]
        theta = torch.stack([one.theta for one in found]).to(sent.device)  # float64, whatever the messages are
        left = torch.tensor([one.unexplained for one in found], dtype=torch.float64, device=sent.device)
        return Finding(params=_unflat(theta, view.params), objective=left)


def _check_least_squares(view: View, rng: Stream) -> None:
    """Refuse what is not a linear regression, or is not trained by steps that are affine in the model."""
    task = view.task
    if task.spec.classes is not None or task.loss not in ("auto", "squared_error"):
        raise NotApplicable("expected a regression with squared error, got another loss: its steps are not affine")
    optimiser = view.assumed_recipe.optimiser
    if not optimiser.linear:
        raise NotApplicable(f"expected clients that use SGD, got {type(optimiser).__name__}: its steps are not affine")
    like = {name: p[0] for name, p in view.params.items()}
    buffers = {name: b[0] for name, b in view.buffers.items()}
    first = next(iter(like.values()))
    x = (rng / "x").normal(4, *task.spec.shape, dtype=first.dtype, device=first.device)

    def drawn(which: str) -> Params:
        return {n: (rng / which / n).normal(*p.shape, dtype=p.dtype, device=p.device) for n, p in like.items()}

    def outputs(params: Params) -> Tensor:
        with torch.no_grad():
            return task.forward(params, x, buffers=buffers, train=view.assumed_recipe.train)[0].double()

    one, other = drawn("one"), drawn("other")
    middle = outputs({name: (p + other[name]) / 2 for name, p in one.items()})
    straight = (outputs(one) + outputs(other)) / 2
    if float((middle - straight).norm()) > 1e-4 * float(straight.norm()):
        raise NotApplicable("expected a module that is linear in its parameters, got one that is not")


def _flat(params: Params) -> Tensor:
    return torch.cat([p.flatten(1) for p in params.values()], 1)


def _unflat(vectors: Tensor, like: Params) -> Params:
    parts = vectors.split([p[0].numel() for p in like.values()], 1)
    return {name: part.reshape(p.shape) for (name, p), part in zip(like.items(), parts, strict=True)}
