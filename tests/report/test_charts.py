from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seepage.report.charts import frontier, line_chart, scatter, ticks

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
        scatter("c", "leak, %", "%", [(0, "none", y, y) for y in values]),
        scatter("c", "mean PSNR, dB", "dB", [(0, "none", y, y) for y in values]),
    ]
    for chart in charts:
        for mark in (m for series in chart.series for m in series.marks):
            assert chart.left <= mark.x <= chart.right
            assert chart.top - 0.2 <= mark.y <= chart.bottom + 0.2


def test_a_line_ends_at_the_last_round() -> None:
    chart = line_chart("c", [(0, "none", [(1.0, 20.0), (2.0, 40.0)]), (1, "clip", [(1.0, 10.0), (2.0, float("nan"))])])
    assert chart.series[0].marks[-1].title == "none: 40.0 % after round 2"
    assert chart.series[1].line == ""
