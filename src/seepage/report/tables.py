"""The table of numbers: one line per attack, defence and threat model, beside what no leak scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from seepage.audit.diagnosis import FEATURES_FOUND
from seepage.audit.summary import KEYS, MEASURES, Kind, Line
from seepage.metrics.baselines import BASELINES
from seepage.metrics.intervals import Interval
from seepage.metrics.registry import BASELINE_METRICS, METRICS
from seepage.report import words

__all__ = [
    "CaseLines",
    "Cell",
    "Column",
    "NumberTable",
    "feature_table",
    "image_table",
    "key",
    "label_table",
    "model_table",
    "names",
    "prior",
    "row_table",
    "share_table",
    "text_table",
    "token_table",
    "unscored_table",
]


@dataclass(frozen=True)
class Column:
    """A column of the table: its head, and one sentence for the legend."""

    head: str
    about: str


@dataclass(frozen=True)
class Cell:
    """A number, what stands small under it, whether it is to catch the eye, and what stands under that."""

    text: str
    small: str = ""
    strong: bool = False
    beside: str = ""


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


def _measured(line: Line, metric: str, digits: int, beside: str = "") -> Cell:
    bounds = words.between(line.metrics.get(metric), digits)
    return Cell(words.decimal(line.mean(metric), digits), bounds, beside=_with_n(line, metric, beside))


def _share(line: Line, metric: str, beside: str = "", *, strong: bool = False) -> Cell:
    bounds = _bounds(line.metrics.get(metric), 0)
    return Cell(words.percent(line.mean(metric)), bounds, strong, _with_n(line, metric, beside))


def _bounds(share: Interval | None, digits: int = 1) -> str:
    """Of a share in per cent.

    Example:
        >>> _bounds(Interval(0.5, 0.25, 0.75, 4))
        '[25.0, 75.0]'
    """
    if share is None:
        return ""
    return words.between(Interval(100 * share.mean, 100 * share.low, 100 * share.high, share.n), digits)


def _with_n(line: Line, metric: str, beside: str) -> str:
    """How many values there are, where these are fewer than the clients in their column."""
    interval = line.metrics.get(metric)
    n = "" if interval is None or line.clients < 2 or interval.n == line.clients else f"n = {interval.n}"
    return ", ".join(filter(None, (beside, n)))


_ACCURACY = Column(
    "Accuracy",
    "Share of held-out examples that the global model gets right after the last round with this defence; where a "
    "number is predicted, the share of its variance that the model explains (R²). One federation was trained with each "
    "defence, so there is no interval.",
)
_CLIENTS = Column(
    "Clients",
    "How many clients were attacked; n of every mean and interval, unless a cell says otherwise. With a single client "
    "its examples are n.",
)
_LABELS = Column("Labels found", METRICS["label_accuracy"].about)


def image_table(lines: Sequence[Line], rows: pd.DataFrame, threshold: float) -> NumberTable | None:
    """The lines about images; `None` without any.

    Args:
        lines: of all cases.
        rows: that they summarise.
        threshold: PSNR in dB above which an image counts as recovered.
    """
    kept = _of_kind(lines, "image")
    if not kept:
        return None
    counts = _counts(rows, "psnr", lambda psnr: psnr > threshold)
    guesses = [about for name, about in BASELINES.items() if "psnr" in BASELINE_METRICS[name]]
    with_lpips = any("lpips" in line.metrics for line in kept)
    columns = [
        Column("PSNR, dB", METRICS["psnr"].about),
        Column(
            "No leak scores, dB",
            f"PSNR of the best guess without any leak; the guesses are {_listed(guesses)}.",
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
            _measured(line, "ssim", 2, beside),
            *([_measured(line, "lpips", 2)] if with_lpips else []),
            _share(line, "recovered", f"{found} of {total}" if total else "", strong=found > 0),
            _labels_found(line),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("Images", columns, _by_case(kept, rows, cells))


def row_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines about rows of tables; `None` without any."""
    kept = _of_kind(lines, "row")
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
        return [
            Cell(words.percent(line.mean("exact_match")), _bounds(interval)),
            Cell(words.percent(without_leak)),
            Cell(words.decimal(above, 1, sign=True), strong=_surely_above(interval, without_leak)),
            _measured(line, "mae", 2),
            _priors(line, "mae", 2),
            _labels_found(line),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("Rows of tables", columns, _by_case(kept, rows, cells))


def feature_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines of attacks that answer what enters a layer; `None` without any."""
    kept = _of_kind(lines, "feature")
    if not kept:
        return None
    counts = _counts(rows, "feature_error", lambda error: error <= FEATURES_FOUND)
    columns = [
        Column(
            "Relative error",
            "Of what the attack says entered a layer inside the network, where inputs themselves are out of its reach: "
            "0 is exact, 1 is no better than a guess of zeros.",
        ),
        Column("Came back", f"Examples for which that error is at most {FEATURES_FOUND:g}."),
        _LABELS,
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        found, total = counts.get(key(line), (0, 0))
        interval = line.metrics.get("feature_error")
        return [
            Cell(words.DASH) if interval is None else Cell(*words.significant(interval)),
            Cell(f"{found} of {total}" if total else words.DASH, strong=found > 0),
            _labels_found(line),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("What enters a layer", columns, _by_case(kept, rows, cells))


def model_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines of attacks that answer clients' own models; `None` without any."""
    kept = _of_kind(lines, "model")
    if not kept:
        return None
    counts = _counts(rows, "relative_error", lambda error: error <= FEATURES_FOUND)
    columns = [
        Column(
            "Relative error",
            "Of the model that the attack names, beside the one that the client would have trained alone: 0 is exact.",
        ),
        Column("Global model", "The same for the last global model."),
        Column("Last answer", "The same for the model that the client returned last."),
        Column("Came back", f"Clients for whom that error is at most {FEATURES_FOUND:g}."),
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        found, total = counts.get(key(line), (0, 0))
        errors = [line.metrics.get(f"relative_error{of}") for of in ("", "_of_global_model", "_of_last_answer")]
        return [
            *(Cell(words.DASH) if error is None else Cell(*words.significant(error)) for error in errors),
            Cell(f"{found} of {total}" if total else words.DASH, strong=found > 0),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("Clients' own models", columns, _by_case(kept, rows, cells))


def share_table(
    lines: Sequence[Line], rows: pd.DataFrame, kind: Literal["attribute", "source", "class"]
) -> NumberTable | None:
    """The lines of attacks that answer a column of a table, whose a record is, or classes; `None` without any."""
    kept = _of_kind(lines, kind)
    if not kept:
        return None
    title, metric, baseline = {
        "attribute": ("Sensitive values", "attribute_accuracy", "majority"),
        "source": ("Sources of records", "source_accuracy", "chance"),
        "class": ("Likeness of classes", "class_ssim", "public_mean"),
    }[kind]
    columns = [
        Column("Found", f"{METRICS[metric].about} Bold where the whole interval is above a guess."),
        Column("No leak finds", f"The same share for a guess without any leak, which is {BASELINES[baseline]}."),
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        return [
            *_share_beside_guess(line, metric, 1),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table(title, columns, _by_case(kept, rows, cells))


def text_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines about texts; `None` without any."""
    kept = _of_kind(lines, "text")
    if not kept:
        return None
    columns = [
        Column("Tokens in place", METRICS["token_accuracy"].about),
        Column("No leak finds", f"The same for a guess without any leak, which is {BASELINES['public_texts']}."),
        Column("ROUGE-1", METRICS["rouge1"].about),
        Column("ROUGE-2", METRICS["rouge2"].about),
        _LABELS,
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        return [
            *_share_beside_guess(line, "token_accuracy", 1),
            _measured(line, "rouge1", 3),
            _measured(line, "rouge2", 3),
            _labels_found(line),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("Texts", columns, _by_case(kept, rows, cells))


def token_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines of attacks that say which tokens occur and nothing else; `None` without any."""
    kept = _of_kind(lines, "token")
    if not kept:
        return None
    columns = [Column("Tokens named", METRICS["token_bag"].about), _ACCURACY, _CLIENTS]

    def cells(line: Line) -> list[Cell]:
        return [
            _measured(line, "token_bag", 3),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("Bags of tokens", columns, _by_case(kept, rows, cells))


def label_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines of attacks that answer labels and nothing else; `None` without any."""
    kept = _of_kind(lines, "label")
    if not kept:
        return None
    columns = [
        Column("Labels found", f"{METRICS['label_accuracy'].about} Bold where the whole interval is above a guess."),
        Column("No leak finds", f"The same share for a guess without any leak, which is {BASELINES['even']}."),
        Column("Wrong labels", METRICS["label_count_error"].about),
        Column("Confidence", METRICS["label_confidence"].about),
        _ACCURACY,
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        wrong, count = line.mean("label_count_error"), line.mean("label_count")
        errors = line.metrics.get("label_count_error")
        of_all = "" if math.isnan(count) else f" of {count:.3g}"
        return [
            *_share_beside_guess(line, "label_accuracy"),
            Cell(words.decimal(wrong) + of_all, "" if errors is None else words.between(_not_negative(errors))),
            _measured(line, "label_confidence", 2),
            Cell(words.percent(line.accuracy, 1)),
            Cell(str(line.clients)),
        ]

    return _table("Labels", columns, _by_case(kept, rows, cells))


def unscored_table(lines: Sequence[Line], rows: pd.DataFrame) -> NumberTable | None:
    """The lines of answers that there was no truth for; `None` without any."""
    kept = [line for line in lines if line.unscored]
    if not kept:
        return None
    columns = [
        Column("Update explained", METRICS["update_explained"].about),
        Column("Restarts agree, dB", METRICS["restart_psnr"].about),
        Column("Label confidence", METRICS["label_confidence"].about),
        Column("Objective", "What the attack made as small as it could; it means something between restarts alone."),
        _CLIENTS,
    ]

    def cells(line: Line) -> list[Cell]:
        return [
            _measured(line, "update_explained", 3),
            _measured(line, "restart_psnr", 1),
            _measured(line, "label_confidence", 2),
            Cell(f"{line.mean('objective'):.3g}" if "objective" in line.metrics else words.DASH),
            Cell(str(line.clients)),
        ]

    return _table("Unscored: no truth was given", columns, _by_case(kept, rows, cells))


def _share_beside_guess(line: Line, metric: str, digits: int = 0) -> list[Cell]:
    """Two cells: a share, strong where its whole interval is above a guess without any leak, and that guess."""
    interval, without_leak = line.metrics.get(metric), prior(line, metric)
    bounds = _bounds(interval)
    return [
        Cell(words.percent(line.mean(metric), digits), bounds, strong=_surely_above(interval, without_leak)),
        Cell(words.percent(without_leak, digits)),
    ]


def _labels_found(line: Line) -> Cell:
    without_leak = prior(line, "label_accuracy")
    return _share(line, "label_accuracy", "" if math.isnan(without_leak) else f"no leak {words.percent(without_leak)}")


def _of_kind(lines: Sequence[Line], kind: Kind) -> list[Line]:
    """The lines whose attack answers that, and of those without any number the ones that would have."""
    of_attack = {(line.attack, line.attack_settings): line.kind for line in lines if line.kind}
    of_case: dict[str, Kind] = {}
    for one in MEASURES:  # in the same case inputs go before what is easier to find
        of_case.update({line.case: one for line in lines if line.kind == one and line.case not in of_case})

    def expected(line: Line) -> Kind:
        usual = of_attack.get((line.attack, line.attack_settings))
        if usual in ("token", "feature", "model", "attribute", "source", "class", "label"):
            return usual
        return of_case.get(line.case) or usual or "image"  # inputs are of the kind of their case

    return [line for line in lines if not line.unscored and (line.kind or expected(line)) == kind]


def _table(title: str, columns: list[Column], cases: list[CaseLines]) -> NumberTable:
    """Without the columns that no line has a number for."""
    every = [cells for case in cases for _, cells in case.lines]
    kept = [i for i in range(len(columns)) if any(cells[i].text != words.DASH for cells in every)]
    shorter = [
        CaseLines(case.name, case.setting, [(line, [cells[i] for i in kept]) for line, cells in case.lines])
        for case in cases
    ]
    return NumberTable(title, [columns[i] for i in kept], shorter)


def _not_negative(interval: Interval) -> Interval:
    """Without the part below zero, where the bell curve of few clients may reach."""
    return replace(interval, low=max(interval.low, 0.0))  # NaN, with a single client, stays


def _by_case(lines: Sequence[Line], rows: pd.DataFrame, cells: Callable[[Line], list[Cell]]) -> list[CaseLines]:
    cases: dict[str, list[tuple[Line, list[Cell]]]] = {}
    for line in lines:
        cases.setdefault(line.case, []).append((line, cells(line)))
    return [CaseLines(case, _setting(rows, case), listed) for case, listed in cases.items()]


def _setting(rows: pd.DataFrame, case: str) -> str:
    """Data and model of a case."""
    part = rows[rows["case"] == case]
    return ", ".join([*names(part, "data"), *names(part, "model")])


def _counts(
    rows: pd.DataFrame, metric: str, came_back: Callable[[pd.Series[float]], pd.Series[bool]]
) -> dict[tuple[str, ...], tuple[int, int]]:
    """Examples that came back and examples in all, for every line."""
    examples = rows[rows["metric"] == metric]
    return {
        tuple(map(str, which)): (int(came_back(part["value"]).sum()), len(part))
        for which, part in examples.groupby(KEYS, sort=False)
    }


def _listed(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)}, and {last}" if first else last
