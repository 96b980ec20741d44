"""An experiment: one TOML file, resolved to trials that are plain values with a digest.

The file has the tables `data`, `clients`, `model`, `recipe`, `federation` and `watch`, lists of `attack`, `defence` and
`threat`, and cases that change some of it; every attack meets every defence under every threat model in every case.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from seepage.attacks import ATTACKS, Attack
from seepage.audit.values import SpecError, build, digest
from seepage.defences import DEFENCES, Defence, NoDefence, chain
from seepage.recipe import Recipe
from seepage.rounds import Federation
from seepage.threat import THREATS, Fact, ThreatModel

__all__ = ["Case", "Clients", "Data", "Expectation", "Experiment", "Model", "Trial", "Watch", "parse", "read_experiment"]


@dataclass(frozen=True)
class Data:
    """Which examples the federation is about.

    Args:
        name: a data set that `seepage list data` names, or `package.module:function` that returns a `Dataset`.
        split: the half that the clients hold; the other one is held out.
        raw: feed values as they are instead of normalised ones.
        public: how many of the held-out examples a threat model may grant as public data; they are the last ones, and
            accuracy is measured on the others.
    """

    name: str = "fashion-mnist"
    split: Literal["train", "test"] = "train"
    raw: bool = False
    public: int = 0


@dataclass(frozen=True)
class Clients:
    """Who holds what.

    Args:
        count: number of clients.
        examples: of each; `None` is all that the partition gives.
        partition: `"stored"` (one after another as stored), `"iid"`, `"dirichlet"` or `"owner"` (by writer, person, …).
        alpha: of the Dirichlet partition.
    """

    count: int = 4
    examples: int | None = None
    partition: Literal["stored", "iid", "dirichlet", "owner"] = "stored"
    alpha: float = 0.5


@dataclass(frozen=True)
class Model:
    """What is trained.

    Args:
        name: a network that `seepage list models` names, or `package.module:function` that returns an `nn.Module`.
        options: keyword arguments for it.
    """

    name: str = "cnn-femnist"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Watch:
    """What is attacked.

    Args:
        round: the round whose messages are attacked.
        clients: how many of those that answered in it, the first ones; `None` is all.
        together: most clients in one trial, that is in one program.
    """

    round: int = 0
    clients: int | None = None
    together: int = 8


@dataclass(frozen=True)
class Expectation:
    """A number that the paper reports.

    Args:
        case: name of the case.
        metric: which metric, averaged over clients and items.
        reported: the paper's number.
        source: where it stands.
        tolerance: how far ours may be off before the difference needs a sentence.
        at_least: our own target, where there is one.
        attack: name of the attack; any when absent.
        defence: name of the defence; any when absent.
    """

    case: str
    metric: str
    reported: float | None = None
    source: str = ""
    tolerance: float = 0.0
    at_least: float | None = None
    attack: str | None = None
    defence: str | None = None


@dataclass(frozen=True)
class Case:
    """One federation and what is done to it."""

    name: str
    data: Data = field(default_factory=Data)
    clients: Clients = field(default_factory=Clients)
    model: Model = field(default_factory=Model)
    recipe: Recipe = field(default_factory=Recipe)
    federation: Federation = field(default_factory=Federation)
    watch: Watch = field(default_factory=Watch)
    attacks: tuple[Attack, ...] = ()
    defences: tuple[Defence, ...] = (NoDefence(),)
    threats: tuple[ThreatModel, ...] = (THREATS["honest-server"],)


@dataclass(frozen=True)
class Trial:
    """All that decides one result.

    Without an attack it is the learning itself: accuracy per round. With one, it is that attack on a group of the
    watched clients, from position `first` to before `last` among those that answered.
    """

    case: str
    data: Data
    clients: Clients
    model: Model
    recipe: Recipe
    federation: Federation
    watch: Watch
    defence: Defence
    seed: int
    threshold: float
    attack: Attack | None = None
    threat: ThreatModel | None = None
    first: int = 0
    last: int = 0

    @cached_property
    def digest(self) -> str:
        """Name of this trial: the same for the same values, on every machine."""
        return digest(self)

    @property
    def scene(self) -> Trial:
        """The part that decides what is sent, shared by all attacks on it."""
        rounds = replace(self.federation, rounds=self.watch.round + 1)
        return replace(
            self,
            case="",
            federation=rounds,
            watch=Watch(self.watch.round),
            threshold=0.0,
            attack=None,
            threat=None,
            first=0,
            last=0,
        )


@dataclass(frozen=True)
class Experiment:
    """A table of a paper, or an audit.

    Args:
        name: short.
        about: one sentence for the reader.
        cases: in order.
        seed: of everything random.
        accuracy: also play all rounds for each defence and measure accuracy on held-out data.
        threshold: PSNR in dB above which an image counts as recovered.
        expect: numbers of the paper to stand beside ours.
    """

    name: str
    about: str = ""
    cases: tuple[Case, ...] = ()
    seed: int = 0
    accuracy: bool = False
    threshold: float = 20.0
    expect: tuple[Expectation, ...] = ()

    def trials(self, limit: int | None = None) -> Iterator[Trial]:
        """Every trial in order.

        Args:
            limit: watch at most that many clients.
        """
        for case in self.cases:
            watched = case.federation.per_round or case.clients.count
            if case.federation.visible == "aggregate":
                watched = 1
            watched = min(x for x in (watched, case.watch.clients, limit) if x is not None)
            base = Trial(
                case.name,
                case.data,
                case.clients,
                case.model,
                case.recipe,
                case.federation,
                case.watch,
                NoDefence(),
                self.seed,
                self.threshold,
            )
            for defence in case.defences:
                for attack in case.attacks:
                    for threat in case.threats:
                        for first in range(0, watched, case.watch.together):
                            last = min(first + case.watch.together, watched)
                            yield replace(
                                base, defence=defence, attack=attack, threat=threat, first=first, last=last
                            )
                if self.accuracy:
                    yield replace(base, defence=defence)


def read_experiment(path: Path, *, seed: int | None = None) -> Experiment:
    """Read an experiment from a TOML file.

    Raises:
        SpecError: naming the file, the key and what was expected.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(f"{path}: expected a TOML file, got none; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise SpecError(f"{path}: expected TOML, got: {error}") from error
    experiment = parse(table, str(path), default_name=path.stem)
    return experiment if seed is None else replace(experiment, seed=seed)


SECTIONS: dict[str, type] = {
    "data": Data,
    "clients": Clients,
    "model": Model,
    "recipe": Recipe,
    "federation": Federation,
    "watch": Watch,
}
LISTS = ("attack", "defence", "threat")


def parse(table: Mapping[str, Any], where: str, default_name: str = "experiment") -> Experiment:
    """An experiment from the content of its file.

    Example:
        >>> table = {"attack": [{"name": "inverting-gradients", "steps": 10}], "clients": {"count": 3}}
        >>> [trial.attack.steps for trial in parse(table, "here").trials()]
        [10]
    """
    rest = dict(table)
    shared = {key: rest.pop(key) for key in (*SECTIONS, *LISTS) if key in rest}
    overrides = rest.pop("case", [{"name": "all"}])
    expect = tuple(build(Expectation, e, f"{where}: expect[{i}]") for i, e in enumerate(rest.pop("expect", [])))
    known = ("name", "about", "seed", "accuracy", "threshold")
    for key in rest:
        if key not in known:
            choices = sorted([*known, *SECTIONS, *LISTS, "case", "expect"])
            raise SpecError(f"{where}: unknown key {key!r}; expected some of {choices}")
    cases = tuple(_case(shared, override, f"{where}: case[{i}]") for i, override in enumerate(overrides))
    names = [case.name for case in cases]
    for expectation in expect:
        if expectation.case not in names:
            raise SpecError(f"{where}: expect.case: expected one of {names}, got {expectation.case!r}")
    head = build(Experiment, {"name": default_name, **rest}, where)
    return replace(head, cases=cases, expect=expect)


def _case(shared: Mapping[str, Any], override: Mapping[str, Any], where: str) -> Case:
    if not isinstance(override.get("name"), str):
        raise SpecError(f"{where}: expected a `name`, got {override.get('name')!r}")
    for key in override:
        if key not in ("name", *SECTIONS, *LISTS):
            raise SpecError(f"{where}: unknown key {key!r}; expected some of {sorted(['name', *SECTIONS, *LISTS])}")
    sections = {
        key: build(kind, {**shared.get(key, {}), **override.get(key, {})}, f"{where}.{key}")
        for key, kind in SECTIONS.items()
    }
    lists = {key: override.get(key, shared.get(key, [])) for key in LISTS}
    attacks = tuple(_named(ATTACKS, a, f"{where}.attack[{i}]") for i, a in enumerate(lists["attack"]))
    defences = tuple(_defence(d, f"{where}.defence[{i}]") for i, d in enumerate(lists["defence"]))
    threats = tuple(_threat(t, f"{where}.threat[{i}]") for i, t in enumerate(lists["threat"]))
    case = Case(
        override["name"], **sections, attacks=attacks, defences=defences or (NoDefence(),), threats=threats or Case.threats
    )
    if case.watch.round >= case.federation.rounds:
        raise SpecError(
            f"{where}.watch.round: expected less than federation.rounds = {case.federation.rounds}, "
            f"got {case.watch.round}"
        )
    return case


def _named(registry: Mapping[str, type[Any]], table: Mapping[str, Any] | str, where: str) -> Any:
    rest = {"name": table} if isinstance(table, str) else dict(table)
    name = rest.pop("name", None)
    if name not in registry:
        raise SpecError(f"{where}: expected `name` to be one of {sorted(registry)}, got {name!r}")
    return build(registry[name], rest, where)


def _defence(table: Any, where: str) -> Defence:
    """One defence, or a chain given as `{ chain = [ … ] }`."""
    if isinstance(table, Mapping) and set(table) == {"chain"}:
        return chain(*(_defence(part, f"{where}.chain[{i}]") for i, part in enumerate(table["chain"])))
    defence: Defence = _named(DEFENCES, table, where)
    return defence


def _threat(table: Any, where: str) -> ThreatModel:
    """A named threat model, or one of the user's own: `{ name = …, facts = […] }`."""
    if isinstance(table, str) or (isinstance(table, Mapping) and "facts" not in table):
        name = table if isinstance(table, str) else table.get("name")
        if name not in THREATS:
            raise SpecError(f"{where}: expected one of {sorted(THREATS)}, or a table with `facts`, got {name!r}")
        return THREATS[str(name)]
    facts = {fact.value: fact for fact in Fact}
    for fact in table["facts"]:
        if fact not in facts:
            raise SpecError(f"{where}.facts: expected some of {sorted(facts)}, got {fact!r}")
    granted = frozenset(facts[fact] for fact in table["facts"])
    for key in table:
        if key not in ("name", "facts", "about"):
            raise SpecError(f"{where}: unknown key {key!r}; expected some of ['about', 'facts', 'name']")
    return ThreatModel(str(table.get("name", "custom")), granted, str(table.get("about", "")))
