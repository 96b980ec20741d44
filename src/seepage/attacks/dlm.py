"""Deep Leakage from Model.

Zhao, Luo and Ding, 2023, "Deep leakage from model in federated learning" (zhao2023,
https://arxiv.org/abs/2206.04887): gradients are matched with the difference of two models, by attackers who do not know
the client's learning rate. DLM learns it as a factor, DLM+ divides it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.attacks.dlg import search
from seepage.engine.minimise import best_start
from seepage.engine.optimisers import adam, lbfgs
from seepage.finding import Finding
from seepage.pieces.distances import normalised, squared
from seepage.pieces.gradients import dummy_gradient
from seepage.pieces.labels import recover_labels
from seepage.pieces.priors import total_variation
from seepage.pieces.spans import whole_span
from seepage.pieces.starts import constant_start, normal_start
from seepage.pieces.targets import normal_targets, pulled_targets, soft_targets
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["DLM", "DLMPlus"]


@dataclass(frozen=True)
class DLM:
    """Reconstruct inputs and labels from two models, and the factor between their difference and a gradient.

    Nothing but the two models and the number of examples is needed, and the client's learning rate α is never looked
    at; the factor ends near 1/α where the attack succeeds.

    Args:
        gamma: where the factor begins, γ in eq. (3); best a little above 1/α (section 5.2).
        factor: what is multiplied by the factor: the `"update"`, as in eq. (3), or the dummy's `"gradient"`, by k > 0
            that begins with 1, against a fixed γ times the update; γ / k then ends near 1/α.
        span: attack what was sent in the `"last"` round seen, or `"all"` the way from the first global model seen to
            the last answer, Wᵗ − Wᵗ⁺ᵏ of section 5.3.
        optimiser: `lbfgs` or `adam` of `seepage.engine.optimisers`.
        steps: iterations, each one evaluation of the objective and its gradient. `torch.optim.LBFGS` makes up to 20 of
            them in one call of `step`, so that the 200 of the paper are 4000 here.
        starts: restarts, of which the one that explains the update best, by objective / γ², is answered.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.

    Note:
        Text and code agree on LeNet. For the MLP the text has 4000 iterations of Adam, the code 5000: presets
        `as_paper_mlp` and `as_code_mlp`. `torch.optim.LBFGS` also stops by tolerances (1e-7 on the gradient, 1e-9 on
        progress) where this goes on, and the code answers with the last candidate, this with the best one.

        As dummy labels are soft, the solution is not one γ: every γ from 0 to 1/α explains the update with the true
        inputs and a label between prediction and truth, see `seepage.pieces.targets.pulled_targets`, and at γ = 0 any
        inputs will do. A start above 1/α can end at 1/α, because beyond it no label explains enough with the true
        inputs; others tend to end at 0. This is why the objective is answered as objective / γ².

        With the factor on the gradient, preset `ours`, that end of the valley is k = ∞: nothing is gained by a gradient
        of zero, and the inputs are the true ones all along. The attacker still knows neither label nor learning rate.
    """

    name: ClassVar[str] = "dlm"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"optimiser": {"kind": "lbfgs"}, "steps": 200 * 20},
        "as_code": {"optimiser": {"kind": "lbfgs"}, "steps": 200 * 20},
        "as_paper_mlp": {"optimiser": {"kind": "adam", "lr": 0.1}, "steps": 4000},
        "as_code_mlp": {"optimiser": {"kind": "adam", "lr": 0.1}, "steps": 5000},
        "ours": {"factor": "gradient", "optimiser": {"kind": "lbfgs"}, "steps": 200 * 20},
    }

    gamma: float = 120.0
    factor: Literal["update", "gradient"] = "update"
    span: Literal["last", "all"] = "last"
    optimiser: lbfgs | adam = field(default_factory=lbfgs)
    steps: int = 200 * 20
    starts: int = 1
    chunk: int | None = None

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        view = whole_span(view) if self.span == "all" else view
        spec, gradient = view.task.spec, dummy_gradient(view)

        def objective(dummy: dict[str, Tensor], params: Params, buffers: Params, update: Params) -> Tensor:
            guess = gradient(dummy["x"], soft_targets(spec, dummy["y"]), params, buffers)
            if self.factor == "gradient":
                # A learning rate is positive, and with k < 0 the label would be pulled down instead of up.
                guess = {name: dummy["factor"].exp() * g for name, g in guess.items()}
                return squared(guess, {name: self.gamma * u for name, u in update.items()})
            return squared(guess, {name: dummy["factor"] * u for name, u in update.items()})  # eq. (3)

        start = {
            "x": normal_start(view, self.starts, rng / "start"),
            "y": normal_targets(view, self.starts, rng / "targets"),
            "factor": constant_start(view, self.starts, self.gamma if self.factor == "update" else 0.0),
        }
        found = search(self, view, objective, start, (view.params, view.buffers, view.update))
        # In units of the update: else γ = 0 would win among the restarts.
        square = found.x["factor"] ** 2 if self.factor == "update" else self.gamma**2
        best = best_start(replace(found, value=found.value / square, first_value=found.first_value / self.gamma**2))
        labels = pulled_targets(view, best.x["x"], best.x["y"])
        return Finding(best.x["x"], labels, best.value, best.status, best.first_value)


@dataclass(frozen=True)
class DLMPlus:
    """Reconstruct inputs from two models by matching directions: gradient and difference are divided by their lengths.

    Args:
        norm: of which length: `"all"`, the Frobenius norm over all parameters, or `"mean"`, the mean over the tensors.
        joint: optimise dummy labels too; else labels are granted or read off the update.
        tv: weight of total variation, β in eq. (13); images only.
        span: attack what was sent in the `"last"` round seen, or `"all"` the way from the first global model seen to
            the last answer, Wᵗ − Wᵗ⁺ᵏ of section 5.3.
        optimiser: `lbfgs` or `adam` of `seepage.engine.optimisers`.
        steps: iterations, as in `DLM`.
        starts: restarts, of which the one with the lowest objective is answered.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.

    Note:
        | | preset `as_paper` | preset `as_code` |
        |---|---|---|
        | length | Frobenius norm over all parameters | mean of the tensors' norms |
        | labels | optimised with the inputs | the true ones, which a threat model must grant; else read off |
        | MLP (`…_mlp`) | Adam with learning rate 0.1, 4000 iterations | 0.01, 5000 iterations |
        | total variation | eq. (13), without a value for β | none |

        Two more scripts of the code: `as_code_defences`, for the experiments with defences, is `as_code` with labels
        optimised (and 200 iterations for the MLP too); `as_code_batch`, for ImageNet and batches, is `as_code` with 50
        calls of L-BFGS. `torch.optim.LBFGS` also stops by tolerances (1e-7 on the gradient, 1e-9 on progress) where
        this goes on, and the code answers with the last candidate, this with the best one.

        With `norm = "all"` and without total variation the objective is twice the cosine distance of geiping2020, in a
        form that keeps its digits near zero.
    """

    name: ClassVar[str] = "dlm-plus"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"norm": "all", "joint": True},
        "as_code": {"norm": "mean", "joint": False},
        "as_paper_mlp": {"norm": "all", "joint": True, "optimiser": {"kind": "adam", "lr": 0.1}, "steps": 4000},
        "as_code_mlp": {"norm": "mean", "joint": False, "optimiser": {"kind": "adam", "lr": 0.01}, "steps": 5000},
        "as_code_defences": {"norm": "mean", "joint": True},
        "as_code_batch": {"norm": "mean", "joint": False, "steps": 50 * 20},
    }

    norm: Literal["all", "mean"] = "all"
    joint: bool = True
    tv: float = 0.0
    span: Literal["last", "all"] = "last"
    optimiser: lbfgs | adam = field(default_factory=lbfgs)
    steps: int = 200 * 20
    starts: int = 1
    chunk: int | None = None

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        view = whole_span(view) if self.span == "all" else view
        spec, gradient = view.task.spec, dummy_gradient(view)
        start = {"x": normal_start(view, self.starts, rng / "start")}
        known: dict[str, Tensor] = {}
        if self.joint:
            start["y"] = normal_targets(view, self.starts, rng / "targets")
        else:
            known["y"] = recover_labels(view, rng / "labels")

        def objective(
            dummy: dict[str, Tensor], known: dict[str, Tensor], params: Params, buffers: Params, direction: Params
        ) -> Tensor:
            x, y = dummy["x"], soft_targets(spec, dummy["y"]) if self.joint else known["y"]
            distance = squared(normalised(gradient(x, y, params, buffers), self.norm), direction)  # eq. (7)
            return distance + self.tv * total_variation(x) if self.tv and spec.is_image else distance  # eq. (13)

        direction = torch.vmap(lambda update: normalised(update, self.norm))(view.update)
        found = search(self, view, objective, start, (known, view.params, view.buffers, direction))
        best = best_start(found)
        labels = pulled_targets(view, best.x["x"], best.x["y"]) if self.joint else known["y"]
        return Finding(best.x["x"], labels, best.value, best.status, best.first_value)
