"""How sure a mean or a share is, from how many values it was made.

Student, 1908, "The Probable Error of a Mean", https://doi.org/10.1093/biomet/6.1.1, and
Wilson, 1927, "Probable Inference, the Law of Succession, and Statistical Inference",
https://doi.org/10.1080/01621459.1927.10502953, and
Efron, 1979, "Bootstrap Methods: Another Look at the Jackknife", https://doi.org/10.1214/aos/1176344552.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

__all__ = ["Interval", "bootstrap_interval", "mean_interval", "share_interval"]

DRAWS = 1999


@dataclass(frozen=True)
class Interval:
    """A mean (or share) with its confidence interval and the number of values behind it.

    Example:
        >>> print(Interval(0.5, 0.25, 0.75, 12))
        0.5 [0.25, 0.75] (n = 12)
    """

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] (n = {self.n})"


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"expected a confidence `level` between 0 and 1, got {level}; 0.95 is usual")


def mean_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """The mean with Student's t interval.

    Args:
        values: independent measurements; NaN are left out, and `n` says how many remained.
        level: how often such an interval is to hold the true mean.

    Returns:
        NaN bounds for a single value, which says nothing about the spread, and NaN throughout for none.

    Example:
        >>> print(mean_interval([18.0, 22.0, 20.0, float("nan")]))
        20 [15.03, 24.97] (n = 3)
    """
    _check_level(level)
    kept = [float(value) for value in values if not math.isnan(value)]
    if any(math.isinf(value) for value in kept):
        raise ValueError("expected finite values or NaN, got an infinite one; cap it first, as `psnr` does")
    n = len(kept)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(kept) / n
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in kept) / (n - 1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def bootstrap_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """The mean with the percentile interval of the bootstrap, which assumes nothing about how values are distributed.

    Args:
        values: independent measurements; NaN are left out, and `n` says how many remained.
        level: how often such an interval is to hold the true mean; of fewer than some ten values it holds it more
            rarely than that.

    Returns:
        The same for the same values; NaN bounds for a single value, and NaN throughout for none.

    Example:
        >>> print(bootstrap_interval([18.0, 22.0, 20.0, float("nan")]))
        20 [18, 22] (n = 3)
    """
    _check_level(level)
    kept = np.array([value for value in values if not math.isnan(value)], dtype=float)
    if len(kept) < 2:
        return Interval(float(kept[0]) if len(kept) else math.nan, math.nan, math.nan, len(kept))
    low, high = np.quantile(kept[_resampled(len(kept))].mean(1), ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(kept.mean()), float(low), float(high), len(kept))


@lru_cache(maxsize=8)
def _resampled(n: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, n, (DRAWS, n))


def share_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """A share with Wilson's score interval, which stays sensible near 0 and 1 and for few trials.

    Args:
        successes: how many of the trials succeeded.
        n: number of trials.
        level: how often such an interval is to hold the true share.

    Returns:
        The observed share as `mean`; for no trials NaN, between 0 and 1.

    Example:
        >>> print(share_interval(0, 10))
        0 [0, 0.2775] (n = 10)
    """
    _check_level(level)
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got {successes} successes of {n}")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    share, z2 = successes / n, float(ndtri((1 + level) / 2)) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # The bounds meet 0 and 1 exactly there, and rounding must not carry them past the share.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(share, low, high, n)
