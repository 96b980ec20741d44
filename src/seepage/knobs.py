"""Knobs: the fields of attacks, defences, recipes and federations, and how one comes later without undoing results."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, TypeVar

__all__ = ["added", "knobs"]

Knob = TypeVar("Knob")


def added(default: Knob) -> Knob:
    """The default of a knob that came later, at which all is done as before.

    Trials that were finished without the knob stay finished: at its default it is no part of their digest. So this
    default must never change.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Search:
        ...     steps: int
        ...     slowly: bool = added(False)
        >>> knobs(Search(3)), knobs(Search(3, slowly=True))
        ({'steps': 3}, {'steps': 3, 'slowly': True})
    """
    return field(default=default, metadata={"added": True})


def knobs(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, but for one that was `added` later and stands at its default.

    So what was done before there was such a knob, and what is done without using it now, read the same.
    """
    found = [(f, getattr(value, f.name)) for f in fields(value) if f.init]
    return {f.name: knob for f, knob in found if not f.metadata.get("added") or knob != f.default}
