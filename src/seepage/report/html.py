"""From rows and pictures to one HTML file that needs nothing beside it: no server, no font, no request.

Everything a privacy officer reads is there without a script. Scripts add what a researcher digs with: tables that
filter and sort (Tabulator), distributions (Observable Plot) and sliders. They are inside the file, and a policy in its
head lets a browser run these very scripts, by their digests, and no other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from markupsafe import Markup

from seepage.audit.diagnosis import Cause
from seepage.audit.differences import Difference
from seepage.audit.gate import Limit, Verdict
from seepage.audit.summary import HEADLINES, Comparison, Index, Kind, Line, compare, count_causes, read_rows, summarise
from seepage.audit.table import Pictures
from seepage.engine.minimise import Status
from seepage.metrics.intervals import Interval
from seepage.metrics.registry import METRICS
from seepage.report import words
from seepage.report.advice import advice
from seepage.report.captured import captured_section
from seepage.report.charts import Chart, Choice, frontier_chart, line_chart
from seepage.report.explorer import explorer, inline_json
from seepage.report.headline import ERRORS, Tally, Tone, every_tally, headline, tally
from seepage.report.origin import Origin, recall
from seepage.report.pages import environment, packaged, style
from seepage.report.paired import contrasts
from seepage.report.pictures import Pair
from seepage.report.strips import Group, Strip, strips
from seepage.report.tables import key, names, number_tables
from seepage.threat import THREATS, Fact, ThreatModel

__all__ = ["render", "write_report"]

MOST_CHARTS = 12

_STATUSES = {status.name.lower().replace("_", " "): status.sentence for status in Status}
_OUTCOMES = {**_STATUSES, "answered": "The attack computes its answer directly; there is no search that could fail."}
_NO_NOTES: Mapping[str, dict[str, Any]] = MappingProxyType({})


def render(
    index: Index,
    rows: pd.DataFrame,
    pictures: Mapping[str, Pictures],
    verdicts: Sequence[Verdict] = (),
    notes: Mapping[str, dict[str, Any]] = _NO_NOTES,
    origin: Origin | None = None,
) -> str:
    """The report of a folder of results.

    Args:
        index: what the folder is about.
        rows: as `Table.read` gives them.
        pictures: of the trials that have any, by digest.
        verdicts: of the gate, where there is a policy.
        notes: of the trials, by digest; they know the facts of the user's own threat models and the seconds spent.
        origin: the command that the results came from, where that is known.

    Returns:
        The text of one HTML file; the same for the same arguments.

    Example:
        >>> from seepage.audit.table import COLUMNS
        >>> page = render(Index("empty", "", 20.0, (), ()), COLUMNS.empty_table().to_pandas(), {})
        >>> "Nothing was measured: the table has no rows." in page
        True
    """
    lines = summarise(rows)
    threats = _threats(rows, notes)
    attacks = words.distinguished((line.attack, line.attack_settings) for line in lines)
    styles = _styles(rows)
    groups, left_out = strips(lines, rows, pictures, index.threshold)
    charts = _charts(rows, lines, styles, index.threshold, threats)
    tallies = every_tally(rows, index.threshold, threats)
    glances = _glances(tallies)
    first = headline(rows, index.threshold, index.trials, threats, tallies)
    compared, contrasts_left_out = contrasts(rows, lines, attacks)
    every_strip = sorted((strip for group in groups for strip in group.strips), key=lambda strip: strip.number)
    template = environment().get_template("template.html")
    return template.render(
        index=index,
        worst=_worst(groups),
        origin=origin,
        seeds=names(rows, "seed"),
        contrasts=[(one, *_contrast_words(one.found)) for one in compared],
        contrasts_left_out=contrasts_left_out,
        filters={
            "defence": _once(words.defence_label(s.line.defence, s.line.defence_settings) for s in every_strip),
            "attack": _once(attacks[s.line.attack, s.line.attack_settings] for s in every_strip),
            "client": _once(client for strip in every_strip for client in strip.clients),
        },
        data=inline_json(explorer(rows, lines, every_strip, attacks, notes, index.threshold)),
        scripts=_scripts(),
        script_digests=" ".join(f"'{_digest(script)}'" for script in _scripts()),
        table_style=Markup(_vendored("tabulator.min.css")),
        style=style("palette", "page", "charts", "report"),
        licences=_licences(),
        headline=first,
        todo=advice(rows, tallies, threats, count_causes(rows), verdicts),
        badge=_badge(first.tone, glances),
        glances=glances,
        strongest=lambda one: _strongest(one, attacks),
        bounds=lambda one: _bounds(one, lines),
        cases_told=names(rows, "case") != [DEFAULT_CASE],
        in_plain_words=_IN_PLAIN_WORDS,
        groups=groups,
        left_out=left_out,
        tables=number_tables(lines, rows, index.threshold, index.case_progress(rows)),
        captured=captured_section(notes),
        charts=charts[:MOST_CHARTS],
        charts_left_out=len(charts[MOST_CHARTS:]),
        legend=[(style, words.defence_label(*defence)) for defence, style in styles.items()],
        comparisons=[_compared(comparison) for comparison in compare(rows, index)],
        verdicts=[_held(verdict) for verdict in verdicts],
        gate_words=_gate_words(verdicts),
        causes=count_causes(rows),
        why=lambda line: _why(line, lines),
        in_short=lambda line: "; ".join(_causes(line)),
        partly=lambda line: line.kind in _SHARES and line.mean(_SHARES[line.kind]) > 0,
        failures=_failures(rows),
        outcomes=_outcomes(rows),
        threats=[_threat_words(threats[name]) for name in names(rows, "threat")],
        facts=_facts(rows, notes),
        attack_label=lambda line: attacks[line.attack, line.attack_settings],
        defence_label=words.defence_label,
    )


def write_report(folder: Path, verdicts: Sequence[Verdict] = ()) -> Path:
    """Write the report of a folder of results into it, whole or not at all, and say where."""
    index, rows, table = read_rows(folder)
    pictures = {trial: p for trial in index.trials if (p := table.pictures(trial)) is not None}
    notes = {trial: table.note(trial) for trial in index.trials}
    page = folder / "index.html"
    scratch = folder / ".index.html"
    scratch.write_text(render(index, rows, pictures, verdicts, notes, recall(folder)), encoding="utf-8")
    scratch.replace(page)
    return page


_BADGES: dict[Tone, tuple[str, str]] = {
    "leak": ("▲", "Data came back"),
    "quiet": ("●", "Nothing came back above the threshold"),
    "unknown": ("?", "Not measured"),
}
_BADGES_OF_LABELS: dict[Tone, tuple[str, str]] = {
    **_BADGES,
    "leak": ("▲", "Labels were found"),
    "quiet": ("●", "No more labels were found than a guess finds"),
}


def _badge(tone: Tone, glances: Sequence[_Glance]) -> tuple[str, str]:
    tallies = [one for glance in glances for one in glance.tallies]
    told = [one for one in tallies if one.leaks] or tallies
    if all(one.kind == "label" for one in told):
        return _BADGES_OF_LABELS[tone]
    if tone == "quiet" and not any(one.counts for one in told):  # shares have no threshold, and are never nothing
        return "●", "No more came back than a guess finds"
    return _BADGES[tone]


def _vendored(name: str) -> str:
    # The map of a minified file is not there, and nobody is to ask for it.
    return re.sub(r"^(//|/\*)# sourceMappingURL=.*$", "", packaged(f"vendor/{name}"), flags=re.MULTILINE)


@cache
def _scripts() -> tuple[Markup, ...]:
    """The libraries and the page's own script, which come from this package and are not escaped."""
    libraries = [_vendored(name) for name in ("tabulator.min.js", "d3.min.js", "plot.umd.min.js")]
    return tuple(Markup(script) for script in (*libraries, packaged("page.js")))


@cache
def _licences() -> list[tuple[str, str]]:
    """Of every library, which go with every copy of it."""
    return [
        (f"{entry['package']} {entry['version']}", packaged(f"vendor/{file}"))
        for entry in json.loads(packaged("vendor/versions.json"))
        for file in entry["files"]
        if file.startswith("LICENSE")
    ]


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _worst(groups: Sequence[Group]) -> tuple[Strip, Pair] | None:
    """The reconstruction that is most like the truth, wherever it came back."""
    pairs = [(strip, pair) for group in groups for strip in group.strips for pair in strip.pairs if pair.truth]
    return max((one for one in pairs if one[1].guess), key=lambda one: one[1].psnr, default=None)


def _contrast_words(found: Difference) -> tuple[str, str, str]:
    """The change with its interval, how likely it is by chance, and what follows."""
    mean, bounds = words.significant(found.change, 3)
    return f"{mean} {bounds}".strip(), words.DASH if math.isnan(found.p) else f"{found.p:.2g}", found.verdict


def _styles(rows: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The same colour, dash and shape for the same defence in every chart."""
    learning = rows.loc[rows["metric"] == "accuracy", ["defence", "defence_settings"]].drop_duplicates()
    return {(str(name), str(settings)): i for i, (name, settings) in enumerate(learning.itertuples(index=False))}


# --- at a glance ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Glance:
    title: str
    tallies: list[Tally]
    has_accuracy: bool

    @property
    def kind(self) -> Kind:
        """Of what was found."""
        return self.tallies[0].kind

    @property
    def head(self) -> str:
        """Of the column with what was found."""
        return "Found" if self.tallies[0].kind in ("token", "attribute", "source", "label") else "Came back"


_GLANCES: dict[Kind, str] = {
    "image": "Images that came back",
    "row": "Cells that came back",
    "array": "Features that came back",
    "text": "Tokens that came back in their places",
    "token": "Different tokens that were named",
    "feature": "Examples whose features came back",
    "model": "Clients whose own models came back",
    "attribute": "Sensitive values that were found",
    "source": "Records that were traced to their client",
    "class": "Likeness of classes to the clients' images",
    "label": "Labels that were found",
}
# How much of what an attack set out for it found; of features and models only an error is known.
_SHARES: dict[Kind | None, str] = {kind: metric for kind, metric in HEADLINES.items() if kind not in ERRORS}


def _glances(every: Mapping[Kind, list[Tally]]) -> list[_Glance]:
    return [
        _Glance(title, every[kind], any(not math.isnan(one.accuracy) for one in every[kind]))
        for kind, title in _GLANCES.items()
        if kind in every
    ]


def _bounds(one: Tally, lines: Sequence[Line]) -> str:
    """The 95 % interval of what the strongest attack found over clients; of several cases there is none in common."""
    if len(one.strongest) != 1 or one.kind not in _SHARES:
        return ""
    ((case, attack, settings, threat),) = one.strongest
    where = (case, attack, settings, one.defence, one.settings, threat)
    found = next((line.metrics.get(_SHARES[one.kind]) for line in lines if key(line) == where), None)
    return "" if found is None or math.isnan(found.low) else f"[{100 * found.low:.0f}, {100 * found.high:.0f}] %"


DEFAULT_CASE = "all"  # of a specification without cases, whose name tells nobody anything

_IN_PLAIN_WORDS = {
    Fact.COUNT: "how many examples a client has",
    Fact.RECIPE: "how clients train",
    Fact.STEPS: "how many steps clients take, and with which optimiser",
    Fact.LABELS: "how often each label occurs",
    Fact.MEMBER_LABELS: "how often each label occurs with each client of an aggregate",
    Fact.BATCH_LABELS: "the labels of each batch",
    Fact.DEFENCE: "which defence is in use",
    Fact.PUBLIC_DATA: "other data of the same kind",
    Fact.PUBLIC_COLUMNS: "the other columns of a client’s records",
    Fact.TARGETS: "whole records whose owner is sought",
}


def _strongest(one: Tally, attacks: Mapping[tuple[str, str], str]) -> str:
    """The strongest attack, where it is the same in every case."""
    kinds = {(attacks[attack, settings], threat) for _, attack, settings, threat in one.strongest}
    if len(kinds) > 1:
        return "varies by case"
    attack, threat = kinds.pop()
    return f"{attack} as {threat}"


# --- charts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ChartPair:
    case: str
    learning: Chart
    trade: Chart | None
    numbers: list[tuple[str, str]]


def _charts(
    rows: pd.DataFrame,
    lines: Sequence[Line],
    styles: Mapping[tuple[str, str], int],
    threshold: float,
    threats: Mapping[str, ThreatModel],
) -> list[_ChartPair]:
    learning = rows[(rows["metric"] == "accuracy") & rows["value"].notna()]
    pairs = []
    for case, part in learning.groupby("case", sort=False):
        drawn = []
        for defence, of_defence in part.groupby(["defence", "defence_settings"], sort=False):
            points = [(float(i), 100 * float(v)) for i, v in zip(of_defence["item"], of_defence["value"], strict=True)]
            name = words.defence_label(*map(str, defence))
            drawn.append((styles[str(defence[0]), str(defence[1])], name, sorted(points)))
        numbers = [(name, ", ".join(f"{y:.1f}" for _, y in points)) for _, name, points in drawn]
        title = f"Accuracy after each round, case {case}"
        of_case = rows[rows["case"] == case]
        # Images before labels: one picture of what a defence costs is enough.
        drawable = (_trade(tally(of_case, threshold, kind, threats), lines, str(case), styles) for kind in _GLANCES)
        trade = next((chart for chart in drawable if chart is not None), None)
        pairs.append(_ChartPair(str(case), line_chart(title, drawn), trade, numbers))
    return pairs


def _trade(
    tallies: Sequence[Tally], lines: Sequence[Line], case: str, styles: Mapping[tuple[str, str], int]
) -> Chart | None:
    """Leak of the strongest attack against accuracy, where there are two defences to choose between."""
    kept = [one for one in tallies if not math.isnan(one.accuracy) and not math.isnan(one.mean)]
    if len(kept) < 2:
        return None
    title, kind = f"Leak against accuracy, case {case}", kept[0].kind
    by_key = {key(line): line for line in lines}

    def measured(one: Tally, metric: str, scale: float, mean: float) -> Interval:
        """The leak, with the interval of its line over clients."""
        ((_, attack, settings, threat),) = one.strongest  # of one case
        line = by_key[case, attack, settings, one.defence, one.settings, threat]
        found = line.metrics.get(metric, Interval(math.nan, math.nan, math.nan, 0))
        return Interval(mean, scale * found.low, scale * found.high, found.n)

    def choices(leak: Callable[[Tally], Interval]) -> list[Choice]:
        return [
            Choice(styles[one.defence, one.settings], one.label, leak(one), _alone(100 * one.accuracy)) for one in kept
        ]

    if kind == "image" and len({one.share for one in kept}) == 1:  # then it tells defences apart no better than a coin
        return frontier_chart(title, "mean PSNR, dB", "dB", choices(lambda one: measured(one, "psnr", 1, one.mean)))
    share = _SHARES.get(kind, "")
    return frontier_chart(title, _LEAKS[kind], "%", choices(lambda one: measured(one, share, 100, 100 * one.share)))


def _alone(value: float) -> Interval:
    return Interval(value, math.nan, math.nan, 1)


_LEAKS: dict[Kind, str] = {
    "image": "images that came back, %",
    "row": "cells that came back, %",
    "array": "features that came back, %",
    "text": "tokens that came back, %",
    "token": "tokens that were named, %",
    "feature": "examples that came back, %",
    "model": "models that came back, %",
    "attribute": "sensitive values that were found, %",
    "source": "records that were traced, %",
    "class": "likeness of classes, %",
    "label": "labels that were found, %",
}


# --- why data did not come back ---------------------------------------------------------------------------------------


def _why(line: Line, lines: Sequence[Line]) -> str:
    """The most frequent cause with its sentence, and the names of the others."""
    first, *others = _causes(line)
    said = [f"{first}.", next(iter(line.causes)).sentence]
    if Cause.DEFENDED in line.causes and _fails_without(line, lines):
        said.append(
            "Without the defence the same attack brings no more back, so this is not the defence's doing alone."
        )
    said += [f"Also: {', '.join(others)}."] if others else []
    return " ".join(said)


def _fails_without(line: Line, lines: Sequence[Line]) -> bool:
    def meeting(one: Line) -> tuple[str, str, str, str]:
        return one.case, one.attack, one.attack_settings, one.threat

    if line.kind is None:
        return False
    metric = HEADLINES[line.kind]
    sign = 1 if METRICS[metric].higher_is_more_leakage else -1
    bases = [base for base in lines if base.defence == "none" and meeting(base) == meeting(line)]
    return any(sign * base.mean(metric) <= sign * line.mean(metric) for base in bases)


def _causes(line: Line) -> list[str]:
    return words.counted(line.causes, line.clients, line.defence)


# --- beside the paper, the gate, failures ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    what: str
    metric: str
    reported: str
    source: str
    ours: str
    bounds: str
    n: str
    verdict: str


def _compared(comparison: Comparison) -> _Compared:
    expected, ours = comparison.expectation, comparison.ours
    what = [expected.case]
    what += [expected.attack] if expected.attack else []
    what += [words.defence_label(expected.defence, "")] if expected.defence else []
    unit = METRICS[expected.metric].unit if expected.metric in METRICS else ""
    mean, bounds = (words.DASH, "") if ours is None else words.significant(ours)
    return _Compared(
        ", ".join(what),
        f"{expected.metric}, {unit}" if unit else expected.metric,
        words.DASH if expected.reported is None else f"{expected.reported:g}",
        expected.source,
        mean,
        bounds,
        words.DASH if ours is None else str(ours.n),
        comparison.verdict or "nothing to hold it against",
    )


@dataclass(frozen=True)
class _Held:
    outcome: str
    symbol: str
    limit: str
    where: str
    value: str
    why: str


_SYMBOLS = {"within": "✓", "broken": "✗", "unmeasured": "?"}


def _held(verdict: Verdict) -> _Held:
    value = words.DASH if math.isnan(verdict.value) else f"{verdict.value:.4g}"
    symbol = _SYMBOLS[verdict.outcome]
    return _Held(verdict.outcome, symbol, _limit_words(verdict.limit), _where(verdict.limit), value, verdict.why)


def _limit_words(limit: Limit) -> str:
    """A limit as a sentence.

    Example:
        >>> _limit_words(Limit("psnr", at_most=20.0, statistic="p95"))
        '95th percentile of psnr at most 20'
    """
    statistic = {"mean": "mean", "max": "largest", "min": "smallest", "p95": "95th percentile of", "last": "last"}
    bounds = [f"at least {limit.at_least:g}"] if limit.at_least is not None else []
    bounds += [f"at most {limit.at_most:g}"] if limit.at_most is not None else []
    return f"{statistic[limit.statistic]} {limit.metric} {' and '.join(bounds)}"


def _where(limit: Limit) -> str:
    named = [f"{c} {getattr(limit, c)}" for c in ("case", "attack", "defence", "threat") if getattr(limit, c) != "*"]
    return ", ".join(named) or "everywhere"


def _gate_words(verdicts: Sequence[Verdict]) -> str:
    counts = {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in _SYMBOLS}
    if counts["within"] == len(verdicts):
        return "All limits hold."
    parts = [f"{counts['broken']} broken"] if counts["broken"] else []
    parts += [f"{counts['unmeasured']} could not be measured"] if counts["unmeasured"] else []
    return f"Of {words.plural(len(verdicts), 'limit')}: {', '.join(parts)}, {counts['within']} within."


def _failures(rows: pd.DataFrame) -> list[tuple[str, str, int]]:
    """What was tried, why it gave no number, and how often."""
    failed = rows[rows["metric"] == "none"]
    found: dict[tuple[str, str], int] = {}
    for row in failed.itertuples(index=False):
        defence = words.defence_label(str(row.defence), str(row.defence_settings))
        parts = [str(row.case), "learning" if row.attack == "none" else str(row.attack), defence]
        parts += [str(row.threat)] if row.threat != "none" else []
        key = ", ".join(parts), str(row.outcome)
        found[key] = found.get(key, 0) + 1
    return [(what, why, count) for (what, why), count in found.items()]


def _outcomes(rows: pd.DataFrame) -> list[tuple[str, int, str]]:
    """How the search ended: outcome, updates that ended so, and what it means."""
    measured = rows[(rows["attack"] != "none") & (rows["metric"] != "none")]
    lanes = measured.drop_duplicates(["trial", "client"])["outcome"].astype(str)
    counts = lanes.value_counts(sort=False)
    known = [name for name in _OUTCOMES if name in counts.index]
    other = sorted(set(counts.index) - set(known))
    return [(name, int(counts[name]), _OUTCOMES.get(name, words.DASH)) for name in [*known, *other]]


# --- threat models and circumstances --------------------------------------------------------------------------------


def _threats(rows: pd.DataFrame, notes: Mapping[str, dict[str, Any]]) -> dict[str, ThreatModel]:
    """Every threat model by name; what a note says comes first, since a user's own may have any name."""
    threats = {**THREATS, **{n: ThreatModel(n, frozenset()) for n in names(rows, "threat") if n not in THREATS}}
    for trial in rows["trial"].drop_duplicates():
        noted = (notes.get(str(trial), {}).get("trial") or {}).get("threat")
        if noted:
            facts = frozenset(Fact(f) for f in noted.get("facts", ()) if f in set(Fact))
            threats[noted["name"]] = ThreatModel(noted["name"], facts, noted.get("about", ""))
    return threats


@dataclass(frozen=True)
class _ThreatWords:
    name: str
    about: str
    granted: list[Fact]
    hidden: list[Fact]


def _threat_words(threat: ThreatModel) -> _ThreatWords:
    unknown = threat.name not in THREATS and not threat.facts and not threat.about
    about = (
        "a threat model of this experiment; the table alone does not say what it grants" if unknown else threat.about
    )
    granted = [fact for fact in Fact if fact in threat.facts]
    return _ThreatWords(threat.name, about, granted, [] if unknown else [f for f in Fact if f not in threat.known])


def _facts(rows: pd.DataFrame, notes: Mapping[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """The circumstances of the measurement."""
    heads = {
        "data": "Data",
        "model": "Model",
        "seed": "Seed",
        "device": "Device",
        "seepage": "Seepage",
        "torch": "PyTorch",
    }
    facts = [(head, ", ".join(names(rows, column)) or words.DASH) for column, head in heads.items()]
    trials = [str(trial) for trial in rows["trial"].drop_duplicates()]
    spent = [float(notes[t]["seconds"]) for t in trials if "seconds" in notes.get(t, {})]
    count = words.plural(len(trials), "trial")
    facts.append(("Trials", f"{count}, {words.seconds(sum(spent))} of computing" if spent else count))
    return facts
