"""Who attacks, and what they may know: the one door between the client's data and an attack.

`observe` is the only function that sees both sides. It lets through what the threat model grants, as copies, and
nothing else: a `View` has no path to a `Secret`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from seepage.capture import Capture, Secret
from seepage.defences.base import Defence, NoDefence
from seepage.recipe import LocalSteps, Recipe
from seepage.spec import Examples
from seepage.task import Params, Task

__all__ = [
    "THREATS",
    "Fact",
    "NotKnown",
    "Records",
    "Seen",
    "Sensitive",
    "Setting",
    "ThreatModel",
    "View",
    "observe",
    "target_records",
]


class Fact(StrEnum):
    """Something that a threat model grants beyond the messages themselves."""

    COUNT = "count"  # how many examples the client trained on
    RECIPE = "recipe"  # optimiser, learning rate, epochs, batch size, mode of BatchNorm
    STEPS = "steps"  # the same without epochs and batch size, but how many local steps they make
    LABELS = "labels"  # how often each label occurs, handed over sorted
    MEMBER_LABELS = "member labels"  # the same for each client of an aggregate
    BATCH_LABELS = "batch labels"  # which labels occur in which batch, each batch handed over sorted
    DEFENCE = "defence"  # which defence the client uses, without its noise
    PUBLIC_DATA = "public data"  # examples from the same distribution that are nobody's secret
    PUBLIC_COLUMNS = "public columns"  # every record of the client and its label, but for one sensitive column
    TARGETS = "target records"  # records of the clients that are looked at, without a word on whose they are

    @property
    def about(self) -> str:
        """One sentence for the table in the documentation."""
        return _ABOUT[self]


_ABOUT = {
    Fact.COUNT: "how many examples the client trained on",
    Fact.RECIPE: "optimiser, learning rate, epochs, batch size and BatchNorm mode of local training",
    Fact.STEPS: "optimiser, learning rate, BatchNorm mode and number of local steps, not how they are cut into epochs",
    Fact.LABELS: "how often each label occurs in the client's data (never which example has it)",
    Fact.MEMBER_LABELS: "of an aggregate, how often each label occurs with each of its clients",
    Fact.BATCH_LABELS: "which labels occur in which batch of local training (never which example has which)",
    Fact.DEFENCE: "which defence the client uses, with its settings but not its random numbers",
    Fact.PUBLIC_DATA: "examples of the same kind that belong to none of the clients",
    Fact.PUBLIC_COLUMNS: "every record of the client and its label, but for the one column that is sensitive",
    Fact.TARGETS: "some records of the clients that are looked at, whole, without a word on which client has which",
}


_FOLLOWS = {Fact.STEPS: frozenset({Fact.RECIPE, Fact.COUNT})}
"""What anybody can work out who is granted the facts on the right."""


class NotKnown(PermissionError):
    """The threat model hides this fact."""

    def __init__(self, threat: ThreatModel, fact: Fact) -> None:
        self.fact = fact
        if fact in threat.known:
            message = f"the threat model {threat.name!r} grants {fact.value!r}, but there is none in this federation"
        else:
            granted = sorted(f.value for f in threat.facts)
            source = " and ".join(repr(f.value) for f in sorted(_FOLLOWS.get(fact, ())))
            hint = f", which follows from {source}" if source else ""
            message = f"the threat model {threat.name!r} does not grant {fact.value!r}{hint}; it grants {granted}"
        super().__init__(message)


@dataclass(frozen=True)
class ThreatModel:
    """A named attacker.

    Args:
        name: as in tables and on the command line.
        facts: what it knows beyond the messages.
        about: who that is, in one sentence.
    """

    name: str
    facts: frozenset[Fact]
    about: str = ""

    @property
    def known(self) -> frozenset[Fact]:
        """The facts, and what follows from them.

        Example:
            >>> sorted(ThreatModel("insider", frozenset({Fact.COUNT, Fact.RECIPE})).known)
            [<Fact.COUNT: 'count'>, <Fact.RECIPE: 'recipe'>, <Fact.STEPS: 'steps'>]
        """
        return self.facts | {fact for fact, of in _FOLLOWS.items() if of <= self.facts}

    @property
    def knows_training(self) -> bool:
        """Whether it is told how clients train, with or without how their steps are cut."""
        return not self.facts.isdisjoint({Fact.RECIPE, Fact.STEPS})


_NAMED = (
    ThreatModel(
        "eavesdropper",
        frozenset({Fact.COUNT}),
        "reads the messages on their way (global model, answer, number of examples) and knows no more",
    ),
    ThreatModel(
        "step-counting-server",
        frozenset({Fact.COUNT, Fact.STEPS}),
        "knows the optimiser and how many steps clients take, but not their epochs and batches, as in dimitrov2022",
    ),
    ThreatModel(
        "honest-server",
        frozenset({Fact.COUNT, Fact.RECIPE}),
        "runs the protocol as agreed, is curious, and knows how the clients train because it told them",
    ),
    ThreatModel(
        "label-aware-server",
        frozenset({Fact.COUNT, Fact.RECIPE, Fact.LABELS}),
        "an honest server that also knows how often each label occurs, for instance from published statistics",
    ),
    ThreatModel(
        "member-aware-server",
        frozenset({Fact.COUNT, Fact.RECIPE, Fact.LABELS, Fact.MEMBER_LABELS}),
        "a label-aware server that knows each client's labels where it sees an aggregate, as dimitrov2022 assumes",
    ),
    ThreatModel(
        "batch-aware-server",
        frozenset({Fact.COUNT, Fact.RECIPE, Fact.LABELS, Fact.BATCH_LABELS}),
        "a label-aware server that also knows which labels occur in which batch, as geiping2020 assumes",
    ),
    ThreatModel(
        "informed-server",
        frozenset({Fact.COUNT, Fact.RECIPE, Fact.DEFENCE, Fact.PUBLIC_DATA}),
        "an honest server that knows the clients' defence and holds public data of the same kind",
    ),
    ThreatModel(
        "column-aware-server",
        frozenset({Fact.COUNT, Fact.RECIPE, Fact.PUBLIC_COLUMNS}),
        "an honest server that has the clients' tables without their sensitive column, as driouich2023 assumes",
    ),
    ThreatModel(
        "source-seeking-server",
        frozenset({Fact.RECIPE, Fact.TARGETS}),
        "an honest server that holds records of which it knows that some client trained on them, but not which",
    ),
    ThreatModel(
        "all-knowing-server",
        frozenset(Fact) - {Fact.STEPS, Fact.PUBLIC_COLUMNS, Fact.TARGETS},  # steps follow from the recipe
        "every fact there is about the data, and none of the records: an upper bound, not a realistic attacker",
    ),
)
TARGETS_EACH = 100  # records of each client whose source is asked for
THREATS: Mapping[str, ThreatModel] = MappingProxyType({threat.name: threat for threat in _NAMED})


@dataclass(frozen=True, eq=False)
class Sensitive:
    """A column of the clients' tables that is nobody else's business, and what may stand in it.

    Args:
        name: of the column.
        features: its place on the last axis of an example.
        values: each value as the module eats it, (values, features); of a column of numbers, what is one standard
            deviation below its mean and what is one above, (2, 1).
        numeric: whether it is a column of numbers.
        missing: further columns that are not public either; the mean of their values stands in for them.
    """

    name: str
    features: slice
    values: Tensor
    numeric: bool = False
    missing: tuple[Sensitive, ...] = ()

    def hidden(self, x: Tensor) -> Tensor:
        """A copy of the examples with zeros in the column, and the same everywhere in those that are missing."""
        public = x.clone()
        public[..., self.features] = 0
        for column in self.missing:
            public[..., column.features] = column.values.mean(0).to(public)
        return public

    def read(self, x: Tensor) -> Tensor:
        """Which value stands in the column of each example, the nearest one; or which number."""
        column = x[..., self.features]
        if self.numeric:
            return column[..., 0]
        values = self.values.to(column)
        return (column[..., None, :] - values).square().sum(-1).argmin(-1)

    def write(self, found: Tensor) -> Tensor:
        """The inverse of `read`: what stands in the column, (…, features)."""
        return found[..., None] if self.numeric else self.values.to(found.device)[found]

    @property
    def combinations(self) -> Tensor:
        """Each value beside each of the missing columns' values, (combinations, features of all)."""
        rows = self.values
        for column in self.missing:
            more = (column.choices[::10] if column.numeric else column.values).to(rows)  # a number by whole deviations
            rows = torch.cat([rows.repeat_interleave(len(more), 0), more.repeat(len(rows), 1)], 1)
        return rows

    @property
    def choices(self) -> Tensor:
        """All values, or numbers from three deviations below the mean to three above it, (choices, features)."""
        if not self.numeric:
            return self.values
        mean, deviation = self.values.mean(0), (self.values[1] - self.values[0]) / 2
        return mean + torch.linspace(-3, 3, 61, dtype=mean.dtype)[:, None] * deviation


@dataclass(frozen=True, eq=False)
class Records:
    """What is public of each client's records.

    Args:
        x: (clients, n, …) with zeros in the sensitive column.
        y: their labels, (clients, n).
        sensitive: the column.
    """

    x: Tensor
    y: Tensor
    sensitive: Sensitive

    def filled(self, client: int, values: Tensor) -> Tensor:
        """The records of one client with `values` in the column: (n, …, features), or one row for all of them.

        With more features than the column has, these are of the missing columns.
        """
        x = self.x[client].clone()
        for column in (self.sensitive, *self.sensitive.missing):
            width = column.values.shape[1]
            if values.shape[-1]:
                x[..., column.features], values = values[..., :width].to(x), values[..., width:]
        return x


@dataclass(frozen=True, eq=False)
class Setting:
    """What the auditor knows about the federation; `observe` decides how much of it an attacker sees."""

    task: Task
    recipe: Recipe
    defence: Defence = field(default_factory=NoDefence)
    public: Examples | None = None
    sensitive: Sensitive | None = None
    folder: Path | None = None  # of files that anybody can have, such as the weights of LPIPS


@dataclass(frozen=True, eq=False)
class Seen:
    """One round as the attacker saw it, clients first in every tensor."""

    round: int
    params: Params
    buffers: Params
    update: Params
    buffers_after: Params | None


@dataclass(frozen=True, eq=False)
class View:
    """All that an attacker holds: the messages and the granted facts.

    Args:
        threat: who is looking.
        task: the module, loss and data description, which are public in every federation.
        clients: their names, one per entry of the client axis.
        kind: `"gradient"` or `"update"`.
        rounds: what was seen, oldest first.
        folder: of files that anybody can have, such as the weights of LPIPS; `None` is the usual place.
    """

    threat: ThreatModel
    task: Task
    clients: tuple[str, ...]
    kind: str
    rounds: tuple[Seen, ...]
    _granted: Mapping[Fact, Any]
    folder: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A read-only mapping does not travel between processes: it is made anew there."""
        parts = (self.threat, self.task, self.clients, self.kind, self.rounds)
        return _view, (*parts, dict(self._granted), self.folder)

    def knows(self, fact: Fact) -> bool:
        """Whether `fact` was granted, or follows from what was, and there is something to know."""
        return fact in self._granted or (fact in _FOLLOWS and _FOLLOWS[fact] <= self._granted.keys())

    def _fact(self, fact: Fact) -> Any:
        if fact not in self._granted:
            raise NotKnown(self.threat, fact)
        return self._granted[fact]

    @property
    def params(self) -> Params:
        """The global model in the last round, (clients, …)."""
        return self.rounds[-1].params

    @property
    def buffers(self) -> Params:
        """The global model's buffers in the last round, (clients, …)."""
        return self.rounds[-1].buffers

    @property
    def update(self) -> Params:
        """The update or gradient of the last round, (clients, …)."""
        return self.rounds[-1].update

    @property
    def count(self) -> int:
        """Examples per client."""
        return int(self._fact(Fact.COUNT))

    @property
    def recipe(self) -> Recipe:
        """How clients train."""
        recipe: Recipe = self._fact(Fact.RECIPE)
        return recipe

    @property
    def steps(self) -> LocalSteps:
        """How many steps clients take, and how each is done."""
        if {Fact.RECIPE, Fact.COUNT} <= self._granted.keys():
            return self.recipe.local_steps(self.count)
        steps: LocalSteps = self._fact(Fact.STEPS)
        return steps

    @property
    def labels(self) -> Tensor:
        """Each client's labels in ascending order, (clients, count)."""
        labels: Tensor = self._fact(Fact.LABELS)
        return labels

    @property
    def member_labels(self) -> Tensor:
        """The labels of each client of an aggregate in ascending order, (aggregates, members, count of each)."""
        labels: Tensor = self._fact(Fact.MEMBER_LABELS)
        return labels

    @property
    def batch_labels(self) -> Tensor:
        """Each client's labels in the order of training, ascending inside of each batch, (clients, epochs, count)."""
        labels: Tensor = self._fact(Fact.BATCH_LABELS)
        return labels

    @property
    def public(self) -> Examples:
        """Public examples."""
        public: Examples = self._fact(Fact.PUBLIC_DATA)
        return public

    @property
    def records(self) -> Records:
        """Each client's records without their sensitive column."""
        records: Records = self._fact(Fact.PUBLIC_COLUMNS)
        return records

    @property
    def targets(self) -> Examples:
        """Records that some of the clients have, (targets, …)."""
        targets: Examples = self._fact(Fact.TARGETS)
        return targets

    @property
    def assumed_recipe(self) -> Recipe:
        """The recipe if it is known; else the guess that the answer is, up to scale, one gradient."""
        if self.knows(Fact.RECIPE):
            return self.recipe
        return replace(self.steps.each, sends="gradient") if self.knows(Fact.STEPS) else Recipe(sends="gradient")

    @property
    def assumed_defence(self) -> Defence:
        """The defence without its noise if it is known; else none."""
        return self._fact(Fact.DEFENCE) if self.knows(Fact.DEFENCE) else NoDefence()


def _view(
    threat: ThreatModel,
    task: Task,
    clients: tuple[str, ...],
    kind: str,
    rounds: tuple[Seen, ...],
    granted: dict[Fact, Any],
    folder: Path | None,
) -> View:
    return View(threat, task, clients, kind, rounds, MappingProxyType(granted), folder)


def observe(pairs: Sequence[tuple[Capture, Secret | None]], setting: Setting, threat: ThreatModel) -> View:
    """What the attacker `threat` holds after the captured rounds.

    Args:
        pairs: for each client what was captured, and its secret if there is one (facts such as labels come from it).
        setting: the federation.
        threat: the facts to let through.

    Raises:
        ValueError: when the clients do not stack (other rounds, kinds or numbers of examples), or when a granted fact
            is not there to be granted.
    """
    if not pairs:
        raise ValueError("expected at least one capture to observe, got none")
    captures = [capture for capture, _ in pairs]
    kind = _one("kind of answer", ["gradient" if c.exchanges[-1].kind == "gradient" else "update" for c in captures])
    rounds = _one("observed rounds", [tuple(e.round for e in c.exchanges) for c in captures])
    seen = tuple(
        Seen(
            number,
            _together([c.exchanges[i].before for c in captures]),
            _together([c.exchanges[i].buffers_before for c in captures]),
            _stack([c.exchanges[i].update for c in captures]),
            _stack([after for c in captures if (after := c.exchanges[i].buffers_after) is not None])
            if all(c.exchanges[i].buffers_after is not None for c in captures)
            else None,
        )
        for i, number in enumerate(rounds)
    )
    granted: dict[Fact, Any] = {}
    if Fact.COUNT in threat.facts:
        granted[Fact.COUNT] = _one("number of examples", [_count(c, secret) for c, secret in pairs])
    if Fact.RECIPE in threat.facts:
        granted[Fact.RECIPE] = setting.recipe
    if Fact.STEPS in threat.facts and (steps := _local_steps(pairs, setting.recipe)) is not None:
        granted[Fact.STEPS] = steps
    if Fact.DEFENCE in threat.facts:
        granted[Fact.DEFENCE] = setting.defence.expected
    if Fact.LABELS in threat.facts:
        if any(secret is None for _, secret in pairs):
            raise ValueError(
                f"the threat model {threat.name!r} grants labels, which come from the secret: expected one for every "
                "client; hand the secret in, or choose a threat model without labels"
            )
        granted[Fact.LABELS] = torch.stack([_sorted(s.examples.y) for _, s in pairs if s is not None])
    if Fact.MEMBER_LABELS in threat.facts and (members := _member_labels([secret for _, secret in pairs])) is not None:
        granted[Fact.MEMBER_LABELS] = members
    if Fact.BATCH_LABELS in threat.facts and all(s is not None and s.orders is not None for _, s in pairs):
        size = setting.recipe.batch_size
        granted[Fact.BATCH_LABELS] = torch.stack([_batch_labels(s, size) for _, s in pairs if s is not None])
    if Fact.PUBLIC_DATA in threat.facts and setting.public is not None:
        granted[Fact.PUBLIC_DATA] = Examples(setting.public.x.clone(), setting.public.y.clone())
    if Fact.PUBLIC_COLUMNS in threat.facts and setting.sensitive is not None:
        granted[Fact.PUBLIC_COLUMNS] = _records([secret for _, secret in pairs], setting.sensitive, threat)
    if Fact.TARGETS in threat.facts and all(secret is not None for _, secret in pairs):
        granted[Fact.TARGETS] = target_records([s.examples for _, s in pairs if s is not None])[0]
    # A task of its own: the federation's was used by clients, and a module may keep what passes through it.
    task, clients = setting.task.fresh(), tuple(c.client for c in captures)
    return View(threat, task, clients, kind, seen, MappingProxyType(granted), setting.folder)


def _stack(parts: Sequence[Params]) -> Params:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _together(parts: Sequence[Params]) -> Params:
    """As `_stack`, but what is equal for all clients, as a global model is, takes the memory of one (`expand`)."""
    return {
        name: first.clone().expand(len(parts), *first.shape)
        if all(torch.equal(first, part[name]) for part in parts[1:])
        else torch.stack([part[name] for part in parts])
        for name, first in parts[0].items()
    }


def _sorted(y: Tensor) -> Tensor:
    """A copy in ascending order of rows: nothing of the secret's memory or order passes."""
    rows, counts = torch.unique(y, dim=0, return_counts=True)
    return torch.repeat_interleave(rows, counts, 0)


def _member_labels(secrets: Sequence[Secret | None]) -> Tensor | None:
    """Of equally many members of one size, as others do not stack; who is no aggregate is the one member."""
    held = [secret for secret in secrets if secret is not None]
    shapes = {secret.sizes or (len(secret.examples),) for secret in held}
    if len(held) < len(secrets) or len(shapes) > 1 or len(sizes := set(next(iter(shapes)))) > 1:
        return None
    (size,) = sizes
    return torch.stack([torch.stack([_sorted(y) for y in secret.examples.y.split(size)]) for secret in held])


def target_records(clients: Sequence[Examples]) -> tuple[Examples, Tensor]:
    """Up to a hundred records of each client, evenly spaced, in an order that tells nothing, and whose they are.

    Returns:
        The records without repetition in ascending order of their numbers, and (clients, targets) who has them.
    """
    picked = [e[:: max(1, len(e) // TARGETS_EACH)][:TARGETS_EACH] for e in clients]
    rows = [torch.cat([p.x.flatten(1).double(), p.y.reshape(len(p), -1).double()], 1) for p in picked]
    _, place = torch.unique(torch.cat(rows), dim=0, return_inverse=True)
    holds = torch.zeros(len(clients), int(place.max()) + 1, dtype=torch.bool, device=place.device)
    owner = torch.repeat_interleave(torch.arange(len(clients)), torch.tensor([len(p) for p in picked]))
    holds[owner.to(place.device), place] = True
    first = torch.zeros(holds.shape[1], dtype=torch.long, device=place.device)
    first[place] = torch.arange(len(place), device=place.device)
    return Examples.join(picked)[first], holds


def _records(secrets: Sequence[Secret | None], sensitive: Sensitive, threat: ThreatModel) -> Records:
    held = [secret.examples for secret in secrets if secret is not None]
    if len(held) < len(secrets):
        raise ValueError(
            f"the threat model {threat.name!r} grants public columns, which come from the secret: expected one for "
            "every client; hand the secret in, or choose a threat model without public columns"
        )
    _one("number of records", [len(examples) for examples in held])
    x, y = torch.stack([sensitive.hidden(e.x) for e in held]), torch.stack([e.y for e in held])
    return Records(x, y, sensitive)


def _batch_labels(secret: Secret, size: int | None) -> Tensor:
    assert secret.orders is not None
    y = secret.examples.y
    epochs = [y[order].split(size or len(y)) for order in secret.orders.to(y.device)]
    return torch.stack([torch.cat([_sorted(batch) for batch in epoch]) for epoch in epochs])


def _local_steps(pairs: Sequence[tuple[Capture, Secret | None]], recipe: Recipe) -> LocalSteps | None:
    """What each client does by itself, also where a sum of several is seen; `None` where that is not one number."""
    sizes: set[int] = set()
    for capture, secret in pairs:
        members = secret.sizes if secret is not None else ()
        if capture.members and not members:
            return None
        sizes.update(members or (_count(capture, secret),))
    taken = {recipe.local_steps(size) for size in sizes}
    return taken.pop() if len(taken) == 1 else None


def _count(capture: Capture, secret: Secret | None) -> int:
    count = capture.exchanges[-1].examples
    if count is None and secret is not None:
        count = len(secret.examples)
    if count is None:
        raise ValueError(
            f"client {capture.client}: the threat model grants the number of examples, "
            "but the capture does not say it; read the capture with `examples=`"
        )
    return count


def _one(what: str, values: Sequence[Any]) -> Any:
    if len(set(values)) != 1:
        raise ValueError(f"expected clients of one view to share the {what}, got {sorted(set(values), key=str)}")
    return values[0]
