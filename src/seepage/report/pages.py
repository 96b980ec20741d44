"""What pages share: their templates, and one look for all of them."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from seepage.metrics.intervals import METHOD, METHOD_OF_SHARES
from seepage.report import words

__all__ = ["environment", "packaged", "style"]


@cache
def environment() -> jinja2.Environment:
    """Templates that escape whatever comes from outside."""
    found = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.DictLoader({name: packaged(name) for name in ("template.html", "frontier.html", "charts.html")}),
    )
    found.filters.update(decimal=words.decimal, percent=words.percent, plural=words.plural)
    found.globals.update(interval_method=METHOD_OF_SHARES, change_method=METHOD)
    return found


def style(*names: str) -> Markup:
    """Style sheets, in that order; they come from this package and are not escaped.

    Example:
        >>> "--accent" in style("palette", "charts")
        True
    """
    return Markup("".join(packaged(f"{name}.css") for name in names))


def packaged(name: str) -> str:
    """A file beside this one."""
    return (resources.files("seepage.report") / name).read_text(encoding="utf-8")
