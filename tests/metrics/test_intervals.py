from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from seepage.metrics.intervals import bootstrap_interval, mean_interval, share_interval


@given(
    values=st.lists(st.floats(-100, 100), min_size=2, max_size=30).filter(lambda v: max(v) - min(v) > 1e-3),
    level=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_mean_equals_scipy(values: list[float], level: float) -> None:
    ours = mean_interval([*values, math.nan], level)
    theirs = scipy.stats.t.interval(
        level, len(values) - 1, loc=scipy.stats.tmean(values), scale=scipy.stats.sem(values)
    )
    assert (ours.low, ours.high) == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert ours.n == len(values)


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


def test_bootstrap_is_near_scipys_and_the_same_every_time() -> None:
    values = np.random.default_rng(1).exponential(size=40)
    ours = bootstrap_interval([*values, math.nan])
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=9999, method="percentile", random_state=3)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)
    assert (ours.mean, ours.n) == (pytest.approx(values.mean()), 40)
    assert ours == bootstrap_interval(values)


@pytest.mark.parametrize(("values", "n"), [([], 0), ([3.0], 1), ([math.nan], 0)])
def test_bootstrap_of_too_few_values_leaves_bounds_open(values: list[float], n: int) -> None:
    found = bootstrap_interval(values)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.n == n
