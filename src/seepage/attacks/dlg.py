"""Deep Leakage from Gradients, and its improvement.

Zhu, Liu and Han, 2019, "Deep leakage from gradients" (https://arxiv.org/abs/1906.08935): dummy inputs and dummy labels
whose gradient is made equal to the one that was seen, by L-BFGS.

Zhao, Mopuri and Bilen, 2020, "iDLG: Improved deep leakage from gradients" (https://arxiv.org/abs/2001.02610): the same
with the label read off the gradient beforehand.

Zhao, Luo and Ding, 2023, "Deep leakage from model in federated learning" (zhao2023,
https://arxiv.org/abs/2206.04887), eq. (9): the same with a factor k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.lanes import Tree
from seepage.engine.minimise import Solution, best_start, minimise
from seepage.engine.optimisers import adam, lbfgs
from seepage.finding import Finding
from seepage.pieces.distances import squared
from seepage.pieces.gradients import dummy_gradient, mean_gradient
from seepage.pieces.labels import recover_labels
from seepage.pieces.starts import constant_start, normal_start
from seepage.pieces.targets import normal_targets, pulled_targets, soft_targets
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["DLG", "IDLG", "search"]


@dataclass(frozen=True)
class DLG:
    """Reconstruct inputs and labels by matching a gradient.

    An update is first divided by what the recipe says it outgrew the gradient by, so that beyond the number of examples
    the attack needs the recipe where clients send updates or weights.

    Args:
        k: the factor of zhao2023, eq. (9), or where it begins; 1 is the original attack.
        learn_k: optimise k too, as a factor of the dummy's gradient; else it is fixed, a factor of the gradient seen.
        optimiser: `lbfgs` or `adam` of `seepage.engine.optimisers`.
        steps: iterations, each one evaluation of the objective and its gradient. `torch.optim.LBFGS` makes up to 20 of
            them in one call of `step`, so that 300 such calls are 6000 here.
        starts: restarts, of which the one with the lowest objective is answered.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.

    Note:
        zhao2023 compares with k as a fixed factor of the true gradient (text), or as a factor of the dummy's gradient
        that is optimised with it (code): presets `as_paper` and `as_code`. The text gives all attacks 200 calls of
        L-BFGS, the code gives this one 300. `torch.optim.LBFGS` also stops by tolerances (1e-7 on the gradient, 1e-9 on
        progress) where this goes on, and the code answers with the last candidate, this with the best one.

    Example:
        >>> DLG(k=1.1).optimiser
        lbfgs(lr=1.0, history=100, line_search=None)
    """

    name: ClassVar[str] = "dlg"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"steps": 200 * 20, "learn_k": False},
        "as_code": {"steps": 300 * 20, "learn_k": True},
    }

    k: float = 1.0
    learn_k: bool = False
    optimiser: lbfgs | adam = field(default_factory=lbfgs)
    steps: int = 300 * 20
    starts: int = 1
    chunk: int | None = None

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        spec, gradient = view.task.spec, dummy_gradient(view)

        def objective(dummy: dict[str, Tensor], params: Params, buffers: Params, seen: Params) -> Tensor:
            guess = gradient(dummy["x"], soft_targets(spec, dummy["y"]), params, buffers)
            if self.learn_k:
                return squared({name: dummy["k"] * g for name, g in guess.items()}, seen)
            return squared(guess, {name: self.k * g for name, g in seen.items()})  # zhao2023, eq. (9)

        start = {
            "x": normal_start(view, self.starts, rng / "start"),
            "y": normal_targets(view, self.starts, rng / "targets"),
        }
        if self.learn_k:
            start["k"] = constant_start(view, self.starts, self.k)
        found = search(self, view, objective, start, (view.params, view.buffers, mean_gradient(view)))
        best = best_start(found)
        labels = pulled_targets(view, best.x["x"], best.x["y"])
        return Finding(best.x["x"], labels, best.value, best.status, best.first_value)


@dataclass(frozen=True)
class IDLG:
    """Reconstruct inputs by matching a gradient, with labels granted or read off it.

    Args:
        optimiser: `lbfgs` or `adam` of `seepage.engine.optimisers`.
        steps: iterations, as in `DLG`.
        starts: restarts, of which the one with the lowest objective is answered.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.

    Note:
        The paper is about single examples; labels of a batch are counted by `seepage.pieces.labels`.
    """

    name: ClassVar[str] = "idlg"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    optimiser: lbfgs | adam = field(default_factory=lbfgs)
    steps: int = 300 * 20
    starts: int = 1
    chunk: int | None = None

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        labels, gradient = recover_labels(view, rng / "labels"), dummy_gradient(view)

        def objective(x: Tensor, y: Tensor, params: Params, buffers: Params, seen: Params) -> Tensor:
            return squared(gradient(x, y, params, buffers), seen)

        start = normal_start(view, self.starts, rng / "start")
        found = search(self, view, objective, start, (labels, view.params, view.buffers, mean_gradient(view)))
        best = best_start(found)
        return Finding(best.x, labels, best.value, best.status, best.first_value)


class _Search(Protocol):
    """The knobs of a search that all attacks of this family have."""

    @property
    def optimiser(self) -> lbfgs | adam: ...
    @property
    def steps(self) -> int: ...
    @property
    def chunk(self) -> int | None: ...


def search(
    attack: _Search, view: View, objective: Callable[..., Tensor], start: Tree, given: tuple[Tree, ...]
) -> Solution:
    """`minimise` as an attack's knobs say, for all clients of a view."""
    return minimise(
        objective,
        start,
        given,
        optimiser=attack.optimiser,
        steps=attack.steps,
        chunk=attack.chunk,
        batched=view.task.batched,
    )
