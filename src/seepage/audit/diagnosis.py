"""Why an attack did not bring the data back, as far as it can be known.

The auditor knows more than the attacker: the true examples, the defence, the recipe. What of it explains a failure is
worked out in two steps: `gather` looks at the update and at the examples behind it, before any attack, and `diagnose`
puts that beside what the attack answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor, nn

from seepage.capture import Exchange
from seepage.defences.base import NoDefence
from seepage.engine.minimise import Status
from seepage.finding import Finding
from seepage.local import better_together, local_update, updates_together
from seepage.metrics.score import Score
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.task import Params, Task
from seepage.threat import Setting

__all__ = ["Cause", "Evidence", "answer_mismatches", "diagnose", "gather", "mismatches", "read_causes", "write_causes"]


class Cause(StrEnum):
    """Why data did not come back; what explains most comes first."""

    RECOVERED = "recovered"
    ZERO_UPDATE = "zero-update"
    DEFENDED = "defended"
    SATURATED = "saturated"
    LABELS_WRONG = "labels-wrong"
    BATCH_NORM = "batch-norm-train"
    UNTOLD = "steps-untold"
    NO_GUESS = "no-guess"
    DIVERGED = "diverged"
    NOT_REDUCED = "not-reduced"
    AMBIGUOUS = "ambiguous"
    STUCK = "stuck"
    UNEXPLAINED = "unexplained"

    @property
    def label(self) -> str:
        """Two or three words."""
        return _WORDS[self][0]

    @property
    def sentence(self) -> str:
        """What that means, for somebody who did not write the attack."""
        return _WORDS[self][1]


_WORDS = {
    Cause.RECOVERED: ("came back", "The data came back; there is nothing to explain."),
    Cause.ZERO_UPDATE: ("empty update", "The update is zero, or no larger than rounding: nothing can be read from it."),
    Cause.DEFENDED: ("defended", "The defence changed the update by more than a hundredth of its size."),
    Cause.SATURATED: (
        "nothing left to learn",
        "The global model was already certain of these examples, so they hardly change it.",
    ),
    Cause.LABELS_WRONG: (
        "wrong labels",
        "The attack did not find all the labels; where it went on to inputs, it looked for those that belong to the "
        "labels it believed in.",
    ),
    Cause.BATCH_NORM: (
        "batch statistics",
        "The client normalised every batch by that batch's own mean and spread, which mixes its examples in the update "
        "and takes brightness and contrast out of it.",
    ),
    Cause.UNTOLD: (
        "steps not known",
        "The client made several local steps, and the attacker was not told how: the attack looked for data that would "
        "explain the update more simply.",
    ),
    Cause.NO_GUESS: ("no guess", "The attack gave no guess for some of the examples."),
    Cause.DIVERGED: ("diverged", "The attack's search ran into numbers that are not finite."),
    Cause.NOT_REDUCED: ("no progress", "The attack's search never got better than the point where it began."),
    Cause.AMBIGUOUS: (
        "other data fit too",
        "The attack found other data that explain the update as well as the client's own do: the update alone does not "
        "tell them apart, a better idea of how the data look might.",
    ),
    Cause.STUCK: (
        "search stopped short",
        "The attack's search got better but ended before it explained the update as the true data do, in a local "
        "minimum or for want of steps: more restarts or steps may bring more back.",
    ),
    Cause.UNEXPLAINED: ("unexplained", "Nothing that was looked at explains why the data did not come back."),
}

CHANGED = 0.01
"""Difference that a defence makes to an update, over the size of the update, from which on it counts."""

CERTAIN = 1e-3
"""What a model may be off by on examples that it has learnt: 99.9 % for the true labels, or a thousandth of a unit."""

REACHED = 0.01
"""How much worse than the true data an answer may explain an update, in `mismatch`, and still count as doing so."""

ROWS_FOUND = 0.9
"""Share of the cells of a client's rows from which on a table counts as having come back."""

FEATURES_FOUND = 0.1
"""Relative error up to which what enters a layer, or a client's own model, counts as having come back."""

MOST_EXAMPLES = 256
"""Examples that the loss is taken on: enough to see whether a model is certain, and no burden on memory."""


@dataclass(frozen=True)
class Evidence:
    """What the auditor sees in one update, before any attack.

    Args:
        examples: how many the client has.
        empty: whether the update is zero up to rounding.
        certain: whether the global model had nothing left to learn from the examples.
        batch_norm: whether the client normalised batches by their own statistics.
        changed: size of what the defence changed over the size of the update without it; 0 without a defence.
        mismatch: between the update and what the true examples give as far as it can be simulated; noise and the order
            of batches cannot.
        untold: whether the client made several steps that the attacker was told nothing about.
    """

    examples: int
    empty: bool = False
    certain: bool = False
    batch_norm: bool = False
    changed: float = 0.0
    mismatch: float = 0.0
    untold: bool = False


def gather(
    exchanges: Sequence[Exchange], examples: Sequence[Examples], setting: Setting, told: bool = True
) -> list[Evidence]:
    """Look at updates and at the examples behind each.

    Args:
        exchanges: the last of each client that was attacked.
        examples: the client's.
        setting: the federation.
        told: whether the attacker knows the recipe.

    Example:
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), DataSpec((1, 2, 2), classes=3))
        >>> nothing = {name: torch.zeros_like(p) for name, p in task.params.items()}
        >>> exchange = Exchange(0, task.params, nothing, "update", {})
        >>> gather([exchange], [Examples(torch.ones(1, 1, 2, 2), torch.tensor([0]))], Setting(task, Recipe()))
        [Evidence(examples=1, empty=True, certain=False, batch_norm=False, changed=0.0, mismatch=nan, untold=False)]
    """
    task, recipe = setting.task, setting.recipe
    normalised = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in task.module.modules())
    distances = mismatches(exchanges, examples, setting)
    return [
        Evidence(
            len(own),
            _empty(exchange),
            _certain(task, exchange, own[:MOST_EXAMPLES], recipe),
            recipe.train and normalised,
            _changed(exchange, own, setting),
            distance,
            not told and recipe.steps(len(own)) > 1,
        )
        for exchange, own, distance in zip(exchanges, examples, distances, strict=True)
    ]


def _empty(exchange: Exchange) -> bool:
    def rounding(update: Tensor, before: Tensor) -> float:
        # A difference of weights is rounded as these are; a gradient is made of errors of predictions, around 1.
        size = 1.0 if exchange.kind == "gradient" else float(before.abs().max())
        return 4 * torch.finfo(update.dtype).eps * size

    update = exchange.update
    return all(float(u.abs().max()) <= rounding(u, exchange.before[name]) for name, u in update.items() if u.numel())


def _certain(task: Task, exchange: Exchange, examples: Examples, recipe: Recipe) -> bool:
    params, buffers = exchange.before, {**task.buffers, **exchange.buffers_before}
    with torch.no_grad():
        out, _ = task.forward(params, examples.x, buffers=buffers, train=recipe.train)
        loss = float(task.mean_loss(out, examples.y))
    return loss <= (CERTAIN**2 if task.spec.classes is None else CERTAIN)


def _changed(exchange: Exchange, examples: Examples, setting: Setting) -> float:
    """How far the update is from the one that the same examples give without a defence."""
    if isinstance(setting.defence, NoDefence):
        return 0.0
    (plain,) = _simulated([exchange], [examples], replace(setting, defence=NoDefence()))
    size = float(plain.norm())
    difference = float((_flat(exchange.update) - plain).norm())
    return difference / size if size else math.inf if difference else 0.0


def mismatches(exchanges: Sequence[Exchange], examples: Sequence[Examples], setting: Setting) -> list[float]:
    """Distance between the directions of each update and of the one that some examples would give.

    Args:
        exchanges: with the updates.
        examples: the clients', or those that an attack believes in.
        setting: the federation.

    Returns:
        From 0, they explain the update, to 2, they explain its opposite; NaN where one of the two is zero.

    Note:
        The client's noise is left out, and batches are taken in stored order.
    """
    sent, simulated = [_flat(exchange.update) for exchange in exchanges], _simulated(exchanges, examples, setting)
    pairs = zip(sent, simulated, strict=True)
    return [float((one / one.norm() - other / other.norm()).norm()) for one, other in pairs]


def answer_mismatches(
    exchanges: Sequence[Exchange], finding: Finding, clients: Sequence[int], setting: Setting
) -> list[float]:
    """The `mismatches` of what an attack answered; NaN unless it named inputs and labels for a client to train on.

    Args:
        exchanges: with the updates.
        finding: what was answered.
        clients: the place of each in it.
        setting: the federation.
    """
    believed = [_believed(e, finding, client, setting) for e, client in zip(exchanges, clients, strict=True)]
    some = [(exchange, own) for exchange, own in zip(exchanges, believed, strict=True) if own is not None]
    found = iter(mismatches([exchange for exchange, _ in some], [own for _, own in some], setting))
    return [math.nan if own is None else next(found) for own in believed]


def _believed(exchange: Exchange, finding: Finding, client: int, setting: Setting) -> Examples | None:
    if finding.inputs is None or finding.labels is None:
        return None
    x, y, classes = finding.inputs[client], finding.labels[client], setting.task.spec.classes
    if len(x) != len(y) or not x.isfinite().all() or not y.isfinite().all():
        return None
    if classes is not None and not 0 <= int(y.min()) <= int(y.max()) < classes:
        return None
    like = next(iter(exchange.before.values()))
    return Examples(x, y).to(like.device, like.dtype)


def _simulated(exchanges: Sequence[Exchange], examples: Sequence[Examples], setting: Setting) -> list[Tensor]:
    """The update that each client would send: on a GPU those of all clients at once, where nothing forbids it."""
    task, recipe, defence = setting.task, setting.recipe, setting.defence.expected
    starts = [(exchange.before, {**task.buffers, **exchange.buffers_before}) for exchange in exchanges]
    schedules = [recipe.schedule(own.x, own.y) for own in examples]
    if isinstance(defence, NoDefence) and starts and better_together(task, starts[0][0]):
        return [_flat(update) for update, _ in updates_together(task, starts, schedules, recipe)]
    with torch.no_grad():
        updates = [
            local_update(task, params, schedule, recipe, defence, buffers=buffers)
            for (params, buffers), schedule in zip(starts, schedules, strict=True)
        ]
    return [_flat(update) for update in updates]


def _flat(params: Params) -> Tensor:
    return torch.cat([p.reshape(-1) for p in params.values()]).double()


def diagnose(
    evidence: Evidence, finding: Finding, client: int, scores: Iterable[Score], fit: float = math.nan
) -> tuple[Cause, ...]:
    """Every cause that applies, the one that explains most first.

    Args:
        evidence: from `gather`.
        finding: what the attack answered.
        client: place of the client in it.
        scores: what that was measured to be worth.
        fit: from `answer_mismatches`.

    Returns:
        `RECOVERED` alone where all of the client's data came back, so that there is nothing to explain.

    Example:
        >>> scores = [Score("all", "recovered", 0.0), Score("all", "label_accuracy", 0.5)]
        >>> finding = Finding(torch.zeros(1, 2, 3), torch.tensor([[5, 5]]))
        >>> [str(cause) for cause in diagnose(Evidence(2, changed=2.0), finding, 0, scores)]
        ['defended', 'labels-wrong']
    """
    values: dict[str, list[float]] = {}
    for score in scores:
        values.setdefault(score.metric, []).append(score.value)
    if _came_back(finding, values):
        return (Cause.RECOVERED,)
    holds = {
        Cause.ZERO_UPDATE: evidence.empty,
        Cause.DEFENDED: evidence.changed > CHANGED,
        Cause.SATURATED: evidence.certain,
        Cause.LABELS_WRONG: _labels_wrong(finding, client, values, evidence.examples),
        Cause.BATCH_NORM: evidence.batch_norm and not _labels_alone(finding),
        Cause.UNTOLD: evidence.untold and not _labels_alone(finding),
        Cause.NO_GUESS: _guessed(finding, client) < evidence.examples,
    }
    causes = [cause for cause, applies in holds.items() if applies]
    if not evidence.empty:  # how a search for nothing ended explains nothing
        # An attacker who is not told the steps minimises something else than what `mismatch` simulates.
        causes += _search(finding, client, math.nan if evidence.untold else fit - evidence.mismatch)
    return tuple(causes) or (Cause.UNEXPLAINED,)


def _labels_alone(finding: Finding) -> bool:
    """Whether the attack set out for nothing but labels."""
    return finding.inputs is None and finding.features is None


def _guessed(finding: Finding, client: int) -> float:
    """For how many examples the attack named what it set out to find: inputs, else what enters a layer, else labels."""
    named = finding.features if finding.inputs is None else finding.inputs
    if named is None:
        return _named_labels(finding, client)
    rows = named[client].flatten(1)
    known = rows.isfinite() if rows.is_floating_point() else rows >= 0  # a token below zero says that there is none
    return int(known.all(dim=1).sum())


def _named_labels(finding: Finding, client: int) -> float:
    """A label below zero says that there is none."""
    return math.inf if finding.labels is None else int((finding.labels[client] >= 0).sum())


def _labels_wrong(finding: Finding, client: int, values: dict[str, list[float]], count: int) -> bool:
    if "label_accuracy" not in values:
        return False
    return round(values["label_accuracy"][0] * count) < min(_named_labels(finding, client), count)


def _came_back(finding: Finding, values: dict[str, list[float]]) -> bool:
    """Whether what the attack set out to find was found: inputs, what enters a layer, a model, or else labels."""
    if finding.inputs is not None:
        if "recovered" in values:
            return min(values["recovered"]) >= 1
        if "token_accuracy" in values:
            return min(values["token_accuracy"]) >= 1
        found = values.get("cell_accuracy", values.get("exact_match", [0.0]))
        return math.fsum(found) / len(found) >= ROWS_FOUND
    if finding.features is not None:
        return all(error <= FEATURES_FOUND for error in values.get("feature_error", [math.nan]))
    if finding.params is not None:
        return all(error <= FEATURES_FOUND for error in values.get("relative_error", [math.nan]))
    if finding.attributes is not None:
        return min(values.get("attribute_accuracy", [0.0])) >= ROWS_FOUND
    if finding.tokens is not None:
        return min(values.get("token_bag", [0.0])) >= 1
    if finding.sources is not None:
        return min(values.get("source_accuracy", [0.0])) >= ROWS_FOUND
    if finding.class_inputs is not None:
        return min(values.get("class_ssim", [0.0])) >= ROWS_FOUND
    return min(values.get("label_accuracy", [0.0])) >= 1


def _search(finding: Finding, client: int, worse: float) -> list[Cause]:
    """What the answer says about how it was found, from how much worse than the truth it explains the update."""
    status = Status.REDUCED if finding.status is None else Status(int(finding.status[client]))
    if status in (Status.DIVERGED, Status.NEVER_FINITE):
        return [Cause.DIVERGED]
    if status is Status.NOT_REDUCED:
        return [Cause.NOT_REDUCED]
    if worse <= REACHED:
        return [Cause.AMBIGUOUS]
    return [Cause.STUCK] if worse > REACHED and finding.status is not None else []


def write_causes(causes: Iterable[Cause]) -> str:
    """As a column of the table holds them.

    Example:
        >>> write_causes((Cause.DEFENDED, Cause.LABELS_WRONG))
        'defended+labels-wrong'
    """
    return "+".join(causes)


def read_causes(text: str) -> tuple[Cause, ...]:
    """The causes in a column of the table; none where the column is empty.

    Example:
        >>> read_causes("defended+labels-wrong")
        (<Cause.DEFENDED: 'defended'>, <Cause.LABELS_WRONG: 'labels-wrong'>)
        >>> read_causes("")
        ()
    """
    # A table written by a later version may hold a cause that this one does not know.
    known = {cause.value: cause for cause in Cause}
    return tuple(known.get(word, Cause.UNEXPLAINED) for word in text.split("+")) if text else ()
