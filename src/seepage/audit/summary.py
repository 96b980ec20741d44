"""From rows to the table that a person reads: one line per attack, defence and threat model, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
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
    "KEYS",
    "MEASURES",
    "Comparison",
    "Index",
    "Kind",
    "Line",
    "answers",
    "compare",
    "count_causes",
    "over_clients",
    "read_index",
    "read_rows",
    "summarise",
]

AS_CAPTURED = "as captured"
"""In the place of a defence's name: what a client did to its update shows in it at most."""

KEYS = ["case", "attack", "attack_settings", "defence", "defence_settings", "threat"]
"""The columns of rows that make a line."""

Kind: TypeAlias = Literal["image", "row", "text", "token", "feature", "model", "attribute", "source", "class", "label"]
"""What an attack answers: images, rows of a table, texts, which tokens these have, what enters a layer of the network,
a client's own model, one column of its table, whose a record is, what classes look like, or labels and
nothing else."""

MEASURES: dict[Kind, str] = {
    "image": "psnr",
    "row": "exact_match",
    "text": "token_accuracy",
    "token": "token_bag",
    "feature": "feature_error",
    "model": "relative_error",
    "attribute": "attribute_accuracy",
    "source": "source_accuracy",
    "class": "class_ssim",
    "label": "label_accuracy",
}
"""The metric that every answer of a kind has. Who answers inputs names labels too, so the first kind counts."""


@dataclass(frozen=True)
class Index:
    """What a folder of results is about."""

    name: str
    about: str
    threshold: float
    expect: tuple[Expectation, ...]
    trials: tuple[str, ...]


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
        accuracy: of the global model after the last round under this defence; NaN when not measured.
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


def read_index(folder: Path) -> Index:
    """What `run` wrote about the experiment that the folder holds.

    Raises:
        SpecError: when there is none.
    """
    path = folder / "experiment.json"
    if not path.exists():
        raise SpecError(f"{folder}: expected a folder of results, got none; run `seepage audit --out {folder}`")
    try:
        index: dict[str, Any] = parse_json(read_text(path), "json")
        expect = tuple(
            build(Expectation, {k: v for k, v in e.items() if k != "kind"}, str(path)) for e in index["expect"]
        )
        for trial in index["trials"]:
            if Path(trial).name != trial:  # it becomes the name of files
                raise SpecError(f"{path}: trials: expected names of files in the folder, got {trial!r}; run it again")
        return Index(index["name"], index["about"], index["threshold"], expect, tuple(index["trials"]))
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
        accuracy = float(same["value"].iloc[-1]) if len(same) else math.nan
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


def compare(rows: pd.DataFrame, expectations: tuple[Expectation, ...]) -> list[Comparison]:
    """Ours beside the paper's, for every expectation."""
    comparisons = []
    for expected in expectations:
        part = rows[(rows["case"] == expected.case) & (rows["metric"] == expected.metric)]
        for column in ("attack", "defence"):
            if getattr(expected, column) is not None:
                part = part[part[column] == getattr(expected, column)]
        if expected.metric == "accuracy" and len(part):  # one row for each round, of which papers report the last
            part = part[part["item"] == part["item"].iloc[-1]]
        if part.empty or part["value"].isna().all():
            comparisons.append(Comparison(expected, None, "not measured"))
            continue
        ours = over_clients(part, expected.metric)
        comparisons.append(Comparison(expected, ours, _verdict(expected, ours)))
    return comparisons


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
