"""FedAvg leakage for a server that was not told how clients cut their data, or how many examples they have.

Dimitrov, Balunović, Konstantinov and Vechev, 2022 (dimitrov2022, https://arxiv.org/abs/2206.12395), appendix C.4: the
server knows the number of local steps U and of examples N, which it needs for its weighted mean. U is the number of
epochs times that of batches, so there are as many ways to have trained as U has divisors: all are tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.attacks.fedavg import FedAvg
from seepage.attacks.fedavg_baselines import FedSGD, FedSGDEpoch, NoPrior, SharedVariables
from seepage.engine.lanes import over_lanes
from seepage.engine.precision import arithmetic
from seepage.finding import Finding
from seepage.local import local_update
from seepage.pieces.distances import relative
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["UnknownCount", "UnknownSchedule", "misfit", "schedules"]


Tried: TypeAlias = FedAvg | NoPrior | SharedVariables | FedSGDEpoch | FedSGD
Judge: TypeAlias = Literal["misfit", "objective"]

_PRESETS = {name: {"attack": {"kind": "FedAvg", **knobs}} for name, knobs in FedAvg.presets.items()}


@dataclass(frozen=True)
class UnknownSchedule:
    """Try all ways to cut the local steps into epochs, and answer with the one that explains each update best.

    Args:
        attack: what is tried; its own knobs hold for every try.
        epochs: try only these numbers of epochs; all divisors of the number of steps when empty.
        by: the judge: the `"objective"` that the attack ended with; or the `"misfit"`, how badly the N examples that
            are answered explain the update when they are trained on, whatever the number of epochs.

    Note:
        Where the threat model grants the whole recipe, no more is taken from it than the steps.
        Every epoch has dummies of its own, so that without the order prior, which has to be paid for each of them, the
        objective favours many epochs.
    """

    name: ClassVar[str] = "fedavg-unknown-schedule"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT, Fact.STEPS})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = _PRESETS

    attack: Tried = field(default_factory=FedAvg)
    epochs: tuple[int, ...] = ()
    by: Judge = "objective"

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once, once for each way."""
        check_needs(self, view)
        n = view.count // self.attack.members
        steps = view.recipe.local_steps(n) if view.knows(Fact.RECIPE) else view.steps  # of each member of a sum
        if view.kind == "gradient":
            return self.attack(_believing(view, {Fact.RECIPE: steps.each}), rng / "attack")
        ways = [way for way in schedules(steps.number, n) if not self.epochs or way[0] in self.epochs]
        if not ways:
            raise ValueError(
                f"expected `epochs` to hold a divisor of the {steps.number} steps that leaves at most {n} batches, "
                f"got {self.epochs}"
            )
        guesses = [
            # Labels of batches would tell the number of epochs.
            _believing(view, {Fact.RECIPE: steps.cut(*way), Fact.BATCH_LABELS: None})
            for way in ways
        ]
        return _best(self.attack, guesses, self.by, rng)


@dataclass(frozen=True)
class UnknownCount:
    """Try several numbers of examples where the threat model hides it, and answer with the best for each client.

    Args:
        attack: what is tried; its own knobs hold for every try.
        counts: numbers of examples to try.
        by: the judge, as in `UnknownSchedule`.

    Note:
        Where the choice differs between clients, answers are filled up with NaN, and labels with −1.
    """

    name: ClassVar[str] = "fedavg-unknown-count"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.RECIPE})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = _PRESETS

    attack: Tried = field(default_factory=FedAvg)
    counts: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    by: Judge = "objective"

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise ValueError(f"expected `counts` to hold numbers of at least 1, got {self.counts}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once, once for each number."""
        check_needs(self, view)
        counts = self.counts
        if view.knows(Fact.COUNT):
            counts = (view.count,)
        elif view.knows(Fact.LABELS):
            counts = (view.labels.shape[1],)
        return _best(self.attack, [_believing(view, {Fact.COUNT: count}) for count in counts], self.by, rng)


def schedules(steps: int, n: int) -> list[tuple[int, int]]:
    """All (epochs, batch size) with which `n` examples, in batches as even as possible, make so many steps.

    Example:
        >>> schedules(50, 50)
        [(1, 1), (2, 2), (5, 5), (10, 10), (25, 25), (50, 50)]
        >>> schedules(6, 4)
        [(3, 2), (6, 4)]
    """
    found = []
    for epochs in range(1, steps + 1):
        batches, rest = divmod(steps, epochs)
        size = -(-n // batches)
        if rest == 0 and -(-n // size) == batches:
            found.append((epochs, size))
    return found


def misfit(view: View, finding: Finding) -> Tensor:
    """How far training on the answered examples ends from where the client did, per squared length of its way.

    The examples are visited in the answered order in all epochs, whatever the number of epochs: n examples explain the
    update, and not a set for each epoch.

    Args:
        view: with the recipe that is believed in.
        finding: inputs and labels of every client.

    Returns:
        0 for a perfect explanation, 1 for as good as none, (clients,).
    """
    recipe, defence = view.recipe, view.assumed_defence

    def of_client(x: Tensor, y: Tensor, params: Params, buffers: Params, update: Params) -> Tensor:
        guess = local_update(view.task, params, recipe.schedule(x, y), recipe, defence, buffers=buffers)
        return relative(guess, update)

    with torch.no_grad(), arithmetic("fp32"):
        values: Tensor = over_lanes(of_client, view.task.batched)(
            _present(finding.inputs), _present(finding.labels), view.params, view.buffers, view.update
        )
    return values


def _best(attack: Tried, guesses: list[View], by: Judge, rng: Stream) -> Finding:
    # The same stream for all of them: the guess alone is to decide.
    findings = [attack(guess, rng / "attack") for guess in guesses]
    judged = [
        misfit(guess, finding) if by == "misfit" else _present(finding.objective)
        for guess, finding in zip(guesses, findings, strict=True)
    ]
    values = torch.stack(judged, 1).nan_to_num(nan=torch.inf)  # (clients, guesses)
    return _chosen(findings, values.argmin(1).tolist())


def _believing(view: View, facts: Mapping[Fact, Any]) -> View:
    """The view of one who believes in these facts, and knows nothing of those that are `None`."""
    granted = {**view._granted, **facts}
    return replace(view, _granted={fact: value for fact, value in granted.items() if value is not None})


def _chosen(findings: list[Finding], which: list[int]) -> Finding:
    """The finding at position `which[i]` for client i; findings of fewer examples are filled up."""

    def gather(name: str, fill: float) -> Tensor | None:
        parts = [getattr(finding, name) for finding in findings]
        if any(part is None for part in parts):
            return None
        if parts[0].ndim == 1:
            return torch.stack([parts[k][i] for i, k in enumerate(which)])
        n = max(part.shape[1] for part in parts)
        whole: Tensor = parts[0].new_full((len(which), n, *parts[0].shape[2:]), fill)
        for i, k in enumerate(which):
            whole[i, : parts[k].shape[1]] = parts[k][i]
        return whole

    return Finding(
        gather("inputs", torch.nan),
        gather("labels", -1),
        gather("objective", torch.nan),
        gather("status", -1),
        gather("first_objective", torch.nan),
        gather("confidence", torch.nan),
    )


def _present(part: Tensor | None) -> Tensor:
    assert part is not None  # every attack that is tried answers with all of these
    return part
