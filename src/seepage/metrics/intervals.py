"""How sure a mean or a share is, from how many values it was made.

The interval of a mean is a bootstrap over its values (Efron, 1987, "Better Bootstrap Confidence Intervals",
https://doi.org/10.1080/01621459.1987.10478410: BCa), whose levels are widened such that for few normal values it is as
wide as Student's (Hesterberg, 2015, "What Teachers Should Know About the Bootstrap",
https://doi.org/10.1080/00031305.2015.1089789, and `CI.bca(expand = TRUE)` of the R package resample). No draw is made:
what the mean of values drawn again would be has a distribution, the n-fold convolution of the values' own, and a
Fourier transform gives it whole. So the same values give the same bounds, in whatever order they came, without a seed.

No bootstrap reaches beyond the values, and the range of five holds the middle of what they come from in 15 of 16 cases
only: for fewer than six values the interval is Student's (1908, https://doi.org/10.1093/biomet/6.1.1; for a difference
with Welch's degrees of freedom). Shares that are all or nothing are counts, and have Wilson's (1927,
https://doi.org/10.1080/01621459.1927.10502953). `tests/metrics/test_intervals.py` counts how often they hold the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

__all__ = ["FEWEST", "METHOD", "METHOD_OF_SHARES", "Interval", "gap_interval", "mean_interval", "share_interval"]

FEWEST = 6
"""Values of which a bootstrap can be 95 % sure: the range of five misses their median in 2 of 32 cases."""

METHOD = "bootstrap over clients (BCa); Student's t for fewer than six"
"""How intervals are made, for whatever shows them."""

METHOD_OF_SHARES = f"{METHOD}; Wilson's where every client gave all or nothing"
"""Where shares are among them."""

REACH = 10.0  # standard errors to either side of the mean, beyond which a mean drawn again is never found
PLACES = 2**14  # of the grid between them

Values: TypeAlias = NDArray[np.float64]


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


def mean_interval(values: Iterable[float], level: float = 0.95, *, share: bool = False) -> Interval:
    """The mean with its bootstrap interval; of fewer than six values Student's.

    Args:
        values: independent measurements; NaN are left out, and `n` says how many remained.
        level: how often such an interval is to hold the true mean.
        share: whether the values are shares, of which no mean is below 0 or above 1, and whose interval is that of a
            count where each is 0 or 1.

    Returns:
        NaN bounds for a single value, which says nothing about the spread, and NaN throughout for none.

    Example:
        >>> print(mean_interval([18.0, 22.0, 20.0, float("nan")]))
        20 [15.03, 24.97] (n = 3)
        >>> print(mean_interval([1.0, 2.0, 2.0, 3.0, 3.0, 13.0]))
        4 [1.668, 13] (n = 6)
        >>> print(mean_interval([0.0, 0.0, 0.0], share=True))
        0 [0, 0.5615] (n = 3)
    """
    _check_level(level)
    kept = _finite(values)
    n = len(kept)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(kept) / n
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    if share and np.isin(kept, (0.0, 1.0)).all():
        return share_interval(int(kept.sum()), n, level)
    below, above = _bounds((kept - mean) / n, level=level)
    found = Interval(mean, mean + below, mean + above, n)
    if share and kept.min() >= 0 and kept.max() <= 1:
        return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))
    return found


def gap_interval(before: Iterable[float], after: Iterable[float], level: float = 0.95) -> Interval:
    """How much higher the mean of other values is, with its interval; `n` is the number of the fewer ones.

    Returns:
        NaN bounds where one side has a single value, and NaN throughout where one has none.

    Example:
        >>> print(gap_interval([1.0, 2.0, 3.0], [4.0, 6.0, 8.0, 10.0]))
        5 [1.102, 8.898] (n = 3)
    """
    _check_level(level)
    first, second = _finite(before), _finite(after)
    n = min(len(first), len(second))
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    means = math.fsum(first) / len(first), math.fsum(second) / len(second)
    gap = means[1] - means[0]
    if n == 1:
        return Interval(gap, math.nan, math.nan, 1)
    below, above = _bounds((means[0] - first) / len(first), (second - means[1]) / len(second), level=level)
    return Interval(gap, gap + below, gap + above, n)


def _finite(values: Iterable[float]) -> Values:
    kept = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if np.isinf(kept).any():
        raise ValueError("expected finite values or NaN, got an infinite one; cap it first, as `psnr` does")
    return np.sort(kept)


def _bounds(*moves: Values, level: float) -> tuple[float, float]:
    """How far an interval reaches below and above a sum of means.

    Args:
        moves: for each mean, how far each of its values moves it: its distance to the mean, through their number.
        level: of the interval.
    """
    every = np.concatenate(moves)
    scale = float(np.abs(every).max())
    if scale == 0:
        return 0.0, 0.0
    every = every / scale
    groups = np.split(every, np.cumsum([len(group) for group in moves])[:-1])
    unbiased = [(group**2).sum() * len(group) / (len(group) - 1) for group in groups]
    freedom = sum(unbiased) ** 2 / sum(v**2 / (len(group) - 1) for v, group in zip(unbiased, groups, strict=True))
    student = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(sum(unbiased))
    if min(map(len, groups)) < FEWEST:
        return -student * scale, student * scale
    error = math.sqrt((every**2).sum())
    chances = _drawn_again([group / error for group in groups])
    # Efron's correction for bias and skewness, of the levels that give Student's interval for a normal distribution.
    bias = float(ndtri((chances[PLACES // 2 - 1] + chances[PLACES // 2]) / 2))
    skewness = float((every**3).sum()) / (6 * error**3)
    reach = [sum(len(group) * end(group) for group in groups) for end in (np.min, np.max)]  # of the values themselves
    ends = []
    for normal in (-student / error, student / error):
        place = np.searchsorted(chances, ndtr(bias + (bias + normal) / (1 - skewness * (bias + normal))))
        moved = (int(place) - PLACES // 2) * 2 * REACH / PLACES * error
        ends.append(scale * min(max(moved, float(reach[0])), float(reach[1])))
    return ends[0], ends[1]


def _drawn_again(groups: list[Values]) -> Values:
    """Chance that a sum of means, of values drawn again, is at most so many standard errors, from −REACH to REACH."""
    spectrum: NDArray[np.complex128] = np.ones(PLACES // 2 + 1, np.complex128)
    for moves in groups:
        # Every value counts at the two places around it, such that the mean stays what it is.
        place = moves * PLACES / (2 * REACH)
        left = np.floor(place)
        density = np.bincount(left.astype(np.int64) % PLACES, left + 1 - place, PLACES)
        density += np.bincount((left.astype(np.int64) + 1) % PLACES, place - left, PLACES)
        spectrum *= np.fft.rfft(density / len(moves)) ** len(moves)
    return np.cumsum(np.fft.fftshift(np.fft.irfft(spectrum, PLACES)))


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
