"""What pages share: their templates, and one look for all of them."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup, escape

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
    found.filters.update(decimal=words.decimal, percent=words.percent, plural=words.plural, code=_with_code)
    found.globals.update(interval_method=METHOD_OF_SHARES, change_method=METHOD)
    return found


def _with_code(text: str) -> Markup:
    """A sentence whose words between backticks are code; all else is escaped.

    Example:
        >>> _with_code("run `seepage gate` < now")
        Markup('run <code>seepage gate</code> &lt; now')
    """
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


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
