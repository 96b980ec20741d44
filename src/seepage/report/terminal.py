"""The findings in a terminal: the verdict, one line per defence, and nothing that does not fit eighty columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from seepage.audit.experiment import Expectation
from seepage.audit.gate import Verdict
from seepage.audit.summary import Line, compare, count_causes, summarise
from seepage.metrics.intervals import Interval
from seepage.report.headline import headline
from seepage.report.words import counted, distinguished

__all__ = ["print_comparison", "print_findings", "print_verdicts"]

MOST_SETTINGS = 32
"""Characters of a defence's settings that a column of the table has room for."""

WIDE = 120
"""Columns of a terminal in which there is room for where a number of the paper stands."""


def print_findings(rows: pd.DataFrame, threshold: float) -> None:
    """Print the verdict and what came back from each attack on each defence.

    Args:
        rows: of the experiment.
        threshold: PSNR in dB above which an image counts as recovered.
    """
    lines = summarise(rows)
    if not lines:
        return
    console = Console(highlight=False)
    tables, images = (any(name in line.metrics for line in lines) for name in ("mae", "psnr"))
    score = "Likeness, dB" if not tables else "dB, or error" if images else "Error"
    short = distinguished((line.defence, line.defence_settings) for line in lines)
    what = [_what(line, short[line.defence, line.defence_settings]) for line in lines]
    # What is the same in every line is said once above the table; the rest shares one column, which alone may wrap.
    varying = [name for name in NAMES if len({w[name] for w in what}) > 1] or ["Attack"]
    same = [what[0][name] for name in NAMES if name not in ("Case", "Defence", *varying)]
    if "Defence" not in varying:
        same.append("no defence" if lines[0].defence == "none" else f"against {what[0]['Defence']}")
    console.print(f"\n[bold]{escape(headline(rows, threshold).sentence)}[/bold]")
    grid = Grid(header_style="bold", title=escape(", ".join(same)), title_justify="left", title_style="dim")
    grid.add_column(" · ".join(varying))
    measured = not any(line.failures for line in lines)  # the reason of a failure is a sentence, and wraps
    learnt = any(not math.isnan(line.accuracy) for line in lines)
    for title in (score, "No leak", "Came back", "Labels", *(["Accuracy"] if learnt else [])):
        grid.add_column(title, justify="right", no_wrap=measured)
    for line, said in zip(lines, what, strict=True):
        first = " · ".join(said[name] for name in varying)
        grid.add_row(escape(first), *_measured(line)[: None if learnt else -1])
    console.print(grid)
    causes = counted(count_causes(rows), sum(line.clients for line in lines))
    if causes:
        console.print(f"Why data did not come back, by attacked update: {', '.join(causes)}.")
    if images:
        console.print(
            "Likeness: PSNR to the true image, mean [95 % interval]; "
            f"above {threshold:g} dB it counts as having come back. "
            "No leak: the best guess that ignores the update."
            f"{' Accuracy: of the trained model on held-out data.' if learnt else ''}",
            style="dim",
        )


NAMES = ("Case", "Attack", "Attacker", "Defence")


def _what(line: Line, short: str) -> dict[str, str]:
    """The four things that a line is about, in words; `short` is the defence with what tells it from the others."""
    whole = line.defence + (f" ({line.defence_settings})" if line.defence_settings else "")
    defence = whole if len(line.defence_settings) <= MOST_SETTINGS else short
    return dict(zip(NAMES, (line.case, line.attack, line.threat, defence), strict=True))


def _measured(line: Line) -> list[str]:
    tabular = "mae" in line.metrics
    accuracy = _share(line.accuracy)
    if line.failures:
        return [f"[yellow]{escape(line.failures[0])}[/yellow]", "", "", "", accuracy]
    main, share = ("mae", "exact_match") if tabular else ("psnr", "recovered")
    priors = [line.mean(name) for name in line.metrics if name.startswith(f"{main}_of_")]
    best = (min if tabular else max)((p for p in priors if not math.isnan(p)), default=math.nan)
    labels = _share(line.mean("label_accuracy"))
    return [_interval(line.metrics.get(main)), _number(best), _share(line.mean(share)), labels, accuracy]


def print_comparison(rows: pd.DataFrame, expectations: tuple[Expectation, ...]) -> None:
    """Print ours beside the paper's numbers, if the experiment names any."""
    comparisons = compare(rows, expectations)
    if not comparisons:
        return
    console = Console(highlight=False)
    grid = Grid(header_style="bold", title="Beside the paper", title_justify="left")
    grid.add_column("What")
    for column in ("Paper", "Ours", "n"):
        grid.add_column(column, justify="right", no_wrap=True)
    grid.add_column("Verdict")
    if console.width >= WIDE:
        grid.add_column("Source")
    for c in comparisons:
        e = c.expectation
        what = " · ".join(part for part in (e.case, e.attack, e.defence, e.metric) if part)
        ours = "" if c.ours is None else str(c.ours.n)
        cells = [escape(what), _number(e.reported), _interval(c.ours), ours, c.verdict]
        grid.add_row(*cells, *([escape(e.source)] if console.width >= WIDE else []))
    console.print(grid)


def print_verdicts(verdicts: Sequence[Verdict], console: Console | None = None) -> None:
    """Print what became of each limit of a policy."""
    console = console or Console(highlight=False)
    marks = {
        "within": "[green]within[/green]",
        "broken": "[red]BROKEN[/red]",
        "unmeasured": "[yellow]UNMEASURED[/yellow]",
    }
    for v in verdicts:
        bounds = [f"at most {v.limit.at_most:g}"] if v.limit.at_most is not None else []
        bounds += [f"at least {v.limit.at_least:g}"] if v.limit.at_least is not None else []
        what = f"{v.limit.statistic} {v.limit.metric} {' and '.join(bounds)}"
        where = ", ".join(
            f"{k} {getattr(v.limit, k)}" for k in ("case", "defence", "threat", "attack") if getattr(v.limit, k) != "*"
        )
        console.print(
            f"{marks[v.outcome]}  {escape(what)}{' for ' + escape(where) if where else ''}: {escape(v.why)}",
            soft_wrap=True,
        )


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _interval(interval: Interval | None) -> str:
    if interval is None or math.isnan(interval.mean):
        return "–"
    largest = max(abs(interval.low), abs(interval.high), abs(interval.mean))
    form = ".1f" if abs(interval.mean) >= 1 else ".3f" if largest >= 0.01 or largest == 0 else ".1e"
    mean, low, high = (f"{value:{form}}" for value in (interval.mean, interval.low, interval.high))
    return mean if interval.n < 2 else f"{mean} [{low}, {high}]"
