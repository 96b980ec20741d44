"""From rows to the table that a person reads: one line per attack, defence and threat model, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd

from seepage.audit.diagnosis import Cause, read_causes
from seepage.audit.experiment import Expectation
from seepage.audit.table import Table
from seepage.audit.values import SpecError, build
from seepage.metrics.intervals import Interval, mean_interval
from seepage.metrics.registry import METRICS
from seepage.untrusted import Refused, parse_json, read_text

__all__ = [
    "AS_CAPTURED",
    "HEADLINES",
    "KEYS",
    "MEASURES",
    "Comparison",
    "Index",
    "Kind",
    "Line",
    "Planned",
    "Progress",
    "answers",
    "compare",
    "count_causes",
    "means",
    "over_clients",
    "pool_seeds",
    "read_index",
    "read_rows",
    "summarise",
]

AS_CAPTURED = "as captured"
"""In the place of a defence's name: what a client did to its update shows in it at most."""

KEYS = ["case", "attack", "attack_settings", "defence", "defence_settings", "threat"]
"""The columns of rows that make a line."""

Kind: TypeAlias = Literal[
    "image", "row", "array", "text", "token", "feature", "model", "attribute", "source", "class", "label"
]
"""What an attack answers: images, rows of a table, other examples made of numbers, texts, which tokens these have, what
enters a layer of the network, a client's own model, one column of its table, whose a record is, what classes look like,
or labels and nothing else."""

MEASURES: dict[Kind, str] = {
    "image": "psnr",
    "row": "cell_accuracy",
    "array": "exact_match",
    "text": "token_accuracy",
    "token": "token_bag",
    "feature": "feature_error",
    "model": "relative_error",
    "attribute": "attribute_accuracy",
    "source": "source_accuracy",
    "class": "class_ssim",
    "label": "label_accuracy",
}
"""The metric that every answer of a kind has. Who answers inputs names labels too, and rows have `exact_match` beside
their cells, so the first kind counts."""

HEADLINES: dict[Kind, str] = {**MEASURES, "image": "recovered"}
"""The metric by which a kind is told first: the share that came back, and an error of features and models."""


@dataclass(frozen=True)
class Planned:
    """So many trials in a row are of one attack, or of learning, on one defence in one case."""

    case: str
    attack: str
    defence: str
    trials: int


@dataclass(frozen=True)
class Progress:
    """How many of the trials that were planned are finished.

    Example:
        >>> print(Progress(3, 10)), Progress(3, 10).partial
        3 of 10 trials
        (None, True)
    """

    finished: int
    planned: int

    @property
    def partial(self) -> bool:
        """Whether there are some, and more to come."""
        return 0 < self.finished < self.planned

    def __str__(self) -> str:
        return f"{self.finished} of {self.planned} trial{'' if self.planned == 1 else 's'}"


@dataclass(frozen=True)
class Index:
    """What a folder of results is about.

    Args:
        name: of the experiment.
        about: one sentence.
        threshold: PSNR in dB above which an image counts as recovered.
        expect: numbers of the paper.
        trials: digests of all trials, in order.
        plan: what these are, in the same order; empty where an earlier version did not say.
    """

    name: str
    about: str
    threshold: float
    expect: tuple[Expectation, ...]
    trials: tuple[str, ...]
    plan: tuple[Planned, ...] = ()

    def progress(self, rows: pd.DataFrame, of: Callable[[Planned], bool]) -> Progress:
        """How many of some trials are finished; where it is not known what was planned, 0 of 0."""
        ends = list(accumulate((part.trials for part in self.plan), initial=0))
        meant = {
            trial
            for part, start, stop in zip(self.plan, ends, ends[1:], strict=False)
            if of(part)
            for trial in self.trials[start:stop]
        }
        return Progress(len(meant.intersection(rows["trial"].unique())), len(meant))

    def case_progress(self, rows: pd.DataFrame) -> dict[str, Progress]:
        """The same for every case, learning included."""

        def within(case: str) -> Callable[[Planned], bool]:
            return lambda part: part.case == case

        return {case: self.progress(rows, within(case)) for case in dict.fromkeys(part.case for part in self.plan)}


@dataclass(frozen=True)
class Line:
    """One attack on one defence under one threat model.

    Args:
        case: name of the case.
        attack: name.
        attack_settings: its knobs.
        defence: name.
        defence_settings: its knobs.
        threat: name.
        metrics: mean and interval of every metric over clients and items.
        accuracy: of the global model after the last round under this defence, mean over seeds; NaN when not measured.
        clients: attacked.
        failures: outcomes of trials that gave no numbers.
        causes: why data did not come back, with the number of clients whose data did not, most frequent first.
    """

    case: str
    attack: str
    attack_settings: str
    defence: str
    defence_settings: str
    threat: str
    metrics: dict[str, Interval]
    accuracy: float
    clients: int
    failures: tuple[str, ...]
    causes: dict[Cause, int] = field(default_factory=dict)

    @property
    def kind(self) -> Kind | None:
        """What the attack answers; `None` where it gave no number."""
        return next((kind for kind, metric in MEASURES.items() if metric in self.metrics), None)

    @property
    def unscored(self) -> bool:
        """Whether the attack answered, and there was no truth to hold the answer against."""
        return self.kind is None and bool(self.metrics)

    def mean(self, metric: str) -> float:
        """Mean of a metric; NaN when it was not measured."""
        return self.metrics[metric].mean if metric in self.metrics else math.nan


@dataclass(frozen=True)
class Comparison:
    """Our number beside the paper's."""

    expectation: Expectation
    ours: Interval | None
    verdict: str


def _what_is(folder: Path) -> str:
    if folder.is_file():
        return "a file"
    return "a folder without experiment.json" if folder.is_dir() else "nothing there"


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Every mean over clients with its 95 % interval, one row each: for spreadsheets, and for tables in papers.

    Args:
        rows: as `read_rows` gives them.
    """
    columns = [*KEYS, "metric", "n", "mean", "low", "high", "accuracy"]
    found = [
        [*(getattr(line, name) for name in KEYS), metric, of.n, of.mean, of.low, of.high, line.accuracy]
        for line in summarise(rows)
        for metric, of in line.metrics.items()
    ]
    return pd.DataFrame(found, columns=columns)


def read_index(folder: Path) -> Index:
    """What `run` wrote about the experiment that the folder holds.

    Raises:
        SpecError: when there is none.
    """
    path = folder / "experiment.json"
    if not path.exists():
        inside = next((parent for parent in folder.parents if (parent / "experiment.json").exists()), None)
        fix = f"name {inside}" if inside else f"check the path, or make one with `seepage audit --out {folder}`"
        raise SpecError(f"{folder}: expected a folder of results, got {_what_is(folder)}; {fix}")
    try:
        index: dict[str, Any] = parse_json(read_text(path), "json")
        expect = tuple(
            build(Expectation, {k: v for k, v in e.items() if k != "kind"}, str(path)) for e in index["expect"]
        )
        for trial in index["trials"]:
            if Path(trial).name != trial:  # it becomes the name of files
                raise SpecError(f"{path}: trials: expected names of files in the folder, got {trial!r}; run it again")
        plan = tuple(build(Planned, part, f"{path}: plan[{i}]") for i, part in enumerate(index.get("plan", [])))
        if plan and sum(part.trials for part in plan) != len(index["trials"]):
            raise SpecError(f"{path}: plan: expected as many trials as `trials` names, got others; run it again")
        return Index(index["name"], index["about"], index["threshold"], expect, tuple(index["trials"]), plan)
    except (Refused, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{path}: expected what `seepage audit` writes, got: {error}; run the audit again") from error


def summarise(rows: pd.DataFrame) -> list[Line]:
    """One line per case, attack, defence and threat model, in order of appearance."""
    lines = []
    learning = rows[rows["metric"] == "accuracy"]
    attacked = rows[rows["attack"] != "none"]
    for names, part in attacked.groupby(KEYS, sort=False, dropna=False):
        same = learning[
            (learning["case"] == names[0])
            & (learning["defence"] == names[3])
            & (learning["defence_settings"] == names[4])
        ]
        measured = part[part["metric"] != "none"]
        metrics = {
            str(metric): over_clients(group, str(metric)) for metric, group in measured.groupby("metric", sort=False)
        }
        failures = tuple(part.loc[part["metric"] == "none", "outcome"])
        accuracy = float(same.groupby("seed")["value"].last().mean()) if len(same) else math.nan
        case, attack, attack_settings, defence, defence_settings, threat = map(str, names)
        clients = measured["client"].nunique()
        lines.append(
            Line(
                case,
                attack,
                attack_settings,
                defence,
                defence_settings,
                threat,
                metrics,
                accuracy,
                clients,
                failures,
                count_causes(measured),
            )
        )
    return lines


def answers(rows: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """The rows of a kind's own metric, of those attacks whose answer is of that kind.

    Example:
        >>> line = dict.fromkeys(KEYS, "a")
        >>> rows = pd.DataFrame([{**line, "metric": name} for name in ("psnr", "label_accuracy")])
        >>> len(answers(rows, "image")), len(answers(rows, "label"))
        (1, 0)
    """
    measured = rows[(rows["attack"] != "none") & (rows["metric"] == MEASURES[kind])]
    if measured.empty:  # as most kinds are, and looking for those that come before them takes long
        return measured
    before = list(MEASURES.values())[: list(MEASURES).index(kind)]
    others = pd.MultiIndex.from_frame(rows.loc[rows["metric"].isin(before), KEYS].drop_duplicates())
    return measured[~pd.MultiIndex.from_frame(measured[KEYS]).isin(others)]


def count_causes(rows: pd.DataFrame) -> dict[Cause, int]:
    """Why data did not come back: each cause with the number of attacked updates it applies to, most frequent first.

    Example:
        >>> updates = {"trial": "t", "client": ["a", "a", "b"], "diagnosis": ["stuck", "stuck", "labels-wrong+stuck"]}
        >>> {str(cause): count for cause, count in count_causes(pd.DataFrame(updates)).items()}
        {'stuck': 2, 'labels-wrong': 1}
    """
    if "diagnosis" not in rows:
        return {}
    updates = rows.drop_duplicates(["trial", "client"])["diagnosis"]
    counts = Counter(cause for text in updates for cause in read_causes(str(text)) if cause is not Cause.RECOVERED)
    order = list(Cause)  # among equals, what explains most
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], order.index(pair[0]))))


def over_clients(rows: pd.DataFrame, metric: str, unit: tuple[str, ...] = ("client",)) -> Interval:
    """Mean and interval of one metric of one cell of a table.

    Images of one client share a network and an update: the client is the unit of the interval. With a single client its
    images are all there is.

    Args:
        rows: of that metric.
        metric: by name.
        unit: the columns that tell clients apart.
    """
    means = rows.groupby(list(unit), sort=False)["value"].mean()
    share = metric in METRICS and METRICS[metric].unit == "share"
    return mean_interval(means if len(means) > 1 else rows["value"], share=share)


def compare(rows: pd.DataFrame, index: Index) -> list[Comparison]:
    """Ours beside the paper's, for every expectation; of what is not finished it is said how far it is."""
    comparisons = []
    for expected in index.expect:
        part = rows[(rows["case"] == expected.case) & (rows["metric"] == expected.metric)]
        for column in ("attack", "defence"):
            if getattr(expected, column) is not None:
                part = part[part[column] == getattr(expected, column)]
        if expected.metric == "accuracy" and len(part):  # one row for each round, of which papers report the last
            part = part[part["item"] == part["item"].iloc[-1]]
        if part.empty or part["value"].isna().all():
            comparisons.append(Comparison(expected, None, "not measured"))
            continue
        ours, progress = over_clients(part, expected.metric), index.progress(rows, _meant_by(expected))
        verdict = _verdict(expected, ours)
        if progress.partial:
            verdict = f"{verdict}, so far ({progress})" if verdict else f"so far ({progress})"
        comparisons.append(Comparison(expected, ours, verdict))
    return comparisons


def _meant_by(expected: Expectation) -> Callable[[Planned], bool]:
    learning = expected.metric == "accuracy"

    def meant(part: Planned) -> bool:
        attacked = (part.attack == "none") == learning if expected.attack is None else part.attack == expected.attack
        return part.case == expected.case and attacked and expected.defence in (None, part.defence)

    return meant


def _verdict(expected: Expectation, ours: Interval) -> str:
    words = []
    if expected.reported is not None:
        gap = ours.mean - expected.reported
        words.append("as reported" if abs(gap) <= expected.tolerance else f"{gap:+.3g} against the paper")
    if expected.at_least is not None:
        met = ours.mean >= expected.at_least
        words.append("target met" if met else f"target of {expected.at_least:g} missed")
    return ", ".join(words)


def read_rows(folder: Path) -> tuple[Index, pd.DataFrame, Table]:
    """Index, rows and table of a folder of results."""
    index = read_index(folder)
    table = Table(folder)
    return index, table.read(index.trials), table


def pool_seeds(folders: Sequence[Path]) -> tuple[Index, pd.DataFrame]:
    """Index and rows of one experiment that was run with several seeds, each in a folder, as one larger run.

    A client of one seed is another client than that of the same name elsewhere, since its data and the model that it
    was sent were drawn anew. Clients of one seed share that model, which the interval over all of them does not know.

    Raises:
        SpecError: when the folders hold different experiments, or the same seed twice.
    """
    found = [read_rows(folder)[:2] for folder in folders]
    indices, tables = [index for index, _ in found], [rows for _, rows in found]
    first = indices[0]
    for folder, index in zip(folders[1:], indices[1:], strict=True):
        if index.name != first.name:
            raise SpecError(f"{folder}: expected {first.name!r} as in {folders[0]}, got {index.name!r}; leave it out")
    trials = tuple(trial for index in indices for trial in index.trials)
    seeds = [seed for rows in tables for seed in rows["seed"].unique()]
    if len(set(trials)) < len(trials) or len(set(seeds)) < len(seeds):
        named = " and ".join(map(str, folders))
        raise SpecError(f"{named}: expected another seed in each, got one twice; name each once, or run with --seed")
    plan = tuple(part for index in indices for part in index.plan) if all(index.plan for index in indices) else ()
    rows = pd.concat(tables, ignore_index=True)
    rows["client"] = rows["client"].astype(str) + ", seed " + rows["seed"].astype(str)
    return replace(first, trials=trials, plan=plan), rows
