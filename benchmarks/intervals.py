"""How often 95 % intervals hold the mean, against Student's and the percentiles of a plain bootstrap.

python benchmarks/intervals.py --samples 1500
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from seepage.metrics.intervals import Interval, mean_interval

Values: TypeAlias = NDArray[np.float64]
Method: TypeAlias = Callable[[Values], Interval]
RNG = np.random.default_rng(0)

SOURCES: dict[str, tuple[Callable[[int], Values], float]] = {
    "normal": (lambda n: RNG.normal(size=n), 0.0),
    "exponential": (lambda n: RNG.exponential(size=n), 1.0),
    "log-normal": (lambda n: RNG.lognormal(size=n), math.exp(0.5)),
    "shares, most near 0 (beta 0.2, 0.8)": (lambda n: RNG.beta(0.2, 0.8, n), 0.2),
}
"""What values are drawn from, with its mean."""


def student(values: Values) -> Interval:
    """Mean ± t standard errors."""
    n, mean = len(values), float(values.mean())
    half = float(stdtrit(n - 1, 0.975)) * float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def percentiles(values: Values) -> Interval:
    """The middle 95 % of 999 means of values drawn again."""
    n = len(values)
    low, high = np.quantile(values[RNG.integers(0, n, (999, n))].mean(1), (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high), n)


def held(method: Method, source: str, n: int, samples: int) -> float:
    """Share of samples whose interval holds the mean."""
    draw, mean = SOURCES[source]
    found = [method(draw(n)) for _ in range(samples)]
    return float(np.mean([one.low <= mean <= one.high for one in found]))


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1500)
    samples = parser.parse_args().samples
    columns: list[tuple[str, Method, int]] = [
        ("six", mean_interval, 6),
        ("ten", mean_interval, 10),
        ("thirty", mean_interval, 30),
        ("Student's, six", student, 6),
        ("plain percentiles, six", percentiles, 6),
    ]
    print("| values | " + " | ".join(title for title, *_ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for source in SOURCES:
        cells = [f"{100 * held(method, source, n, samples):.0f}" for _, method, n in columns]
        print(f"| {source} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
