"""The simulation behind docs/scale.md agrees with what can be worked out by hand."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def scale() -> Any:
    path = Path(__file__).parents[1] / "benchmarks" / "scale.py"
    spec = importlib.util.spec_from_file_location("benchmark_scale", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_scale"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_without_failures_cohorts_fill_the_gpus_one_shift_after_another(scale: Any) -> None:
    got = scale.simulate(1000, 10.0, 256, mtbf=math.inf, back=5.0, driver=0.0, retries=3)
    assert got.seconds == pytest.approx(5 + 10 * math.ceil(1000 / 256))
    assert (got.busy, got.wasted, got.failed) == (pytest.approx(10_000), 0, 0)


def test_a_slow_driver_is_the_bottleneck(scale: Any) -> None:
    got = scale.simulate(1000, 10.0, 256, mtbf=math.inf, back=0.0, driver=1.0, retries=3)
    assert got.seconds == pytest.approx(10 + 1000)


def test_failures_cost_what_an_exponential_clock_makes_them_cost(scale: Any) -> None:
    cohorts, each, mtbf, retries = 20_000, 10.0, 20.0, 2
    got = scale.simulate(cohorts, each, 16, mtbf=mtbf, back=0.0, driver=0.0, retries=retries)
    dies = 1 - math.exp(-each / mtbf)
    given_up = cohorts * dies ** (retries + 1)
    deaths = cohorts * sum(dies**k for k in range(1, retries + 2))
    until = mtbf - each * (1 - dies) / dies  # the mean of an exponential that is known to be less than `each`
    assert got.failed == pytest.approx(given_up, rel=0.05)
    assert got.busy == pytest.approx((cohorts - got.failed) * each)
    assert got.wasted == pytest.approx(deaths * until, rel=0.05)
    assert got.seconds == pytest.approx((got.busy + got.wasted) / 16, rel=0.01)
