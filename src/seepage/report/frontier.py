"""The frontier between leakage and accuracy as one page, one picture and one table for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from seepage.audit.frontier import Point, as_frame, cheapest
from seepage.audit.verdicts import limit_name
from seepage.metrics.intervals import METHOD_OF_SHARES, Interval
from seepage.metrics.registry import METRICS
from seepage.report import words
from seepage.report.charts import Chart, Mark, Series, frontier, percent_ticks, ticks
from seepage.report.pages import environment
from seepage.report.pages import style as styled

__all__ = ["print_frontier", "sentence", "write_frontier"]

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 14, 46
MOST_BEYOND = 10.0  # points of accuracy
FONT = "font-family: system-ui, 'Liberation Sans', Arial, sans-serif;"  # of a picture that no page lends its own


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def write_frontier(
    folder: Path, name: str, about: str, found: Sequence[Point], metric: str, seeds: int, clients: int
) -> Path:
    """Write `frontier.html`, `frontier.csv` and one `frontier-….svg` for each case into the folder.

    Args:
        folder: where results are.
        name: of the experiment.
        about: its sentence.
        found: the points.
        metric: what leakage is measured in.
        seeds: how many.
        clients: attacked with each strength, over all seeds.

    Returns:
        The page.
    """
    as_frame(found).to_csv(folder / "frontier.csv", index=False)
    chosen, cases = cheapest(found), []
    labels = words.distinguished((p.defence, p.settings) for p in found)
    styles = {defence: i for i, defence in enumerate(dict.fromkeys(p.defence for p in found))}
    for number, case in enumerate(chosen):
        here = [p for p in found if p.case == case]
        chart = _chart(f"{name}: {case}" if len(chosen) > 1 else name, here, metric, styles, labels)
        suffix = f"-{number}" if len(chosen) > 1 else ""
        (folder / f"frontier{suffix}.svg").write_text(_picture(chart), encoding="utf-8")
        cases.append(
            {
                "title": case if len(chosen) > 1 else "Leakage against accuracy",
                "sentence": sentence(here, metric, labels),
                "chart": chart,
                "legend": [
                    (style, "no defence" if defence == "none" else defence)
                    for defence, style in styles.items()
                    if defence in {p.defence for p in here}
                ],
                "clients": clients,
                "bounded": any(p.bound for p in here),
                "promised": any(math.isfinite(p.epsilon) for p in here),
                "judged": any(p.verdicts for p in here),
                "rows": [_row(p, metric, labels[p.defence, p.settings], p == chosen[case]) for p in here],
            }
        )
    page = folder / "frontier.html"
    scratch = folder / ".frontier.html"
    text = (
        environment()
        .get_template("frontier.html")
        .render(
            name=name,
            about=about,
            cases=cases,
            seeds=seeds,
            leak_label=_leak_label(metric),
            about_leak=METRICS[metric].about,
            any_bound=any(p.bound for p in found),
            style=styled("palette", "page", "charts"),
        )
    )
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(page)
    return page


def print_frontier(found: Sequence[Point], metric: str) -> None:
    """The table in a terminal, and what to choose."""
    console, chosen = Console(highlight=False), cheapest(found)
    labels = words.distinguished((p.defence, p.settings) for p in found)
    bounded, promised = any(p.bound for p in found), any(math.isfinite(p.epsilon) for p in found)
    for case, best in chosen.items():
        here = [p for p in found if p.case == case]
        grid = Grid(header_style="bold", title=escape(case) if len(chosen) > 1 else None, title_justify="left")
        grid.add_column("Defence", overflow="fold")
        leak = "Came back" if metric in ("recovered", "cell_accuracy", "token_accuracy") else metric
        columns = [leak, *["At most"] * bounded, "Accuracy", *["ε"] * promised]
        for title in columns:
            grid.add_column(title, justify="right", no_wrap=True)
        for p in here:
            row = _row(p, metric, labels[p.defence, p.settings], p == best)
            cells = [
                f"{row['leak']} {row['leak_bounds']}",
                *[str(row["bound"])] * bounded,
                f"{row['accuracy']} {row['accuracy_bounds']}",
                *[str(row["epsilon"])] * promised,
            ]
            grid.add_row(*map(escape, (str(row["defence"]), *cells)), style="bold green" if row["chosen"] else None)
        console.print(grid)
        over = f"leakage over n = {here[0].leak.n} clients, accuracy over n = {here[0].accuracy.n} seeds"
        console.print(f"Means [95 % interval]: {over}; {METHOD_OF_SHARES}.", style="dim", markup=False)
        if told := sentence(here, metric, labels):
            console.print(f"[bold]{escape(told)}[/bold]")


def sentence(found: Sequence[Point], metric: str, labels: dict[tuple[str, str], str]) -> str:
    """What to choose, where there is a policy."""
    if not any(p.verdicts for p in found):
        return ""
    best = next(iter(cheapest(found).values()))
    if best is None:
        unmeasured = any(verdict.outcome == "unmeasured" for p in found for verdict in p.verdicts)
        return (
            "No setting is known to keep the policy: a limit could not be measured."
            if unmeasured
            else f"No setting that was tried keeps the policy{_by_all(found)}."
        )
    plain = next((p for p in found if p.defence == "none"), None)
    cost = "" if plain is None or plain is best else _cost(plain.accuracy.mean - best.accuracy.mean)
    leak = f"{_leak_label(metric)} {_shown(best.leak.mean, metric)}"
    name = "no defence" if best.defence == "none" else labels[best.defence, best.settings]
    return (
        f"The cheapest setting within the policy is {name}: accuracy {words.percent(best.accuracy.mean, 1)}{cost}; "
        f"{leak[0].lower()}{leak[1:]}{_unsure(best, metric)}."
    )


def _by_all(found: Sequence[Point]) -> str:
    """The limits that every setting breaks, if any are."""
    broken = [{limit_name(v.limit) for v in p.verdicts if v.outcome == "broken"} for p in found]
    common = sorted(set.intersection(*broken))
    return f": all break “{'” and “'.join(common)}”" if common else ""


def _cost(share: float) -> str:
    """Accuracy that is lost, in words.

    Example:
        >>> _cost(0.015), _cost(-0.02), _cost(0.0001)
        (', 1.5 points below no defence', ', 2.0 points above no defence', ', as without a defence')
    """
    points = words.decimal(abs(100 * share))
    if float(points) == 0:
        return ", as without a defence"
    return f", {points} points {'below' if share > 0 else 'above'} no defence"


def _unsure(best: Point, metric: str) -> str:
    """Where the interval of the leakage reaches beyond the limit, the reader should know."""
    for verdict in best.verdicts:
        limit = verdict.limit
        above = limit.at_most is not None and best.leak.high > limit.at_most
        if limit.metric == metric and limit.statistic == "mean" and above:
            return f", though its interval reaches {_shown(best.leak.high, metric)}: attack more clients to be sure"
    return ""


def _row(point: Point, metric: str, label: str, chosen: bool) -> dict[str, object]:
    return {
        "defence": "no defence" if point.defence == "none" else label,
        "leak": _shown(point.leak.mean, metric),
        "leak_bounds": _interval(point.leak, metric),
        "by": f"{point.attack}, {point.threat}",
        "bound": words.DASH if point.bound is None else words.percent(point.bound.most),
        "prior": "" if point.bound is None else words.percent(point.bound.prior),
        "accuracy": words.percent(point.accuracy.mean, 1),
        "accuracy_bounds": _interval(point.accuracy, "recovered"),
        "epsilon": f"{point.epsilon:.3g}" if math.isfinite(point.epsilon) else words.DASH,
        "kilobytes": words.decimal(point.wire_bytes / 1000),
        "verdicts": [(verdict.outcome, limit_name(verdict.limit), verdict.why) for verdict in point.verdicts],
        "chosen": chosen,
    }


def _is_share(metric: str) -> bool:
    return METRICS[metric].unit == "share"


def _leak_label(metric: str) -> str:
    unit = METRICS[metric].unit
    said = {
        "recovered": "Images that came back",
        "cell_accuracy": "Cells that came back",
        "token_accuracy": "Tokens that came back",
        "psnr": "Likeness",
        "label_accuracy": "Labels that were found",
    }
    return said.get(metric, metric) + ("" if _is_share(metric) or not unit else f", {unit}")


def _shown(value: float, metric: str) -> str:
    return words.percent(value) if _is_share(metric) else words.decimal(value, 2)


def _interval(interval: Interval, metric: str, digits: int = 0) -> str:
    if math.isnan(interval.low):
        return ""
    if not _is_share(metric):
        return words.between(interval, 2)
    return f"[{words.decimal(100 * interval.low, digits)}, {words.decimal(100 * interval.high, digits)}]"


def _chart(
    title: str,
    found: Sequence[Point],
    metric: str,
    styles: dict[str, int],
    labels: dict[tuple[str, str], str],
) -> Chart:
    """Leakage to the right, accuracy upwards; the strengths of one defence are joined, and bounds are drawn dotted."""
    scale = 100.0 if _is_share(metric) else 1.0
    leaks = [scale * end for p in found for end in _ends(p.leak)]
    means = [100 * p.accuracy.mean for p in found]
    # Two seeds have an interval that would flatten all else: the axis goes so far beyond the means and no farther.
    lowest, highest = min(means) - MOST_BEYOND, max(means) + MOST_BEYOND
    accuracies = [min(max(100 * end, lowest), highest) for p in found for end in _ends(p.accuracy)]
    x_ticks = percent_ticks(leaks, whole=True) if _is_share(metric) else ticks(min(leaks), max(leaks))
    y_ticks = percent_ticks(accuracies)
    x_at = _Axis(x_ticks[0], x_ticks[-1], LEFT + 12, WIDTH - RIGHT - 12)
    y_at = _Axis(y_ticks[0], max(y_ticks[-1], max(accuracies)), HEIGHT - BOTTOM, TOP)
    series = []
    for defence, style in styles.items():
        marks, bars, promises = [], "", ""
        for p in (p for p in found if p.defence == defence):
            x, y = x_at(scale * p.leak.mean), y_at(100 * p.accuracy.mean)
            ends = [x_at(scale * end) for end in _ends(p.leak)[1:]], [y_at(100 * end) for end in _ends(p.accuracy)[1:]]
            bars += f"M{ends[0][0]} {y}H{ends[0][1]}" if ends[0] else ""
            bars += f"M{x} {ends[1][0]}V{ends[1][1]}" if ends[1] else ""
            if p.bound is not None:
                promises += f"M{x} {y}H{x_at(100 * p.bound.most)}m0 -5v10"
            marks.append(Mark(x, y, _words(p, metric, labels[p.defence, p.settings])))
        line = "M" + "L".join(f"{m.x} {m.y}" for m in marks) if len(marks) > 1 else ""
        series.append(Series(style, defence, tuple(marks), line, bars, promises))
    direction = 1 if METRICS[metric].higher_is_more_leakage else -1
    edge = frontier((direction * p.leak.mean, p.accuracy.mean) for p in found)
    path = "M" + "L".join(f"{x_at(scale * direction * x)} {y_at(100 * y)}" for x, y in edge) if len(edge) > 1 else ""
    return Chart(
        title,
        _leak_label(metric) + (", %" if _is_share(metric) else ""),
        "accuracy, %",
        tuple((x_at(t), f"{t:g}") for t in x_ticks),
        tuple((y_at(t), f"{t:g}") for t in y_ticks),
        tuple(series),
        path,
        WIDTH,
        HEIGHT,
        LEFT,
        WIDTH - RIGHT,
        TOP,
        HEIGHT - BOTTOM,
    )


def _words(point: Point, metric: str, label: str) -> str:
    proven = "" if point.bound is None else f", provably at most {words.percent(point.bound.most)}"
    return (
        f"{label}: {_leak_label(metric)} {_shown(point.leak.mean, metric)} {_interval(point.leak, metric)}{proven}; "
        f"accuracy {words.percent(point.accuracy.mean, 1)} {_interval(point.accuracy, 'recovered', 1)}"
    )


def _ends(interval: Interval) -> list[float]:
    return [interval.mean, *(end for end in (interval.low, interval.high) if not math.isnan(end))]


def _picture(chart: Chart) -> str:
    """The chart as a file of its own."""
    drawn = str(environment().get_template("charts.html").module.draw(chart))  # type: ignore[attr-defined]
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "<title>", f"<style>{styled('palette', 'charts')}svg {{ background: var(--card); {FONT} }}</style><title>", 1
    )
