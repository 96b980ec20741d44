"""The geometry of the report's charts: where lines, marks and ticks lie; the template draws them as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seepage.metrics.intervals import Interval

__all__ = ["Chart", "Choice", "Mark", "Series", "frontier", "frontier_chart", "line_chart", "percent_ticks", "ticks"]

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 44


@dataclass(frozen=True)
class Mark:
    """A point with its value in words."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Series:
    """One line or one group of points.

    Args:
        style: which colour, dash and shape; the same number is the same defence in every chart.
        name: for the legend and for screen readers.
        marks: in order.
        line: SVG path data; empty for points alone.
        bars: SVG path data of the intervals of its points; empty without any.
        promises: SVG path data from its points to what is proven about them; likewise.
    """

    style: int
    name: str
    marks: tuple[Mark, ...]
    line: str
    bars: str = ""
    promises: str = ""


@dataclass(frozen=True)
class Chart:
    """All that the template needs to draw one chart; ticks are (position, label)."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    series: tuple[Series, ...]
    extra: str = ""  # SVG path data of the frontier
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that enclose a range, about so many.

    Example:
        >>> ticks(0.13, 0.87)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> ticks(3.0, 3.0)
        [2.0, 2.5, 3.0, 3.5, 4.0]
    """
    if high <= low:
        low, high = low - 1, high + 1
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min((m for m in (1, 2, 5, 10) if m * power >= raw * 0.999), default=10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both leak (less is better) and accuracy (more is better), by leak.

    Example:
        >>> frontier([(0.9, 0.8), (0.0, 0.7), (0.5, 0.6), (0.1, 0.7)])
        [(0.0, 0.7), (0.9, 0.8)]
    """
    kept: list[tuple[float, float]] = []
    for leak, accuracy in sorted(set(points), key=lambda p: (p[0], -p[1])):
        if not kept or accuracy > kept[-1][1]:
            kept.append((leak, accuracy))
    return kept


def line_chart(title: str, lines: Sequence[tuple[int, str, Sequence[tuple[float, float]]]]) -> Chart:
    """Accuracy in per cent after each round.

    Args:
        title: of the chart.
        lines: style, name and (round, accuracy in per cent) of each defence.
    """
    drawn = [(style, name, [p for p in points if math.isfinite(p[1])]) for style, name, points in lines]
    everything = [p for _, _, points in drawn for p in points]
    first, last = min(x for x, _ in everything), max(x for x, _ in everything)
    x_at = _scale(first, last if last > first else first + 1, LEFT + 8, WIDTH - RIGHT - 8)
    y_ticks = percent_ticks([y for _, y in everything])
    y_at = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    rounds = sorted({round(t) for t in ticks(first, last) if first <= t <= last} | {round(first), round(last)})
    # Beyond some thirty rounds the marks would hide the line; the last one stays, as it is the number in the table.
    crowded = last - first > 30
    series = []
    for style, name, points in drawn:
        marks = [Mark(x_at(x), y_at(y), f"{name}: {y:.1f} % after round {x:g}") for x, y in points]
        line = "M" + "L".join(f"{m.x:.1f} {m.y:.1f}" for m in marks) if len(marks) > 1 else ""
        series.append(Series(style, name, tuple(marks[-1:] if crowded else marks), line))
    return Chart(
        title,
        "round",
        "accuracy, %",
        tuple((x_at(t), str(t)) for t in _apart(rounds, x_at, 26)),
        tuple((y_at(t), f"{t:g}") for t in y_ticks),
        tuple(series),
    )


@dataclass(frozen=True)
class Choice:
    """A defence, or one strength of it, as a point between leak and accuracy.

    Args:
        style: which colour and shape.
        name: for the legend and for screen readers.
        leak: with its interval; bounds that are NaN are not drawn.
        accuracy: likewise, in per cent.
    """

    style: int
    name: str
    leak: Interval
    accuracy: Interval


def frontier_chart(title: str, x_label: str, unit: str, choices: Sequence[Choice]) -> Chart:
    """Leak against accuracy with their intervals, and the frontier between the means.

    Args:
        title: of the chart.
        x_label: what the leak is measured in.
        unit: of the leak; `"%"` gives an axis from 0 to 100.
        choices: what there is to choose between.

    Example:
        >>> points = [Choice(0, "none", Interval(80, 70, 90, 5), Interval(91, 90, 92, 3)),
        ...           Choice(1, "noise", Interval(10, 0, 20, 5), Interval(85, 83, 87, 3))]
        >>> chart = frontier_chart("Frontier", "images that came back, %", "%", points)
        >>> chart.series[1].marks[0].title
        'noise: leak 10.0 % [0.0, 20.0], accuracy 85.0 % [83.0, 87.0]'
        >>> chart.series[1].bars.count("M")
        2
    """
    leaks = [end for one in choices for end in _ends(one.leak)]
    accuracies = [end for one in choices for end in _ends(one.accuracy)]
    x_ticks = percent_ticks(leaks, whole=True) if unit == "%" else ticks(min(leaks), max(leaks))
    y_ticks = percent_ticks(accuracies)
    x_at = _scale(x_ticks[0], x_ticks[-1], LEFT + 10, WIDTH - RIGHT - 10)
    y_at = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    series = []
    for one in choices:
        words = f"{one.name}: leak {_bounded(one.leak, unit)}, accuracy {_bounded(one.accuracy, '%')}"
        mark = Mark(x_at(one.leak.mean), y_at(one.accuracy.mean), words)
        across = [x_at(min(max(x, x_ticks[0]), x_ticks[-1])) for x in _ends(one.leak)[1:]]
        along = [y_at(min(max(y, y_ticks[0]), y_ticks[-1])) for y in _ends(one.accuracy)[1:]]
        bars = f"M{across[0]} {mark.y}H{across[1]}" if across else ""
        bars += f"M{mark.x} {along[0]}V{along[1]}" if along else ""
        series.append(Series(one.style, one.name, (mark,), "", bars))
    edge = frontier((one.leak.mean, one.accuracy.mean) for one in choices)
    path = "M" + "L".join(f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in edge) if len(edge) > 1 else ""
    return Chart(
        title,
        x_label,
        "accuracy, %",
        tuple((x_at(t), f"{t:g}") for t in x_ticks),
        tuple((y_at(t), f"{t:g}") for t in y_ticks),
        tuple(series),
        path,
    )


def _ends(interval: Interval) -> list[float]:
    """The mean, and the bounds where there are any."""
    return [interval.mean, *(bound for bound in (interval.low, interval.high) if not math.isnan(bound))]


def _bounded(interval: Interval, unit: str) -> str:
    bounds = f" [{interval.low:.1f}, {interval.high:.1f}]" if len(_ends(interval)) > 1 else ""
    return f"{interval.mean:.1f} {unit}{bounds}"


def percent_ticks(values: Sequence[float], *, whole: bool = False) -> list[float]:
    """Ticks of an axis in per cent, around the values or of the whole scale.

    Example:
        >>> percent_ticks([97.0, 99.0])
        [92.0, 94.0, 96.0, 98.0, 100.0]
    """
    if whole:
        return [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    # An axis of at least ten points, so that half a point of accuracy does not look like a cliff.
    middle, reach = (min(values) + max(values)) / 2, max(5.0, (max(values) - min(values)) / 2)
    found = ticks(middle - reach, middle + reach)
    # Ticks reach beyond the values: no axis goes on to 101 % or below zero because of it.
    return [t for t in found if 0 <= t <= 100] if min(values) >= 0 and max(values) <= 100 else found


def _apart(values: Sequence[int], at: _Scale, least: float) -> list[int]:
    """The values whose labels do not touch; the last one always stays."""
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if at(kept[-1]) - at(value) >= least:
            kept.append(value)
    return kept[::-1]


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    return _Scale(low, high if high > low else low + 1, start, end)
