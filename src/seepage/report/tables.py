"""The table of numbers: one line per attack, defence and threat model, beside what no leak scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from seepage.audit.summary import Line
from seepage.metrics.baselines import BASELINES
from seepage.metrics.intervals import Interval
from seepage.metrics.registry import METRICS
from seepage.report import words

__all__ = [
    "KEYS",
    "CaseLines",
    "Cell",
    "Column",
    "NumberTable",
    "image_table",
    "key",
    "names",
    "numbers",
    "prior",
    "row_table",
]

KEYS = ["case", "attack", "attack_settings", "defence", "defence_settings", "threat"]
"""The columns of rows that make a line."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its head, and one sentence for the legend."""

    head: str
    about: str


@dataclass(frozen=True)
class Cell:
    """A number, what stands small under it, and whether it is to catch the eye."""

    text: str
    small: str = ""
    strong: bool = False


@dataclass(frozen=True)
class CaseLines:
    """The lines of one case, with its data and model."""

    name: str
    setting: str
    lines: list[tuple[Line, list[Cell]]]


@dataclass(frozen=True)
class NumberTable:
    """All lines about one kind of data."""

    title: str
    columns: list[Column]
    cases: list[CaseLines]


def key(line: Line) -> tuple[str, ...]:
    """What names a line, in the order of `KEYS`."""
    return line.case, line.attack, line.attack_settings, line.defence, line.defence_settings, line.threat


def names(rows: pd.DataFrame, column: str) -> list[str]:
    """The values of a column in order of appearance, without those that say "none".

    Example:
        >>> names(pd.DataFrame({"threat": ["none", "honest-server", "honest-server"]}), "threat")
        ['honest-server']
    """
    return [str(name) for name in rows[column].drop_duplicates() if str(name) not in ("none", "")]


def prior(line: Line, metric: str) -> float:
    """The best that any guess without a leak scores; NaN when none was measured."""
    measured = [m for b in BASELINES if not math.isnan(m := line.mean(f"{metric}_of_{b}"))]
    if not measured:
        return math.nan
    return max(measured) if METRICS[metric].higher_is_more_leakage else min(measured)


_BASELINE_NAMES = {"constant": "one colour", "public_mean": "public mean", "class_mean": "class mean"}


def _priors(line: Line, metric: str, digits: int) -> Cell:
    """What every guess without a leak scores, one after another."""
    means = {name: line.mean(f"{metric}_of_{b}") for b, name in _BASELINE_NAMES.items()}
    known = {name: mean for name, mean in means.items() if not math.isnan(mean)}
    if len(known) < 2:
        return Cell(words.decimal(next(iter(known.values()), math.nan), digits), next(iter(known), ""))
    best = prior(line, metric)
    listed = ", ".join(f"{name} {words.decimal(mean, digits)}" for name, mean in known.items())
    return Cell(words.decimal(best, digits), listed)


def _surely_above(interval: Interval | None, without_leak: float) -> bool:
    """Whether the whole interval lies above what no leak scores; what is not known is not."""
    return interval is not None and interval.low > without_leak


def _measured(line: Line, metric: str, digits: int) -> Cell:
    return Cell(words.decimal(line.mean(metric), digits), words.between(line.metrics.get(metric), digits))


_ACCURACY = Column(
    "Accuracy",
    "Share of held-out examples that the global model gets right after the last round with this defence; where a "
    "number is predicted, the share of its variance that the model explains (R²).",
)
_CLIENTS = Column("Clients", "How many clients were attacked; they are what the intervals are made of.")
_LABELS = Column("Labels found", METRICS["label_accuracy"].about)


def image_table(lines: Sequence[Line], rows: pd.DataFrame, threshold: float) -> NumberTable | None:
    """The lines about images; `None` without any.

    Args:
        lines: of all cases.
        rows: that they summarise.
        threshold: PSNR in dB above which an image counts as recovered.
    """
    tabular = _tabular_cases(lines)
    kept = [line for line in lines if line.case not in tabular]
    if not kept:
        return None
    counts = _counts(rows, threshold)
    with_lpips = any("lpips" in line.metrics for line in kept)
    columns = [
        Column("PSNR, dB", METRICS["psnr"].about),
        Column(
            "No leak scores, dB",
            f"PSNR of the best guess without any leak; the guesses are {_listed(BASELINES.values())}.",
        ),
        Column(
            "Leak above prior, dB",
            "PSNR minus what no leak scores: only what is above zero was leaked; bold where the whole interval is.",
        ),
        Column("SSIM", f"{METRICS['ssim'].about} Beside it what no leak scores."),
        *([Column("LPIPS", METRICS["lpips"].about)] if with_lpips else []),
        Column("Came back", f"Share of the images whose PSNR is above the threshold of {threshold:g} dB."),
        _LABELS,
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        found, total = counts.get(key(line), (0, 0))
        interval, without_leak = line.metrics.get("psnr"), prior(line, "psnr")
        above = line.mean("psnr") - without_leak
        ssim = prior(line, "ssim")
        beside = "" if math.isnan(ssim) else f"no leak {words.decimal(ssim, 2)}"
        return [
            _measured(line, "psnr", 1),
            _priors(line, "psnr", 1),
            Cell(words.decimal(above, 1, sign=True), strong=_surely_above(interval, without_leak)),
            Cell(words.decimal(line.mean("ssim"), 2), beside),
            *([_measured(line, "lpips", 2)] if with_lpips else []),
            Cell(words.percent(line.mean("recovered")), f"{found} of {total}" if total else "", strong=found > 0),
            Cell(words.percent(line.mean("label_accuracy"))),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return NumberTable("Images", columns, _by_case(kept, rows, cells))


def row_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines about rows of tables; `None` without any."""
    tabular = _tabular_cases(lines)
    kept = [line for line in lines if line.case in tabular]
    if not kept:
        return None
    columns = [
        Column("Features found", METRICS["exact_match"].about),
        Column("No leak finds", "The same share for the best guess without any leak, where public data were granted."),
        Column(
            "Leak above prior, points",
            "Features found minus what no leak finds, in points of a hundred; bold where the whole interval is above.",
        ),
        Column("Mean error", METRICS["mae"].about),
        Column("No leak errs", "Mean error of the best guess without any leak; a leak makes it smaller."),
        _LABELS,
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        without_leak = prior(line, "exact_match")
        above = 100 * (line.mean("exact_match") - without_leak)
        interval = line.metrics.get("exact_match")
        bounds = "" if interval is None else words.between(_hundredfold(interval))
        return [
            Cell(words.percent(line.mean("exact_match")), bounds),
            Cell(words.percent(without_leak)),
            Cell(words.decimal(above, 1, sign=True), strong=_surely_above(interval, without_leak)),
            _measured(line, "mae", 2),
            _priors(line, "mae", 2),
            Cell(words.percent(line.mean("label_accuracy"))),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return NumberTable("Rows of tables", columns, _by_case(kept, rows, cells))


def _tabular_cases(lines: Sequence[Line]) -> set[str]:
    """Cases about rows of tables; a line without any number is of the kind of its case."""
    return {line.case for line in lines if "exact_match" in line.metrics}


def _hundredfold(interval: Interval) -> Interval:
    return Interval(100 * interval.mean, 100 * interval.low, 100 * interval.high, interval.n)


def _by_case(lines: Sequence[Line], rows: pd.DataFrame, cells: Callable[[Line], list[Cell]]) -> list[CaseLines]:
    cases: dict[str, list[tuple[Line, list[Cell]]]] = {}
    for line in lines:
        cases.setdefault(line.case, []).append((line, cells(line)))
    return [CaseLines(case, _setting(rows, case), listed) for case, listed in cases.items()]


def _setting(rows: pd.DataFrame, case: str) -> str:
    """Data and model of a case."""
    part = rows[rows["case"] == case]
    return ", ".join([*names(part, "data"), *names(part, "model")])


def _counts(rows: pd.DataFrame, threshold: float) -> dict[tuple[str, ...], tuple[int, int]]:
    """Images above the threshold and images in all, for every line."""
    images = rows[rows["metric"] == "psnr"]
    return {
        tuple(map(str, which)): (int((part["value"] > threshold).sum()), len(part))
        for which, part in images.groupby(KEYS, sort=False)
    }


def numbers(line: Line) -> list[tuple[str, str, str, str, int]]:
    """Every metric of a line: name, mean, bounds, unit and number of values."""
    return [
        (name, *words.significant(interval), METRICS[name].unit if name in METRICS else "", interval.n)
        for name, interval in line.metrics.items()
    ]


def _listed(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)}, and {last}" if first else last
