"""All that was measured as data inside the page, for tables that filter and sort and charts that follow them.

The data are JSON that no name in them can break out of: what could end or open a tag is written as an escape.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from seepage.audit.summary import KEYS, MEASURES, Line
from seepage.metrics.baselines import BASELINES
from seepage.metrics.intervals import METHOD_OF_SHARES
from seepage.metrics.registry import METRICS
from seepage.report import words
from seepage.report.strips import Strip
from seepage.report.tables import key

__all__ = ["explorer", "inline_json"]

MOST_ROWS = 40_000  # some forty bytes each
MOST_SETTINGS = 300  # trials whose every setting is in the page
COMMON = [*KEYS, "data", "model", "seed", "device", "seepage", "torch", "trial"]
FIRST = {*MEASURES.values(), "recovered", "label_accuracy"}


def inline_json(data: Any) -> Markup:
    r"""JSON for a script element, in which no text can end the element or begin another.

    Example:
        >>> inline_json({"name": "</script><!--"})
        Markup('{"name":"\\u003c/script\\u003e\\u003c!--"}')
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return Markup(text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026"))


def explorer(
    rows: pd.DataFrame,
    lines: Sequence[Line],
    strips: Sequence[Strip],
    labels: Mapping[tuple[str, str], str],
    notes: Mapping[str, dict[str, Any]],
    threshold: float,
) -> dict[str, Any]:
    """What the script of the page reads.

    Args:
        rows: as `Table.read` gives them.
        lines: that summarise them.
        strips: the galleries, whose films are data and not part of the text.
        labels: a short name for every attack with its settings.
        notes: of the trials, by digest.
        threshold: PSNR in dB above which an image counts as recovered.
    """
    kept = _kept(rows)
    commons = kept[COMMON].drop_duplicates()
    places = {tuple(values): i for i, values in enumerate(commons.itertuples(index=False))}
    trials = [_trial(dict(zip(COMMON, values, strict=True)), labels, notes) for values in places]
    if len(trials) > MOST_SETTINGS:
        for trial in trials:
            trial["settings"] = None
    return {
        "threshold": threshold,
        "interval": METHOD_OF_SHARES,
        "trials": trials,
        "rows": {
            "trial": [places[tuple(values)] for values in kept[COMMON].itertuples(index=False)],
            **{name: _coded(kept[name]) for name in ("client", "item", "metric", "outcome", "diagnosis")},
            "value": [_number(value) for value in kept["value"]],
        },
        "rowsLeftOut": len(rows) - len(kept),
        "means": _means(rows, lines, labels),
        "measures": list(MEASURES.values()),
        "metrics": {name: [metric.unit, metric.about] for name, metric in METRICS.items()},
        "films": [
            {
                "moments": strip.moments,
                "scored": strip.scored,
                "way": [pair.way for pair in strip.pairs],
                "epochs": [pair.epochs for pair in strip.pairs],
            }
            for strip in strips
        ],
    }


def _kept(rows: pd.DataFrame) -> pd.DataFrame:
    """All rows, or of too many those that say most."""
    if len(rows) <= MOST_ROWS:
        return rows
    first = rows["metric"].isin(FIRST)
    return rows.loc[sorted([*rows.index[first], *rows.index[~first]][:MOST_ROWS])]


def _coded(column: pd.Series[str]) -> dict[str, list[Any]]:
    codes, names = pd.factorize(column.fillna("").astype(str))
    return {"names": [str(name) for name in names], "codes": [int(code) for code in codes]}


def _trial(
    common: dict[str, Any], labels: Mapping[tuple[str, str], str], notes: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    note = notes.get(str(common["trial"]), {})
    attack = labels.get((str(common["attack"]), str(common["attack_settings"])), str(common["attack"]))
    return {
        "digest": str(common["trial"]),
        "case": str(common["case"]),
        "attack": "(learning)" if attack == "none" else attack,
        "defence": words.defence_label(str(common["defence"]), str(common["defence_settings"])),
        "threat": str(common["threat"]),
        "attackSettings": str(common["attack_settings"]),
        "data": str(common["data"]),
        "model": str(common["model"]),
        "seed": int(common["seed"]),
        "device": str(common["device"]),
        "seepage": str(common["seepage"]),
        "torch": str(common["torch"]),
        "seconds": note.get("seconds"),
        "settings": _plain(note.get("trial")),
    }


def _plain(value: Any) -> Any:
    """Notes come from files: a NaN in one must not break the page."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _means(rows: pd.DataFrame, lines: Sequence[Line], labels: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """Every mean of every line with its interval, its seeds and the digests of its trials."""
    measured = rows[(rows["attack"] != "none") & (rows["metric"] != "none")]
    groups = {tuple(map(str, names)): part for names, part in measured.groupby(KEYS, sort=False)}
    found = []
    for line in lines:
        part = groups.get(key(line))
        if part is None:
            continue
        seeds, digests = ([str(value) for value in part[name].unique()] for name in ("seed", "trial"))
        clients = part.groupby("metric", sort=False)["client"].nunique()
        for metric, interval in line.metrics.items():
            found.append(
                {
                    "case": line.case,
                    "defence": words.defence_label(line.defence, line.defence_settings),
                    "attack": labels[line.attack, line.attack_settings],
                    "threat": line.threat,
                    "metric": metric,
                    "unit": METRICS[metric].unit if metric in METRICS else "",
                    "n": interval.n,
                    "per": "clients" if clients[metric] > 1 else "values",
                    "mean": _number(interval.mean),
                    "low": _number(interval.low),
                    "high": _number(interval.high),
                    "baseline": any(metric.endswith(f"_of_{name}") for name in BASELINES),
                    "seed": ", ".join(seeds),
                    "trial": digests[0] if len(digests) == 1 else f"{digests[0]} and {len(digests) - 1} more",
                }
            )
    return found


def _number(value: float) -> float | None:
    """Six digits, of which nobody reads more; what is no number is nothing.

    Example:
        >>> _number(1 / 3), _number(math.nan)
        (0.333333, None)
    """
    return float(f"{value:.6g}") if math.isfinite(value) else None
