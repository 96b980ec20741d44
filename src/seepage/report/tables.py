"""The table of numbers: one line per attack, defence and threat model, beside what no leak scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from seepage.audit.diagnosis import FEATURES_FOUND
from seepage.audit.summary import KEYS, MEASURES, Kind, Line, Progress
from seepage.metrics.baselines import BASELINES
from seepage.metrics.intervals import Interval
from seepage.metrics.registry import BASELINE_METRICS, METRICS
from seepage.report import words

__all__ = ["CaseLines", "Cell", "Column", "NumberTable", "key", "names", "number_tables", "prior"]


@dataclass(frozen=True)
class Column:
    """A column of the table: its head, one sentence for the legend, and what stands in it for a line."""

    head: str
    about: str
    cell: Callable[[Line], Cell]


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


def number_tables(
    lines: Sequence[Line], rows: pd.DataFrame, threshold: float, progress: Mapping[str, Progress]
) -> list[NumberTable]:
    """A table for every kind of answer that was met, inputs first.

    Args:
        lines: of all cases.
        rows: that they summarise.
        threshold: PSNR in dB above which an image counts as recovered.
        progress: how many trials of each case are finished, where that is known.
    """
    by_kind: dict[Kind, tuple[str, list[Column]]] = {
        "image": ("Images", _image_columns(rows, threshold)),
        "row": ("Rows of tables", _ROW_COLUMNS),
        "array": ("Examples of numbers", _ARRAY_COLUMNS),
        "feature": ("What enters a layer", _feature_columns(rows)),
        "model": ("Clients' own models", _model_columns(rows)),
        "text": ("Texts", _TEXT_COLUMNS),
        "token": ("Bags of tokens", _TOKEN_COLUMNS),
        "attribute": ("Sensitive values", _share_columns("attribute", "majority")),
        "source": ("Sources of records", _share_columns("source", "chance")),
        "class": ("Likeness of classes", _share_columns("class", "public_mean")),
        "label": ("Labels", _LABEL_COLUMNS),
    }
    settings = {line.case: _setting(rows, line.case, progress.get(line.case)) for line in lines}
    tables = [_table(title, columns, _of_kind(lines, kind), settings) for kind, (title, columns) in by_kind.items()]
    unscored = [line for line in lines if line.unscored]
    tables.append(_table("Unscored: no truth was given", _UNSCORED_COLUMNS, unscored, settings))
    return [table for table in tables if table.cases]


# --- the columns of each table --------------------------------------------------------------------------------------


def _image_columns(rows: pd.DataFrame, threshold: float) -> list[Column]:
    counts = _counts(rows, "psnr", lambda psnr: psnr > threshold)
    guesses = [about for name, about in BASELINES.items() if "psnr" in BASELINE_METRICS[name]]

    def above_prior(line: Line) -> Cell:
        without_leak = prior(line, "psnr")
        above = words.decimal(line.mean("psnr") - without_leak, 1, sign=True)
        return Cell(above, strong=_surely_above(line.metrics.get("psnr"), without_leak))

    def ssim(line: Line) -> Cell:
        without_leak = prior(line, "ssim")
        beside = "" if math.isnan(without_leak) else f"no leak {words.decimal(without_leak, 2)}"
        return _measured(line, "ssim", 2, beside)

    def came_back(line: Line) -> Cell:
        found, total = counts.get(key(line), (0, 0))
        return _share(line, "recovered", f"{found} of {total}" if total else "", strong=found > 0)

    return [
        Column("PSNR, dB", METRICS["psnr"].about, lambda line: _measured(line, "psnr", 1)),
        Column(
            "No leak scores, dB",
            f"PSNR of the best guess without any leak; the guesses are {_listed(guesses)}.",
            lambda line: _priors(line, "psnr", 1),
        ),
        Column(
            "Leak above prior, dB",
            "PSNR minus what no leak scores: only what is above zero was leaked; bold where the whole interval is.",
            above_prior,
        ),
        Column("SSIM", f"{METRICS['ssim'].about} Beside it what no leak scores.", ssim),
        Column("LPIPS", METRICS["lpips"].about, lambda line: _measured(line, "lpips", 2)),
        Column("Came back", f"Share of the images whose PSNR is above the threshold of {threshold:g} dB.", came_back),
        _LABELS,
        _ACCURACY,
        _CLIENTS,
    ]


_LABELS = Column("Labels found", METRICS["label_accuracy"].about, lambda line: _labels_found(line))
_ACCURACY = Column(
    "Accuracy",
    "Share of held-out examples that the global model gets right after the last round with this defence; where a "
    "number is predicted, the share of its variance that the model explains (R²). One federation was trained with each "
    "defence, so there is no interval.",
    lambda line: Cell(words.percent(line.accuracy, 1)),
)
_CLIENTS = Column(
    "Clients",
    "How many clients were attacked; n of every mean and interval, unless a cell says otherwise. With a single client "
    "its examples are n.",
    lambda line: Cell(str(line.clients)),
)

_ROW_COLUMNS = [
    Column("Cells found", METRICS["cell_accuracy"].about, lambda line: _found(line, "cell_accuracy")),
    Column(
        "No leak finds",
        "The same share for the best guess without any leak: one row of each column's most frequent value, or the mean "
        "of public data, where these were granted.",
        lambda line: Cell(words.percent(prior(line, "cell_accuracy"))),
    ),
    Column(
        "Leak above prior, points",
        "Cells found minus what no leak finds, in points of a hundred; bold where the whole interval is above.",
        lambda line: _points_above(line, "cell_accuracy"),
    ),
    Column("Categories", METRICS["category_accuracy"].about, lambda line: _share(line, "category_accuracy")),
    Column("Numbers", METRICS["number_accuracy"].about, lambda line: _share(line, "number_accuracy")),
    Column("Surest half", METRICS["sure_cell_accuracy"].about, lambda line: _share(line, "sure_cell_accuracy")),
    Column("Whole rows", METRICS["rows_found"].about, lambda line: _share(line, "rows_found")),
    _LABELS,
    _ACCURACY,
    _CLIENTS,
]

_ARRAY_COLUMNS = [
    Column("Features found", METRICS["exact_match"].about, lambda line: _found(line, "exact_match")),
    Column(
        "No leak finds",
        "The same share for the best guess without any leak, where public data were granted.",
        lambda line: Cell(words.percent(prior(line, "exact_match"))),
    ),
    Column(
        "Leak above prior, points",
        "Features found minus what no leak finds, in points of a hundred; bold where the whole interval is above.",
        lambda line: _points_above(line, "exact_match"),
    ),
    Column("Mean error", METRICS["mae"].about, lambda line: _measured(line, "mae", 2)),
    Column(
        "No leak errs",
        "Mean error of the best guess without any leak; a leak makes it smaller.",
        lambda line: _priors(line, "mae", 2),
    ),
    _LABELS,
    _ACCURACY,
    _CLIENTS,
]


def _feature_columns(rows: pd.DataFrame) -> list[Column]:
    return [
        Column(
            "Relative error",
            "Of what the attack says entered a layer inside the network, where inputs themselves are out of its reach: "
            "0 is exact, 1 is no better than a guess of zeros.",
            lambda line: _error(line, "feature_error"),
        ),
        _small_errors(rows, "feature_error", "Examples for which"),
        _LABELS,
        _ACCURACY,
        _CLIENTS,
    ]


def _model_columns(rows: pd.DataFrame) -> list[Column]:
    return [
        Column(
            "Relative error",
            "Of the model that the attack names, beside the one that the client would have trained alone: 0 is exact.",
            lambda line: _error(line, "relative_error"),
        ),
        Column(
            "Global model",
            "The same for the last global model.",
            lambda line: _error(line, "relative_error_of_global_model"),
        ),
        Column(
            "Last answer",
            "The same for the model that the client returned last.",
            lambda line: _error(line, "relative_error_of_last_answer"),
        ),
        _small_errors(rows, "relative_error", "Clients for whom"),
        _ACCURACY,
        _CLIENTS,
    ]


def _small_errors(rows: pd.DataFrame, metric: str, of_whom: str) -> Column:
    """How many came back, where only an error is known."""
    counts = _counts(rows, metric, lambda error: error <= FEATURES_FOUND)

    def cell(line: Line) -> Cell:
        found, total = counts.get(key(line), (0, 0))
        return Cell(f"{found} of {total}" if total else words.DASH, strong=found > 0)

    return Column("Came back", f"{of_whom} that error is at most {FEATURES_FOUND:g}.", cell)


def _share_columns(kind: Kind, baseline: str) -> list[Column]:
    return [
        *_beside_guess("Found", f"{METRICS[MEASURES[kind]].about} {_BOLD}", MEASURES[kind], baseline, 1),
        _ACCURACY,
        _CLIENTS,
    ]


def _beside_guess(head: str, about: str, metric: str, baseline: str, digits: int) -> list[Column]:
    """Two columns: a share, strong where its whole interval is above a guess without any leak, and that guess."""

    def found(line: Line) -> Cell:
        interval = line.metrics.get(metric)
        strong = _surely_above(interval, prior(line, metric))
        return Cell(words.percent(line.mean(metric), digits), _bounds(interval), strong)

    return [
        Column(head, about, found),
        Column(
            "No leak finds",
            f"The same for a guess without any leak, which is {BASELINES[baseline]}.",
            lambda line: Cell(words.percent(prior(line, metric), digits)),
        ),
    ]


_BOLD = "Bold where the whole interval is above a guess."

_TEXT_COLUMNS = [
    *_beside_guess("Tokens in place", METRICS["token_accuracy"].about, "token_accuracy", "public_texts", 1),
    Column("ROUGE-1", METRICS["rouge1"].about, lambda line: _measured(line, "rouge1", 3)),
    Column("ROUGE-2", METRICS["rouge2"].about, lambda line: _measured(line, "rouge2", 3)),
    _LABELS,
    _ACCURACY,
    _CLIENTS,
]

_TOKEN_COLUMNS = [
    Column("Tokens named", METRICS["token_bag"].about, lambda line: _measured(line, "token_bag", 3)),
    _ACCURACY,
    _CLIENTS,
]


def _wrong_labels(line: Line) -> Cell:
    wrong, count = line.mean("label_count_error"), line.mean("label_count")
    errors = line.metrics.get("label_count_error")
    of_all = "" if math.isnan(count) else f" of {count:.3g}"
    return Cell(words.decimal(wrong) + of_all, "" if errors is None else words.between(_not_negative(errors)))


_LABEL_COLUMNS = [
    *_beside_guess("Labels found", f"{METRICS['label_accuracy'].about} {_BOLD}", "label_accuracy", "even", 0),
    Column("Wrong labels", METRICS["label_count_error"].about, _wrong_labels),
    Column("Confidence", METRICS["label_confidence"].about, lambda line: _measured(line, "label_confidence", 2)),
    _ACCURACY,
    _CLIENTS,
]

_UNSCORED_COLUMNS = [
    Column("Update explained", METRICS["update_explained"].about, lambda line: _measured(line, "update_explained", 3)),
    Column("Restarts agree, dB", METRICS["restart_psnr"].about, lambda line: _measured(line, "restart_psnr", 1)),
    Column("Label confidence", METRICS["label_confidence"].about, lambda line: _measured(line, "label_confidence", 2)),
    Column(
        "Objective",
        "What the attack made as small as it could; it means something between restarts alone.",
        lambda line: Cell(f"{line.mean('objective'):.3g}" if "objective" in line.metrics else words.DASH),
    ),
    _CLIENTS,
]


# --- what columns are made of ---------------------------------------------------------------------------------------


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


def _found(line: Line, metric: str) -> Cell:
    return Cell(words.percent(line.mean(metric)), _bounds(line.metrics.get(metric)))


def _points_above(line: Line, metric: str) -> Cell:
    without_leak = prior(line, metric)
    above = words.decimal(100 * (line.mean(metric) - without_leak), 1, sign=True)
    return Cell(above, strong=_surely_above(line.metrics.get(metric), without_leak))


def _error(line: Line, metric: str) -> Cell:
    interval = line.metrics.get(metric)
    return Cell(words.DASH) if interval is None else Cell(*words.significant(interval))


def _not_negative(interval: Interval) -> Interval:
    """Without the part below zero, where the bell curve of few clients may reach."""
    return replace(interval, low=max(interval.low, 0.0))  # NaN, with a single client, stays


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


def _table(title: str, columns: Sequence[Column], lines: Sequence[Line], settings: Mapping[str, str]) -> NumberTable:
    """The lines case by case, without the columns that none of them has a number for."""
    cells = [[column.cell(line) for line in lines] for column in columns]
    kept = [i for i, column in enumerate(cells) if any(cell.text != words.DASH for cell in column)]
    cases: dict[str, list[tuple[Line, list[Cell]]]] = {}
    for place, line in enumerate(lines):
        cases.setdefault(line.case, []).append((line, [cells[i][place] for i in kept]))
    by_case = [CaseLines(case, settings[case], listed) for case, listed in cases.items()]
    return NumberTable(title, [columns[i] for i in kept], by_case)


def _setting(rows: pd.DataFrame, case: str, progress: Progress | None) -> str:
    """Data and model of a case, and how far it is where it is not complete."""
    part = rows[rows["case"] == case]
    so_far = [f"so far {progress}"] if progress is not None and progress.partial else []
    return ", ".join([*names(part, "data"), *names(part, "model"), *so_far])


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
