from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from seepage.metrics.intervals import FEWEST, gap_interval, mean_interval, share_interval

SMALL = st.lists(st.floats(-100, 100), min_size=2, max_size=FEWEST - 1).filter(lambda v: max(v) - min(v) > 1e-3)


@given(values=SMALL, level=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_mean_of_few_values_has_students_interval(values: list[float], level: float) -> None:
    ours = mean_interval([*values, math.nan], level)
    theirs = scipy.stats.t.interval(
        level, len(values) - 1, loc=scipy.stats.tmean(values), scale=scipy.stats.sem(values)
    )
    assert (ours.low, ours.high) == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert ours.n == len(values)


@given(first=SMALL, second=SMALL)
def test_the_gap_between_few_values_has_welchs_interval(first: list[float], second: list[float]) -> None:
    ours = gap_interval(first, second)
    theirs = scipy.stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-6, abs=1e-6)


def _widened(*sizes_and_spreads: tuple[int, float], level: float = 0.95) -> float:
    """Level at which a bootstrap of normal values is as wide as Student's interval."""
    unbiased = [s**2 / (n - 1) for n, s in sizes_and_spreads]
    freedom = sum(unbiased) ** 2 / sum(v**2 / (n - 1) for v, (n, _) in zip(unbiased, sizes_and_spreads, strict=True))
    plain = sum(s**2 / n for n, s in sizes_and_spreads)
    z = scipy.stats.t.ppf((1 + level) / 2, freedom) * math.sqrt(sum(unbiased) / plain)
    return float(2 * scipy.stats.norm.cdf(z) - 1)


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_six_values_have_the_bounds_of_all_their_draws(draw: str) -> None:
    values = getattr(np.random.default_rng(6), draw)(size=6)
    means = np.array(list(itertools.product(values, repeat=6))).mean(1)  # each of the 46,656 ways to draw again
    below, at = means < values.mean(), np.isclose(means, values.mean())
    bias = scipy.stats.norm.ppf((below & ~at).mean() + at.mean() / 2)
    skewness = ((values - values.mean()) ** 3).sum() / ((values - values.mean()) ** 2).sum() ** 1.5 / 6
    z = bias + scipy.stats.norm.ppf(0.5 + np.array([-0.5, 0.5]) * _widened((6, values.std())))
    bounds = np.quantile(means, scipy.stats.norm.cdf(bias + z / (1 - skewness * z)), method="inverted_cdf")
    ours = mean_interval(values)
    assert (ours.low, ours.high) == pytest.approx(tuple(bounds), abs=0.01 * (bounds[1] - bounds[0]))


@pytest.mark.parametrize("n", [15, 80])
@pytest.mark.parametrize("draw", ["normal", "exponential", "beta"])
def test_the_mean_of_many_has_scipys_bootstrap_interval(n: int, draw: str) -> None:
    rng = np.random.default_rng(n)
    values = rng.beta(0.3, 0.9, n) if draw == "beta" else getattr(rng, draw)(size=n)
    ours = mean_interval([*values, math.nan])
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, confidence_level=_widened((n, values.std())), n_resamples=49_999, rng=3
    ).confidence_interval
    assert (ours.mean, ours.n) == (pytest.approx(values.mean()), n)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.02 * (theirs.high - theirs.low))


def test_the_gap_between_many_has_scipys_bootstrap_interval() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.exponential(size=12), rng.normal(size=40)
    ours = gap_interval(first, second)
    level = _widened((12, first.std()), (40, second.std()))
    theirs = scipy.stats.bootstrap(
        (first, second), lambda x, y, axis: y.mean(axis) - x.mean(axis), confidence_level=level, rng=3
    ).confidence_interval
    assert ours.n == 12
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.02 * (theirs.high - theirs.low))


@pytest.mark.parametrize(("draw", "mean"), [("normal", 0.0), ("exponential", 1.0)])
@pytest.mark.parametrize("n", [4, FEWEST, 10, 30])
def test_intervals_hold_the_mean_about_as_often_as_they_say(n: int, draw: str, mean: float) -> None:
    rng = np.random.default_rng(n)
    held = [
        found.low <= mean <= found.high for found in (mean_interval(getattr(rng, draw)(size=n)) for _ in range(400))
    ]
    # The percentiles of a plain bootstrap would hold it in 86 and 82 % of samples of six.
    assert np.mean(held) > (0.915 if draw == "normal" else 0.86)
    assert np.mean(held) < 0.99


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=FEWEST, max_size=40), data=st.data())
def test_the_interval_is_one_of_the_values_whatever_their_order(values: list[float], data: st.DataObject) -> None:
    found = mean_interval(values)
    assert found == mean_interval(data.draw(st.permutations(values)))
    slack = 1e-9 * max(map(abs, values))
    assert min(values) - slack <= found.low <= found.mean + slack
    assert found.mean - slack <= found.high <= max(values) + slack


def test_shares_stay_shares() -> None:
    assert mean_interval([0.0] * 8, share=True) == share_interval(0, 8)
    assert mean_interval([1.0] * 3, share=True) == share_interval(3, 3)
    assert mean_interval([0.0, 1.0] * 8, share=True) == share_interval(8, 16)
    few = mean_interval([0.0, 0.5, 1.0], share=True)
    assert (few.low, few.high) == (0.0, 1.0)
    assert mean_interval([-3.0, 0.5, 0.5], share=True).low < 0  # R², for one, may be below


def test_ten_thousand_clients_take_no_time_and_differ_little_from_students() -> None:
    values = np.random.default_rng(0).exponential(size=10_000)
    began = time.thread_time()  # of the processor: how busy the machine is does not count
    ours = mean_interval(values)
    assert time.thread_time() - began < 1
    half = 1.96 * values.std() / 100
    assert (ours.low, ours.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03 * half)


@given(n=st.integers(1, 300), data=st.data(), level=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_share_equals_scipy(n: int, data: st.DataObject, level: float) -> None:
    successes = data.draw(st.integers(0, n))
    ours = share_interval(successes, n, level)
    theirs = scipy.stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert 0 <= ours.low <= ours.mean <= ours.high <= 1


def test_few_values() -> None:
    assert mean_interval([]).n == 0
    assert math.isnan(mean_interval([math.nan]).mean)
    alone = mean_interval([3.0])
    assert (alone.mean, alone.n) == (3.0, 1)
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    same = mean_interval([2.0, 2.0, 2.0])
    assert (same.low, same.high) == (2.0, 2.0)
    assert math.isnan(gap_interval([], [1.0]).mean)
    one = gap_interval([1.0], [2.0, 3.0])
    assert (one.mean, one.n) == (1.5, 1)
    assert math.isnan(one.low)
    nothing = share_interval(0, 0)
    assert math.isnan(nothing.mean)
    assert (nothing.low, nothing.high, nothing.n) == (0.0, 1.0, 0)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 95"):
        mean_interval([1.0, 2.0], level=95)
    with pytest.raises(ValueError, match="an infinite one; cap it"):
        mean_interval([1.0, math.inf])
    with pytest.raises(ValueError, match="got 5 successes of 4"):
        share_interval(5, 4)
