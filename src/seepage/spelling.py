"""What somebody may have meant who wrote a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["meant"]


def meant(name: object, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: those that look like it, if any do.

    Example:
        >>> "got 'client'" + meant("client", ["clients", "watch"])
        "got 'client'; did you mean 'clients'?"
        >>> meant("geiping", ["geiping2020/smoke", "geiping2020/table1", "zhao2023/table1"])
        "; did you mean 'geiping2020/smoke' or 'geiping2020/table1'?"
        >>> meant("quite another", ["clients"])
        ''
    """
    names, wrong = list(known), str(name)
    inside = [one for one in names if len(wrong) > 2 and wrong in one]
    like = get_close_matches(wrong, names, cutoff=0.75) or inside[:3]
    return f"; did you mean {' or '.join(map(repr, like))}?" if like else ""
