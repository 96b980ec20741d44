"""What changed between two folders of results, and whether by more than chance.

The client is the unit: images of one client share a network and an update. Where both folders attacked the same clients
(the same data and seed), differences are taken client by client, which removes what makes one client easier than
another. How sure a difference is says the same interval over clients that every table has
(`seepage.metrics.intervals`); whether it could be chance says a permutation test, which assumes nothing about how
values are distributed, corrected for the number of differences that are looked at (Holm, 1979, "A Simple Sequentially
Rejective Multiple Test Procedure", https://www.jstor.org/stable/4615733).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seepage.audit.summary import KEYS, MEASURES
from seepage.metrics.intervals import FEWEST, Interval, gap_interval, mean_interval

__all__ = ["CHANCE", "Difference", "differences"]

CHANCE = 0.05
"""Probability under which a difference is not put down to chance."""

NAMES = ["case", "attack", "defence", "threat"]
DRAWS = 9999

Values: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """One metric of one line in two folders.

    Args:
        case: name of the case; attack, defence and threat likewise.
        attack: label.
        defence: name.
        threat: name.
        settings: of the attack and the defence where the two folders differ in them, else empty.
        metric: name.
        before: mean in the first folder; NaN where the line is missing there.
        after: mean in the second folder.
        change: after − before with its interval, and the number of clients (of the smaller side).
        paired: whether both folders attacked the same clients.
        p: probability of such a change by chance alone, corrected for the number of differences; NaN for fewer clients
            than can say anything.
        least: the least that `p` could have been with so many clients, by the same correction.
    """

    case: str
    attack: str
    defence: str
    threat: str
    settings: str
    metric: str
    before: float
    after: float
    change: Interval
    paired: bool
    p: float
    least: float = 0.0

    @property
    def verdict(self) -> str:
        """In words."""
        if math.isnan(self.before):
            return "new"
        if math.isnan(self.after):
            return "gone"
        if self.change.mean == 0 and self.change.low == self.change.high == 0:
            return "the same"
        if math.isnan(self.p) and self.metric == "accuracy":
            return "one training run each: cannot be told"
        if math.isnan(self.p):
            return f"too few clients to tell ({self.change.n})"
        if self.p >= CHANCE and self.least >= CHANCE:  # whatever came out would have been put down to chance
            return f"too few clients to tell ({self.change.n})"
        return "beyond chance" if self.p < CHANCE else "within chance"


def differences(before: pd.DataFrame, after: pd.DataFrame, metrics: list[str] | None = None) -> list[Difference]:
    """Every line of either folder of results, in order of appearance.

    Args:
        before: rows of the first folder.
        after: rows of the second.
        metrics: to look at; without it, the metric of what each attack answers, the share that came back, and accuracy.
    """
    paired = _same_clients(before, after)
    sides = [_lines(rows, metrics) for rows in _told_apart(before, after)]
    found = [
        _difference(key, sides[0].get(key), sides[1].get(key), paired) for key in dict.fromkeys([*sides[0], *sides[1]])
    ]
    told = [d for d in found if not math.isnan(d.p)]
    corrected, least = (iter(_holm(chances)) for chances in ([d.p for d in told], [d.least for d in told]))
    return [d if math.isnan(d.p) else replace(d, p=next(corrected), least=next(least)) for d in found]


def _told_apart(before: pd.DataFrame, after: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """With settings behind the names of attacks and defences that a folder has under several: each is a line."""
    for name in ("attack", "defence"):
        settings = f"{name}_settings"
        under = [rows.groupby(["case", name])[settings].nunique() for rows in (before, after)]
        several = {key[-1] for counts in under for key in counts.index[counts > 1]}
        before, after = (
            rows.assign(**{name: rows[name].where(~rows[name].isin(several), rows[name] + " (" + rows[settings] + ")")})
            for rows in (before, after)
        )
    return before, after


Key: TypeAlias = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class _Side:
    """One line of one folder: a value for each client, and under which settings."""

    values: pd.Series[float]
    settings: str


def _lines(rows: pd.DataFrame, wanted: list[str] | None) -> dict[Key, _Side]:
    lines = {}
    for names, whole in rows.groupby(NAMES, sort=False):
        case, attack, defence, threat = map(str, names)
        measured = set(whole["metric"])
        own = [metric for metric in MEASURES.values() if metric in measured][:1]  # who answers inputs names labels too
        for metric in [*own, "recovered", "accuracy"] if wanted is None else wanted:
            part = whole[whole["metric"] == metric]
            if part.empty:
                continue
            if metric == "accuracy":  # one row for each round, of which the last counts
                part = part[part["item"] == part["item"].iloc[-1]]
            settings = ", ".join(filter(None, part[[key for key in KEYS if key.endswith("settings")]].iloc[0]))
            means = part.groupby("client", sort=False)["value"].mean().dropna()
            if len(means):
                lines[case, attack, defence, threat, metric] = _Side(means, settings)
    return lines


def _changed(before: str, after: str) -> str:
    """The settings that differ, in both folders.

    Example:
        >>> _changed("tv=0.1, steps=100", "tv=0.2, steps=100, starts=4")
        'tv=0.1 → tv=0.2, starts=4'
    """
    sides = [dict.fromkeys(side.split(", ")) for side in (before, after)]
    gone, new = ([s for s in sides[i] if s and s not in sides[1 - i]] for i in (0, 1))
    return f"{', '.join(gone) or '–'} → {', '.join(new) or '–'}" if gone or new else ""


def _same_clients(before: pd.DataFrame, after: pd.DataFrame) -> bool:
    """Whether clients of one name hold the same examples: data are dealt out by the seed."""
    origins = [set(zip(rows["data"], rows["seed"], strict=True)) for rows in (before, after)]
    return origins[0] == origins[1] and len(origins[0]) == 1


def _difference(key: Key, before: _Side | None, after: _Side | None, same_clients: bool) -> Difference:
    case, attack, defence, threat, metric = key
    if before is None or after is None:
        here = before or after
        assert here is not None
        mean, nothing = float(here.values.mean()), Interval(math.nan, math.nan, math.nan, len(here.values))
        ends = (mean, math.nan) if after is None else (math.nan, mean)
        return Difference(case, attack, defence, threat, "", metric, *ends, nothing, False, math.nan)
    common = before.values.index.intersection(after.values.index)
    paired = same_clients and len(common) > 0
    if paired:
        first, second = (np.asarray(side.values[common], np.float64) for side in (before, after))
        change, p = _of_pairs(second - first)
        ways = 2.0 ** len(common)
    else:
        first, second = (np.asarray(side.values, np.float64) for side in (before, after))
        change, p = _of_groups(first, second)
        ways = float(math.comb(len(first) + len(second), len(first)))
    settings = _changed(before.settings, after.settings)
    means = float(first.mean()), float(second.mean())
    least = 2 / min(ways, DRAWS + 1)
    return Difference(case, attack, defence, threat, settings, metric, *means, change, paired, p, least)


def _of_pairs(change: Values) -> tuple[Interval, float]:
    """Of differences client by client: under chance alone, each could as well have had the other sign."""
    n = len(change)
    if not change.any():
        return Interval(0.0, 0.0, 0.0, n), math.nan
    return mean_interval(change), _chance((change,), lambda x, axis: x.mean(axis), "samples", n)


def _of_groups(first: Values, second: Values) -> tuple[Interval, float]:
    """Of other clients in each folder: under chance alone, they could have been dealt out otherwise."""
    n = min(len(first), len(second))
    p = _chance((first, second), lambda x, y, axis: y.mean(axis) - x.mean(axis), "independent", n)
    return gap_interval(first, second), p


def _chance(
    data: tuple[Values, ...], gap: Callable[..., Values], kind: Literal["samples", "independent"], n: int
) -> float:
    """How probable such a gap is by chance; the signs of five clients are the same in 2 of 32 cases, too often."""
    if n < FEWEST:
        return math.nan
    from scipy import stats  # here, as no other command should wait for it

    test = stats.permutation_test(data, gap, permutation_type=kind, n_resamples=DRAWS, vectorized=True, random_state=0)
    return float(test.pvalue)


def _holm(chances: list[float]) -> list[float]:
    """Probabilities corrected for how many there are, in their order.

    Example:
        >>> _holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    corrected, highest = [0.0] * len(chances), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, chances[i] * (len(chances) - rank)))
        corrected[i] = highest
    return corrected
