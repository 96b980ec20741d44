"""The findings in a terminal: the verdict, one line per defence, and nothing that does not fit eighty columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from seepage.audit.differences import Difference
from seepage.audit.gate import Verdict
from seepage.audit.summary import AS_CAPTURED, MEASURES, Index, Kind, Line, compare, count_causes, summarise
from seepage.metrics.intervals import METHOD, METHOD_OF_SHARES, Interval
from seepage.metrics.tabular import CELL_TOLERANCE
from seepage.report.headline import headline
from seepage.report.tables import names, prior
from seepage.report.words import DASH, counted, decimal, distinguished, plural, with_settings

__all__ = ["print_comparison", "print_differences", "print_findings", "print_unfinished", "print_verdicts"]

MOST_SETTINGS = 32
"""Characters of a defence's settings that a column of the table has room for."""

WIDE = 120
"""Columns of a terminal in which there is room for the interval of every mean, and for where papers have numbers."""


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
    console.print(f"\n[bold]{escape(headline(rows, threshold).sentence)}[/bold]")
    families = _families(lines)
    for family in families:
        _print_lines(console, family, alone=len(families) == 1)
    failures = Counter(failure for line in lines for failure in line.failures)
    for failure, count in failures.items():
        console.print(f"[yellow]{plural(count, 'trial')} without numbers, {escape(failure)}[/yellow]")
    causes = counted(count_causes(rows), sum(line.clients for line in lines))
    if causes:
        labels_alone = {line.kind for line in lines} <= {"label", None}
        not_found = "labels were not all found" if labels_alone else "data did not come back"
        console.print(f"Why {not_found}, by attacked update: {', '.join(causes)}.")
    legend = _legend({line.kind for line in lines}, any(not math.isnan(line.accuracy) for line in lines), threshold)
    if legend:
        console.print(legend, style="dim")
    sizes = sorted({line.clients for line in lines if line.metrics})
    if sizes:
        n = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"
        seeds = ", ".join(names(rows, "seed"))
        how = f"Means over clients, {n}, seed {seeds}; [95 % interval]: {METHOD_OF_SHARES}."
        console.print(how, style="dim", markup=False)


def _families(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines that have numbers of the same sort: those of sources say nothing in the columns of sensitive values."""
    of_case = {line.case: _family(line.kind) for line in lines if line.kind}
    families: dict[Kind | None, list[Line]] = {}
    for line in lines:  # one without numbers stands with the others of its case
        families.setdefault(_family(line.kind) if line.kind else of_case.get(line.case), []).append(line)
    return list(families.values())


def _family(kind: Kind | None) -> Kind | None:
    together: dict[Kind | None, Kind] = {
        "row": "image",
        "array": "image",
        "feature": "image",
        "label": "image",
        "token": "text",
    }
    return together.get(kind, kind)


def _print_lines(console: Console, lines: Sequence[Line], alone: bool) -> None:
    short = distinguished((line.defence, line.defence_settings) for line in lines)
    what = [_what(line, short[line.defence, line.defence_settings]) for line in lines]
    # What is the same in every line is said once above the table; the rest shares one column, which alone may wrap.
    varying = [name for name in NAMES if len({w[name] for w in what}) > 1] or ["Attack"]
    unsaid = {"Defence", *varying, *(["Case"] if alone else [])}
    same = [what[0][name] for name in NAMES if name not in unsaid]
    if "Defence" not in varying:
        same.append(
            {"none": "no defence", AS_CAPTURED: AS_CAPTURED}.get(lines[0].defence, f"against {what[0]['Defence']}")
        )
    grid = Grid(header_style="bold", title=escape(", ".join(same)), title_justify="left", title_style="dim")
    firsts = [" · ".join(said[name] for name in varying) for said in what]
    # However many numbers there are, whose they are can be read.
    grid.add_column(" · ".join(varying), overflow="fold", min_width=min(12, max(map(len, firsts))))
    numbers = _numbers(lines, console.width >= WIDE)
    for title in numbers:
        grid.add_column(title, justify="right", no_wrap=True)
    for line, first, *cells in zip(lines, firsts, *numbers.values(), strict=True):
        if line.failures:  # the reason is a sentence, for which a cell is too narrow
            cells[0] = f"[yellow]{escape(line.failures[0].partition(':')[0])}[/yellow]"
        grid.add_row(escape(first), *cells)
    console.print(grid)


def _numbers(lines: Sequence[Line], wide: bool) -> dict[str, list[str]]:
    """The cells of every column that any line has a number for; where a trial failed, room for the reason."""

    def mean(line: Line, metric: str) -> str:
        return _interval(line.metrics.get(metric)) if wide else _number(line.mean(metric))

    def share(line: Line, metric: str) -> str:
        found = line.metrics.get(metric)
        if not wide or found is None or found.n < 2:
            return _share(line.mean(metric))
        return f"{_share(found.mean)} [{100 * found.low:.0f}, {100 * found.high:.0f}]"

    kinds = {line.kind for line in lines}
    columns: dict[str, Callable[[Line], str]] = {}
    if kinds & {"image", "array"}:
        score = "Likeness, dB" if "array" not in kinds else "dB, or error" if "image" in kinds else "Error"
        columns[score] = lambda line: _interval(line.metrics.get("mae" if line.kind == "array" else "psnr"))
    if "row" in kinds:
        columns["Cells"] = lambda line: _interval(line.metrics.get("cell_accuracy"))
    if kinds & {"image", "row", "array"}:
        other: dict[Kind | None, str] = {"row": "cell_accuracy", "array": "mae"}
        columns["No leak"] = lambda line: _number(prior(line, other.get(line.kind, "psnr")))
    if kinds & {"image", "array"}:
        columns["Came back"] = lambda line: share(line, "exact_match" if line.kind == "array" else "recovered")
    if "row" in kinds and wide:
        columns["Surest half"] = lambda line: mean(line, "sure_cell_accuracy")
        columns["Whole rows"] = lambda line: share(line, "rows_found")
    columns["Relative error"] = lambda line: _interval(
        line.metrics.get("relative_error" if line.kind == "model" else "feature_error")
    )
    if any(line.unscored for line in lines):
        columns["Explained"] = lambda line: _interval(line.metrics.get("update_explained"))
        columns["Restarts, dB"] = lambda line: mean(line, "restart_psnr")
        columns["Label confidence"] = lambda line: mean(line, "label_confidence")
    if "model" in kinds:
        columns["Last answer"] = lambda line: mean(line, "relative_error_of_last_answer")
    if kinds & {"text", "token"}:
        columns["Tokens in place"] = lambda line: _interval(line.metrics.get("token_accuracy"))
        columns["No leak"] = lambda line: _number(prior(line, "token_accuracy"))
        columns["ROUGE-1"] = lambda line: mean(line, "rouge1")
        if wide:
            columns["ROUGE-2"] = lambda line: mean(line, "rouge2")
        if "token" in kinds:
            columns["Token bag"] = lambda line: mean(line, "token_bag")
    if kinds & {"attribute", "source", "class"}:
        columns["Values"] = lambda line: _interval(line.metrics.get("attribute_accuracy"))
        columns["Sources"] = lambda line: _interval(line.metrics.get("source_accuracy"))
        columns["Classes"] = lambda line: _interval(line.metrics.get("class_ssim"))
        if not kinds & {"image", "row", "array"}:
            columns["No leak"] = lambda line: _number(prior(line, MEASURES[line.kind])) if line.kind else DASH
    columns["Labels"] = lambda line: share(line, "label_accuracy")
    if "label" in kinds and not kinds - {"label", None}:  # there is room for all that is known about labels
        columns["No leak"] = lambda line: _share(prior(line, "label_accuracy"))
        columns["Wrong"] = _wrong
        columns["Confidence"] = lambda line: decimal(line.mean("label_confidence"), 2)
    cells = {title: ["" if line.failures else cell(line) for line in lines] for title, cell in columns.items()}
    cells["Accuracy"] = [_share(line.accuracy) for line in lines]
    kept = {title: column for title, column in cells.items() if set(column) - {DASH, ""}}
    if any(line.failures for line in lines) and not set(kept) - {"Accuracy"}:
        return {"Outcome": ["" for _ in lines], **kept}
    return kept


def _wrong(line: Line) -> str:
    wrong, count = line.mean("label_count_error"), line.mean("label_count")
    return decimal(wrong) + ("" if math.isnan(count) else f" of {count:.3g}")


def _legend(kinds: set[Kind | None], learnt: bool, threshold: float) -> str:
    said = []
    if "image" in kinds:
        said.append(
            "Likeness: PSNR to the true image, mean [95 % interval]; "
            f"above {threshold:g} dB it counts as having come back. "
            "No leak: the best guess that ignores the update."
        )
    if "row" in kinds:
        said.append(
            "Cells: share of a row's cells that were found, mean [95 % interval]: the right category, or a number "
            f"within {CELL_TOLERANCE:g} standard deviations. No leak: the best guess that ignores the update."
        )
    if "feature" in kinds:
        said.append(
            "Relative error: of what enters a layer inside the network, where inputs are out of reach, "
            "mean [95 % interval]; 0 is exact."
        )
    if "model" in kinds:
        said.append(
            "Relative error: of the model that a client would have trained alone, mean [95 % interval]; 0 is exact. "
            "Last answer: the same for the model that it returned last."
        )
    if kinds & {"text", "token"}:
        said.append(
            "Tokens in place: share of a text's places at which the right token was named, mean [95 % interval]. "
            "No leak: the same for other texts, which anybody may have."
        )
    if "token" in kinds:
        said.append("Token bag: agreement of the tokens that were named with those that occur.")
    if "attribute" in kinds:
        said.append(
            "Values: share of a client's records whose value was found, mean [95 % interval]; "
            "No leak: the most frequent value for all of them."
        )
    if "source" in kinds:
        said.append(
            "Sources: share of a client's target records that were traced to it, mean [95 % interval]; "
            "No leak: clients drawn at random."
        )
    if "class" in kinds:
        said.append(
            "Classes: SSIM of a client's images to what was found for their class, mean [95 % interval]; "
            "No leak: the better of one colour and the mean of public images."
        )
    if "label" in kinds:
        said.append("Labels: share of a client's labels that were found, counting how often each occurs.")
    if "label" in kinds and not kinds - {"label", None}:
        said.append(
            "No leak: the same for a guess of every label equally often. Wrong: labels that would have to be changed, "
            "on average, of how many a client has. Confidence: the attack's own word, from 0 to 1."
        )
    if learnt and said:
        said.append("Accuracy: of the trained model on held-out data.")
    return " ".join(said)


NAMES = ("Case", "Attack", "Attacker", "Defence")


def _what(line: Line, short: str) -> dict[str, str]:
    """The four things that a line is about, in words; `short` is the defence with what tells it from the others."""
    whole = with_settings(line.defence, line.defence_settings)
    defence = whole if len(whole) <= len(line.defence) + MOST_SETTINGS else short
    return dict(zip(NAMES, (line.case, line.attack, line.threat, defence), strict=True))


def print_unfinished(rows: pd.DataFrame, index: Index) -> None:
    """Say which cases are not complete: their numbers are of some of their trials alone."""
    cases = index.case_progress(rows)
    console = Console(highlight=False)
    for case, progress in cases.items():
        if progress.partial:
            console.print(f"[yellow]Not complete: case {escape(case)}, {progress}.[/yellow]", soft_wrap=True)
    waiting = sum(progress.finished == 0 for progress in cases.values())
    if waiting:
        console.print(f"[yellow]Not begun: {plural(waiting, 'case')} of {len(cases)}.[/yellow]")


def print_comparison(rows: pd.DataFrame, index: Index) -> None:
    """Print ours beside the paper's numbers, if the experiment names any."""
    comparisons = compare(rows, index)
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


def print_differences(found: Sequence[Difference]) -> None:
    """Print what changed between two folders of results, and then in words whether beyond chance."""
    console = Console(highlight=False)
    same = [
        name
        for name in ("case", "attack", "defence", "threat")
        if len({getattr(d, name) for d in found if d.metric != "accuracy" or name in ("case", "defence")}) == 1
    ]
    grid = Grid(header_style="bold")
    grid.add_column("What", overflow="fold")
    for column in ("Before", "After", "Change", "p"):
        grid.add_column(column, justify="right", no_wrap=True)
    grid.add_column("Verdict", max_width=13)
    for d in found:
        names = [
            "no defence" if name == "defence" and getattr(d, name) == "none" else getattr(d, name)
            for name in ("case", "attack", "defence", "threat")
            if name not in same and not (d.metric == "accuracy" and name in ("attack", "threat"))
        ]
        what = " · ".join([*names, d.metric]) + (f" ({d.settings})" if d.settings else "")
        change = DASH if math.isnan(d.change.mean) else _interval(d.change)
        grid.add_row(escape(what), _number(d.before), _number(d.after), change, _number(d.p), d.verdict)
    console.print(grid)
    both = [d for d in found if d.verdict not in ("new", "gone")]
    beyond = sum(d.verdict == "beyond chance" for d in both)
    alone = f"; {plural(len(found) - len(both), 'line')} in one folder alone" if len(found) > len(both) else ""
    console.print(f"[bold]{beyond} of {plural(len(both), 'difference')} beyond chance{alone}.[/bold]")
    if any(d.change.n for d in found):
        pairs = any(d.paired for d in found)
        how = "client by client" if pairs else "between other clients: data or seed differ"
        console.print(
            f"Change: after − before, {how}, mean [95 % interval]: {METHOD}. p: permutation test, "
            "corrected for the number of differences (Holm).",
            style="dim",
            markup=False,
        )


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
    return DASH if value is None or math.isnan(value) else f"{value:.3g}"


def _share(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:.0%}"


def _interval(interval: Interval | None) -> str:
    if interval is None or math.isnan(interval.mean):
        return DASH
    bounds = (interval.mean, interval.low, interval.high)
    largest = max(abs(value) for value in bounds if not math.isnan(value))  # one value alone has no bounds
    form = ".1f" if abs(interval.mean) >= 1 else ".3f" if largest >= 0.01 or largest == 0 else ".1e"
    mean, low, high = (f"{value:{form}}" for value in bounds)
    return mean if interval.n < 2 else f"{mean} [{low}, {high}]"
