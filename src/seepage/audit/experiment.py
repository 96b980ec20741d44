"""An experiment: one TOML file, resolved to trials that are plain values with a digest.

The file has the tables `data`, `clients`, `model`, `recipe`, `federation` and `watch`, lists of `attack`, `defence` and
`threat`, and cases that change some of it; every attack meets every defence under every threat model in every case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

from seepage.attacks import ATTACKS, Attack
from seepage.audit.own_code import imported
from seepage.audit.values import SpecError, build, digest, inside, laid_over_preset, plain, read_table
from seepage.data import DATASETS
from seepage.defences import DEFENCES, Defence, NoDefence, chain
from seepage.metrics.registry import PaperMetrics
from seepage.metrics.tags import Tagging
from seepage.models import MODELS, options
from seepage.recipe import Recipe
from seepage.rounds import Federation
from seepage.spelling import meant
from seepage.task import ModuleError
from seepage.threat import THREATS, ThreatModel

__all__ = [
    "Case",
    "Clients",
    "Data",
    "Expectation",
    "Experiment",
    "Model",
    "Pretraining",
    "Trial",
    "Watch",
    "attack_label",
    "parse",
    "read_experiment",
]


@dataclass(frozen=True)
class Data:
    """Which examples the federation is about.

    Args:
        name: a data set that `seepage list data` names, or `package.module:function` that returns a `Dataset`.
        split: the half that the clients hold; the other one is held out.
        raw: feed values as they are instead of normalised ones.
        size: height and width to which images are resized; as they are when absent.
        public: how many of the held-out examples a threat model may grant as public data; they are the last ones, and
            accuracy is measured on the others.
        dtype: precision of the examples and of the model, and with them of all training and every message.
        sensitive: for tables, the column that is to stay secret where a threat model grants the others.
        missing: further columns that such a threat model does not grant either.
    """

    name: str = "fashion-mnist"
    split: Literal["train", "test"] = "train"
    raw: bool = False
    size: int | None = None
    public: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    sensitive: str | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f"expected `size` of at least 1, got {self.size}")
        if self.public < 0:
            raise ValueError(f"expected `public` of at least 0, got {self.public}")


@dataclass(frozen=True)
class Clients:
    """Who holds what.

    Args:
        count: number of clients.
        examples: of each; `None` is all that the partition gives.
        partition: `"stored"` (one after another as stored), `"distinct"` (likewise, but each client passes over
            examples of a label that it already has), `"iid"`, `"dirichlet"` or `"owner"` (by writer, person, …).
        alpha: of the Dirichlet partition.
        skip: leave out that many examples at the beginning of the split.
        fewer: `examples` is the most that a client has: whom the partition (`"owner"` or `"dirichlet"`) gives fewer
            keeps those. Otherwise owners with fewer are passed over.
    """

    count: int = 4
    examples: int | None = None
    partition: Literal["stored", "distinct", "iid", "dirichlet", "owner"] = "stored"
    alpha: float = 0.5
    skip: int = 0
    fewer: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"expected `count` of at least 1, got {self.count}")
        if self.examples is not None and self.examples < 1:
            raise ValueError(f"expected `examples` of at least 1, or none for all there are, got {self.examples}")
        if self.alpha <= 0:
            raise ValueError(f"expected `alpha` above 0, got {self.alpha}")
        if self.skip < 0:
            raise ValueError(f"expected `skip` of at least 0, got {self.skip}")
        if self.partition == "distinct" and self.examples is None:
            raise ValueError("expected `examples`, the number per client, beside `partition = 'distinct'`, got none")
        if self.fewer and (self.examples is None or self.partition not in ("owner", "dirichlet")):
            raise ValueError(
                "expected `examples`, the most per client, and `partition = 'owner'` or 'dirichlet' beside "
                f"`fewer = true`, got {self.examples} and {self.partition!r}"
            )


@dataclass(frozen=True)
class Pretraining:
    """Training of the global model before any round, on examples of the half that the clients do not hold.

    SGD with momentum 0.9 (Nesterov), weight decay and a learning rate that falls as half a cosine.

    Args:
        epochs: passes over the examples; 0 leaves the model as it was drawn.
        share: of the held-out examples that are trained on, the first ones; accuracy is measured on the others.
        lr: first learning rate.
        batch_size: examples per step.
        weight_decay: of all parameters.
        augment: images are mirrored and shifted at random, by up to an eighth of their size.
    """

    epochs: int = 0
    share: float = 0.9
    lr: float = 0.1
    batch_size: int = 128
    weight_decay: float = 5e-4
    augment: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError(f"expected `epochs` of at least 0, got {self.epochs}")
        if not 0 < self.share < 1:
            raise ValueError(f"expected `share` between 0 and 1, got {self.share}")
        if self.lr <= 0 or self.batch_size < 1 or self.weight_decay < 0:
            raise ValueError(
                "expected `lr` above 0, `batch_size` of at least 1 and `weight_decay` of at least 0, "
                f"got {self.lr}, {self.batch_size} and {self.weight_decay}"
            )


@dataclass(frozen=True)
class Model:
    """What is trained.

    Args:
        name: a network that `seepage list models` names, or `package.module:function` that returns an `nn.Module`.
        options: keyword arguments for it.
        pretraining: what happens to it before the federation begins.
    """

    name: str = "cnn-femnist"
    options: dict[str, Any] = field(default_factory=dict)
    pretraining: Pretraining = field(default_factory=Pretraining)


@dataclass(frozen=True)
class Watch:
    """What is attacked.

    Args:
        round: the round whose messages are attacked.
        clients: how many of those that answered in it, the first ones; `None` is all.
        together: most clients in one trial, that is in one program.
        since: the first round whose messages are seen too; `None` is `round` itself. A client that did not answer in
            each of them is seen in those in which it did.
        every: of the rounds since then every that many are seen, beginning with the first.
    """

    round: int = 0
    clients: int | None = None
    together: int = 8
    since: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError(f"expected `round` of at least 0, got {self.round}")
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"expected `clients` of at least 1, or none for all of them, got {self.clients}")
        if self.together < 1:
            raise ValueError(f"expected `together` of at least 1, got {self.together}")
        if self.since is not None and not 0 <= self.since <= self.round:
            raise ValueError(f"expected `since` from 0 to `round` = {self.round}, or none for it, got {self.since}")
        if self.every < 1 or (self.round - self.rounds.start) % self.every:
            raise ValueError(
                "expected `every` of at least 1, in whole steps of which `round` is reached from `since`, "
                f"got {self.every} from {self.rounds.start} to {self.round}"
            )

    @property
    def rounds(self) -> range:
        """Numbers of the rounds that are seen."""
        return range(self.round if self.since is None else self.since, self.round + 1, max(self.every, 1))


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
        attack: name or label of the attack; any when absent.
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
    labels: tuple[str, ...] = ()  # what each attack is called in tables
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
    metrics: tuple[PaperMetrics, ...] = ()
    label: str = ""  # what the attack is called in tables, where several differ in their knobs alone
    tagger: Tagging | None = None

    @cached_property
    def digest(self) -> str:
        """Name of this trial: the same for the same values, on every machine; what cannot change it is left out."""
        if self.attack is None or self.threat is None:  # learning does not depend on who looks
            unseen = replace(self.federation, visible="each", group=None)
            return _digest(replace(self, federation=unseen, watch=Watch(), threshold=0.0, metrics=(), tagger=None))
        return _digest(replace(self._as_far_as_watched, threat=replace(self.threat, about="")))

    @cached_property
    def scene(self) -> str:
        """Digest of the part that decides what is sent, shared by all attacks on it."""
        public = replace(self.data, public=0, sensitive=None, missing=())
        watched = replace(self._as_far_as_watched, case="", data=public, threshold=0.0)
        return _digest(replace(watched, attack=None, threat=None, first=0, last=0, metrics=(), tagger=None))

    @property
    def messages(self) -> int:
        """How many a round brings: one of each client that is asked, or one of each group."""
        asked = self.federation.per_round or self.clients.count
        return asked // (self.federation.group or asked) if self.federation.visible == "aggregate" else asked

    @property
    def _as_far_as_watched(self) -> Trial:
        """Without later rounds, and without how the watched clients were dealt to trials."""
        rounds = replace(self.federation, rounds=self.watch.round + 1)
        seen = Watch(self.watch.round, since=self.watch.rounds.start, every=self.watch.every)
        return replace(self, federation=rounds, watch=seen)


def _digest(trial: Trial) -> str:
    """Of all its values; what was not asked for changes nothing, and leaves finished trials finished."""
    values = plain(trial)
    del values["label"]
    if trial.federation.group is None:
        del values["federation"]["group"]
    if not trial.federation.together:
        del values["federation"]["together"]
    if trial.watch.every == 1:
        del values["watch"]["every"]
    if not trial.metrics:
        del values["metrics"]
    if trial.tagger is None:
        del values["tagger"]
    if not trial.clients.fewer:
        del values["clients"]["fewer"]
    if trial.data.dtype == "float32":
        del values["data"]["dtype"]
    if trial.data.sensitive is None:
        del values["data"]["sensitive"]
    if not trial.data.missing:
        del values["data"]["missing"]
    return digest(values)


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
        metrics: papers whose own metrics are measured beside the usual ones.
        tagger: what tells which tags images have, for the metric `tag_jaccard`; without one it is not measured.
        where: the file that it was read from, for what is found wrong later.
    """

    name: str
    about: str = ""
    cases: tuple[Case, ...] = ()
    seed: int = 0
    accuracy: bool = False
    threshold: float = 20.0
    expect: tuple[Expectation, ...] = ()
    metrics: tuple[PaperMetrics, ...] = ()
    tagger: Tagging | None = None
    where: str = ""

    @contextmanager
    def placed(self, case: str) -> Iterator[None]:
        """What is found wrong with a case inside says in which file, and in which of several cases."""
        try:
            yield
        except (SpecError, ModuleError) as error:
            names = [one.name for one in self.cases]
            entry = inside(self.where, f"case[{names.index(case)}]") if len(names) > 1 else self.where
            raise type(error)(inside(entry, str(error)) if entry else str(error)) from error

    def dealt(self, together: int) -> Experiment:
        """The same with at most `together` clients in one trial, whatever its cases say.

        Trials name the clients they attack and nothing else of this, so that those of twenty clients which are finished
        are the first of a hundred dealt by twenties.

        Example:
            >>> whole = Experiment("mine", cases=(Case("all", clients=Clients(count=5), attacks=(), labels=()),))
            >>> whole.dealt(2).cases[0].watch.together
            2
        """
        return replace(self, cases=tuple(replace(c, watch=replace(c.watch, together=together)) for c in self.cases))

    def trials(self, limit: int | None = None) -> Iterator[Trial]:
        """Every trial in order.

        Args:
            limit: watch at most that many clients.
        """
        for case in self.cases:
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
                metrics=tuple(sorted(set(self.metrics))),
                tagger=self.tagger,
            )
            watched = min(x for x in (base.messages, case.watch.clients, limit) if x is not None)
            for defence in case.defences:
                for attack, label in zip(case.attacks, case.labels, strict=True):
                    for threat in case.threats:
                        for first in range(0, watched, case.watch.together):
                            last = min(first + case.watch.together, watched)
                            group = replace(base, threat=threat, first=first, last=last)
                            yield replace(group, defence=defence, attack=attack, label=label)
                if self.accuracy:
                    yield replace(base, defence=defence)


def read_experiment(path: Path, *, seed: int | None = None) -> Experiment:
    """Read an experiment from a TOML file.

    Raises:
        SpecError: naming the file, the key and what was expected.
    """
    experiment = parse(read_table(path), str(path), default_name=path.stem)
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
    rest.pop("tune", None)  # which `seepage tune` reads
    overrides = _list(rest.pop("case", None), inside(where, "case"))
    expect = tuple(build(Expectation, e, at) for e, at in _list(rest.pop("expect", None), inside(where, "expect")))
    known = ("name", "about", "seed", "accuracy", "threshold", "metrics", "tagger")
    for key in rest:
        if key not in known:
            choices = sorted([*known, *SECTIONS, *LISTS, "case", "expect"])
            raise SpecError(f"{where}: unknown key {key!r}; expected some of {choices}{meant(key, choices)}")
    cases = tuple(_case(shared, o, at) for o, at in overrides or [({"name": "all"}, where)])
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise SpecError(f"{where}: case: expected different names, got {names}")
    for expectation in expect:
        if expectation.case not in names:
            raise SpecError(f"{where}: expect.case: expected one of {names}, got {expectation.case!r}")
    head = build(Experiment, {"name": default_name, **rest}, where)
    return replace(head, cases=cases, expect=expect, where=where)


def _list(value: Any, where: str) -> list[tuple[Any, str]]:
    """The entries of a list, each with its place; what is absent has none."""
    if value is None:
        return []
    if not isinstance(value, list):
        key = where.split(": ")[-1].split(".")[-1]
        raise SpecError(f"{where}: expected a list, written `[[{key}]]` or `{key} = [ … ]`, got {value!r}")
    return [(entry, f"{where}[{i}]") for i, entry in enumerate(value)]


def _case(shared: Mapping[str, Any], override: Mapping[str, Any], where: str) -> Case:
    if not isinstance(override, Mapping):
        raise SpecError(f"{where}: expected a table, got {override!r}")
    if not isinstance(override.get("name"), str):
        raise SpecError(f"{where}: expected a `name`, got {override.get('name')!r}")
    for key in override:
        known = sorted(["name", *SECTIONS, *LISTS])
        if key not in known:
            raise SpecError(f"{where}: unknown key {key!r}; expected some of {known}{meant(key, known)}")
    sections = {
        key: _section(kind, shared.get(key), override.get(key), inside(where, key)) for key, kind in SECTIONS.items()
    }
    lists = {key: _list(override.get(key, shared.get(key)), inside(where, key)) for key in LISTS}
    attacks, labels = _attacks(lists["attack"])
    defences = tuple(_defence(one, at) for table, at in lists["defence"] for one in _strengths(table, DEFENCES, at))
    threats = tuple(_threat(threat, at) for threat, at in lists["threat"])
    case = Case(
        override["name"],
        **sections,
        attacks=attacks,
        labels=labels,
        defences=defences or (NoDefence(),),
        threats=threats or Case.threats,
    )
    _check(case, where)
    return case


def _section(kind: type[Any], shared: Any, override: Any, where: str) -> Any:
    whole: dict[str, Any] = {}
    for table in (shared, override):
        if table is not None and not isinstance(table, Mapping):
            raise SpecError(f"{where}: expected a table, got {table!r}")
        whole |= table or {}
    return build(kind, whole, where)


def _check(case: Case, where: str) -> None:
    """What no section can know alone; the user's own model and data are imported only when they are used."""
    for key, name, known in (("data", case.data.name, DATASETS), ("model", case.model.name, MODELS)):
        if ":" not in name and name not in known:
            raise SpecError(
                f"{inside(where, key)}.name: expected one of {sorted(known)}, "
                f"or your own `package.module:function`, got {name!r}{meant(name, known)}"
            )
    if ":" not in case.model.name:
        known_options = sorted(options(case.model.name))
        for key in case.model.options:
            if key not in known_options:
                raise SpecError(
                    f"{inside(where, 'model')}.options: unknown key {key!r}; "
                    f"expected some of {known_options}{meant(key, known_options)}"
                )
    if case.data.missing and (case.data.sensitive is None or case.data.sensitive in case.data.missing):
        raise SpecError(
            f"{inside(where, 'data')}.missing: expected columns beside the `sensitive` one, "
            f"got {list(case.data.missing)} beside {case.data.sensitive!r}"
        )
    if case.watch.round >= case.federation.rounds:
        raise SpecError(
            f"{inside(where, 'watch')}.round: expected less than federation.rounds = {case.federation.rounds}, "
            f"got {case.watch.round}"
        )
    if (case.federation.per_round or 0) > case.clients.count:
        raise SpecError(
            f"{inside(where, 'federation')}.per_round: expected at most clients.count = {case.clients.count}, "
            f"got {case.federation.per_round}"
        )


def _named(registry: Mapping[str, type[Any]], table: Mapping[str, Any] | str, where: str) -> Any:
    """One attack or defence; the knobs beside `preset` are laid over those of the preset."""
    if not isinstance(table, Mapping | str):
        raise SpecError(f"{where}: expected a table or a name, got {table!r}")
    rest = {"name": table} if isinstance(table, str) else dict(table)
    kind = _kind(registry, rest.pop("name", None), where)
    return build(kind, laid_over_preset(kind, rest, where), where)


def _kind(registry: Mapping[str, type[Any]], name: Any, where: str) -> type[Any]:
    """The class of an attack or a defence: one of the registry, or the user's own."""
    if isinstance(name, str) and ":" in name:
        kind = imported(name, f"{where}.name", "Class")
        if not isinstance(kind, type) or not is_dataclass(kind) or not isinstance(getattr(kind, "name", None), str):
            raise SpecError(f"{where}.name: expected {name} to be a frozen dataclass with a `name`, got {kind!r}")
        return kind
    if not isinstance(name, str) or name not in registry:
        raise SpecError(
            f"{where}: expected `name` to be one of {sorted(registry)}, "
            f"or your own `package.module:Class`, got {name!r}{meant(name, registry)}"
        )
    return registry[name]


def _attacks(entries: list[tuple[Any, str]]) -> tuple[tuple[Attack, ...], tuple[str, ...]]:
    """The attacks and what tables call them: their `label`, or else their name."""
    attacks, labels = [], []
    several = [(one, at) for table, at in entries for one in _strengths(table, ATTACKS, at)]
    for table, where in several:
        rest = dict(table) if isinstance(table, Mapping) else table
        label = rest.pop("label", None) if isinstance(rest, dict) else None
        if not isinstance(label, str | None):
            raise SpecError(f"{where}.label: expected a text, got {label!r}")
        attack: Attack = _named(ATTACKS, rest, where)
        attacks.append(attack)
        labels.append(label or attack.name)
    return tuple(attacks), tuple(labels)


def attack_label(entry: Any) -> str:
    """What tables call an attack, from its entry in a file.

    Example:
        >>> attack_label({"name": "dlg", "steps": 5}), attack_label({"name": "dlg", "label": "mine"})
        ('dlg', 'mine')
    """
    return _attacks([(entry, "attack")])[1][0]


def _strengths(table: Any, registry: Mapping[str, type[Any]], where: str) -> list[Any]:
    """The table once for every value of a knob that is a list of them, or for every combination of several."""
    if not isinstance(table, Mapping):
        return [table]
    hints = get_type_hints(_kind(registry, table["name"], where)) if "name" in table else {}

    def values(key: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            return [value]
        if key == "chain":
            parts = (_strengths(part, registry, at) for part, at in _list(value, f"{where}.chain"))
            return [list(chosen) for chosen in product(*parts)]
        return value if key in hints and get_origin(hints[key]) is not tuple else [value]

    choices = product(*(values(key, value) for key, value in table.items()))
    return [dict(zip(table, chosen, strict=True)) for chosen in choices]


def _defence(table: Any, where: str) -> Defence:
    """One defence, or a chain given as `{ chain = [ … ] }`."""
    if isinstance(table, Mapping) and set(table) == {"chain"}:
        return chain(*(_defence(part, at) for part, at in _list(table["chain"], f"{where}.chain")))
    defence: Defence = _named(DEFENCES, table, where)
    return defence


def _threat(table: Any, where: str) -> ThreatModel:
    """A named threat model, or one of the user's own: `{ name = …, facts = […] }`."""
    if not isinstance(table, Mapping | str):
        raise SpecError(f"{where}: expected a table or a name, got {table!r}")
    if isinstance(table, str) or "facts" not in table:
        name = table if isinstance(table, str) else table.get("name")
        if not isinstance(name, str) or name not in THREATS:
            raise SpecError(
                f"{where}: expected one of {sorted(THREATS)}, or a table with `facts`, "
                f"got {name!r}{meant(name, THREATS)}"
            )
        return THREATS[name]
    return build(ThreatModel, {"name": "custom", **table}, where)
