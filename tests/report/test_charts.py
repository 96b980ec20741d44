from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from seepage.metrics.intervals import Interval
from seepage.report.charts import Choice, frontier, frontier_chart, line_chart, ticks


def alone(value: float) -> Interval:
    return Interval(value, math.nan, math.nan, 1)


numbers = st.floats(-1e4, 1e4, allow_nan=False)


@given(low=numbers, span=st.floats(1e-3, 1e4))
def test_ticks_enclose_the_values_and_are_few(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert found == sorted(set(found))
    assert 2 <= len(found) <= 9
    assert found[0] <= low + 1e-6 * span
    assert found[-1] >= low + span - 1e-6 * span


@given(points=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_nobody_beats_the_frontier_and_it_beats_the_rest(points: list[tuple[float, float]]) -> None:
    edge = frontier(points)
    for leak, accuracy in points:
        assert any(x <= leak and y >= accuracy for x, y in edge)
    for leak, accuracy in edge:
        assert not any(x <= leak and y >= accuracy and (x, y) != (leak, accuracy) for x, y in points)


@given(values=st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_every_mark_lies_inside_the_frame(values: list[float]) -> None:
    points = [(float(i), y) for i, y in enumerate(values, 1)]
    charts = [
        line_chart("c", [(0, "none", points)]),
        frontier_chart("c", "leak, %", "%", [Choice(0, "none", alone(y), alone(y)) for y in values]),
        frontier_chart("c", "mean PSNR, dB", "dB", [Choice(0, "none", alone(y), alone(y)) for y in values]),
    ]
    for chart in charts:
        for mark in (m for series in chart.series for m in series.marks):
            assert chart.left <= mark.x <= chart.right
            assert chart.top - 0.2 <= mark.y <= chart.bottom + 0.2


def test_a_line_ends_at_the_last_round() -> None:
    chart = line_chart("c", [(0, "none", [(1.0, 20.0), (2.0, 40.0)]), (1, "clip", [(1.0, 10.0), (2.0, float("nan"))])])
    assert chart.series[0].marks[-1].title == "none: 40.0 % after round 2"
    assert chart.series[1].line == ""


@given(leaks=st.lists(st.tuples(*[st.floats(-20, 120)] * 3), min_size=1, max_size=8))
def test_bars_of_intervals_stay_inside_the_frame_and_meet_their_mark(leaks: list[tuple[float, ...]]) -> None:
    def interval(values: tuple[float, ...]) -> Interval:
        low, middle, high = sorted(values)
        mean = min(max(middle, 0), 100)
        return Interval(mean, min(low, mean), max(high, mean), 5)

    chart = frontier_chart(
        "f", "leak, %", "%", [Choice(i, str(i), interval(v), interval(v)) for i, v in enumerate(leaks)]
    )
    for series in chart.series:
        (mark,) = series.marks
        found = re.fullmatch(r"M([\d.]+) ([\d.]+)H([\d.]+)M([\d.]+) ([\d.]+)V([\d.]+)", series.bars)
        assert found
        left, y, right, x, below, above = map(float, found.groups())
        assert (x, y) == (mark.x, mark.y)
        assert chart.left <= left <= x <= right <= chart.right
        assert chart.bottom + 0.2 >= below >= y >= above >= chart.top - 0.2


def test_a_point_without_an_interval_has_no_bars() -> None:
    (series,) = frontier_chart("c", "leak, %", "%", [Choice(0, "none", alone(50.0), alone(80.0))]).series
    assert series.bars == ""
    assert series.marks[0].title == "none: leak 50.0 %, accuracy 80.0 %"
