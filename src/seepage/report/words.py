"""Numbers and names as a reader meets them; what is missing is a dash."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from seepage.audit.diagnosis import Cause
from seepage.metrics.intervals import Interval

__all__ = [
    "DASH",
    "among",
    "between",
    "counted",
    "decimal",
    "defence_label",
    "distinguished",
    "percent",
    "plural",
    "seconds",
    "significant",
    "with_settings",
]

DASH = "–"


def decimal(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """A number with so many digits after the point.

    Example:
        >>> decimal(12.345), decimal(-0.04, sign=True), decimal(-1.5, sign=True), decimal(math.nan)
        ('12.3', '0.0', '−1.5', '–')
    """
    if not math.isfinite(value):
        return DASH
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    if float(text) == 0:
        return text.lstrip("+-")
    return text.replace("-", "−")


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent; a share that is neither 0 nor 1 is not rounded to look as if it were.

    Example:
        >>> percent(0.25), percent(0.001), percent(0.9999), percent(0.8312, 1), percent(math.nan)
        ('25 %', '<1 %', '>99 %', '83.1 %', '–')
    """
    if not math.isfinite(share):
        return DASH
    text = f"{100 * share:.{digits}f}"
    if float(text) == 0 and share > 0:
        return f"<{10**-digits:g} %"
    if float(text) == 100 and share < 1:
        return f">{100 - 10**-digits:g} %"
    return f"{text} %".replace("-", "−")


def between(interval: Interval | None, digits: int = 1) -> str:
    """The bounds of an interval, or nothing where a single value leaves them open.

    Example:
        >>> between(Interval(2.0, 1.25, 2.75, 5), 2), between(Interval(2.0, math.nan, math.nan, 1))
        ('[1.25, 2.75]', '')
    """
    if interval is None or math.isnan(interval.low):
        return ""
    return f"[{decimal(interval.low, digits)}, {decimal(interval.high, digits)}]"


def significant(interval: Interval, digits: int = 4) -> tuple[str, str]:
    """Mean and bounds with so many significant digits, for metrics of any scale.

    Example:
        >>> significant(Interval(0.00012345, -1e-05, 0.0002, 5))
        ('0.0001234', '[−1e-05, 0.0002]')
    """
    ends = interval.mean, interval.low, interval.high
    mean, low, high = (re.sub("^-", "−", f"{value:.{digits}g}") for value in ends)
    return DASH if math.isnan(interval.mean) else mean, "" if math.isnan(interval.low) else f"[{low}, {high}]"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> plural(1, "image"), plural(12, "image")
        ('1 image', '12 images')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def among(found: int, total: int, noun: str) -> str:
    """How many of how many.

    Example:
        >>> among(3, 12, "image"), among(1, 1, "image")
        ('3 of 12 images', '1 of 1 image')
    """
    return f"{found} of {plural(total, noun)}"


def counted(causes: Mapping[Cause, int], total: int, defence: str = "") -> list[str]:
    """Causes by name, each with the number of updates it applies to where these are not all.

    Args:
        causes: with the number of updates.
        total: updates in all.
        defence: which one, where there is only one.

    Example:
        >>> counted({Cause.STUCK: 3, Cause.DEFENDED: 1}, 3, "top-k")
        ['search stopped short', 'defended by top-k (1 of 3)']
    """
    names = {cause: cause.label for cause in causes}
    if defence:
        names[Cause.DEFENDED] = f"{Cause.DEFENDED.label} by {defence}"
    return [names[cause] if n == total else f"{names[cause]} ({n} of {total})" for cause, n in causes.items()]


def seconds(value: float) -> str:
    """A duration.

    Example:
        >>> seconds(4.21), seconds(200), seconds(7260)
        ('4.2 s', '3 min 20 s', '2 h 1 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def defence_label(name: str, settings: str) -> str:
    """A defence with its settings.

    Example:
        >>> defence_label("gaussian-noise", "std=0.01"), defence_label("none", "")
        ('gaussian-noise (std=0.01)', 'no defence')
    """
    return "no defence" if name == "none" else with_settings(name, settings)


def with_settings(name: str, settings: str) -> str:
    """A name with its settings; what is off or left empty goes without saying.

    Example:
        >>> with_settings("top-k", "share=0.05, per_tensor=False, strict=False")
        'top-k (share=0.05)'
        >>> with_settings("soteria", "share=0.8, layer=, draws=32")
        'soteria (share=0.8, draws=32)'
    """
    said = _OFF.sub("", settings).removeprefix(", ")
    return f"{name} ({said})" if said else name


_OFF = re.compile(r"(^|, )\w+=(False|None|)(?=[,;]|$)")


def distinguished(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A short label for every (name, settings): the name, and those settings in which namesakes differ.

    Example:
        >>> distinguished([("a", "tv=0.1, steps=10"), ("a", "tv=0.2, steps=10"), ("b", "lr=1")])
        {('a', 'tv=0.1, steps=10'): 'a (tv=0.1)', ('a', 'tv=0.2, steps=10'): 'a (tv=0.2)', ('b', 'lr=1'): 'b'}
    """
    unique = list(dict.fromkeys(pairs))
    labels = {}
    for name, settings in unique:
        namesakes = [_parts(other) for same, other in unique if same == name]
        own = [part for part in _parts(settings) if not all(part in parts for parts in namesakes)]
        labels[name, settings] = f"{name} ({', '.join(own)})" if own else name
    return labels


def _parts(settings: str) -> list[str]:
    # A comma inside a value, as in a tuple, is not followed by `name=`.
    return re.split(r"[,;] (?=\w+=)", settings) if settings else []
