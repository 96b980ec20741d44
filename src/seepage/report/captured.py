"""What the report says about captured updates: whether they are sound, what to expect, and what attacks believe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CapturedSection", "captured_section"]

MOST_CLIENTS = 20


@dataclass(frozen=True)
class CapturedSection:
    """As the template takes it.

    Args:
        clients: (client, round, checks, reasons), the first ones.
        more: how many are not shown.
        believed: (client, label counts in words) by the attack that counts labels.
        texts: (client, texts) by the last attack that named any.
        left_out: (attack, reason) of those that do not fit.
    """

    clients: list[tuple[str, int, list[dict[str, str]], list[dict[str, str]]]]
    more: int
    believed: list[tuple[str, str]]
    texts: list[tuple[str, list[str]]]
    left_out: list[tuple[str, str]]


def captured_section(notes: Mapping[str, dict[str, Any]]) -> CapturedSection | None:
    """What the notes of `seepage attack` say; `None` for an audit of a simulated federation.

    Example:
        >>> captured_section({"t": {"seconds": 1.0}}) is None
        True
    """
    told = [note for note in notes.values() if note.get("examinations")]
    if not told:
        return None
    examined = [(str(e["client"]), int(e["round"]), e["checks"], e["reasons"]) for e in told[0]["examinations"]]
    labels: dict[str, dict[str, int]] = next((note["labels"] for note in told if note.get("labels")), {})
    texts: dict[str, list[str]] = next((note["texts"] for note in reversed(told) if note.get("texts")), {})
    return CapturedSection(
        examined[:MOST_CLIENTS],
        len(examined[MOST_CLIENTS:]),
        [(client, ", ".join(f"{n} × {label}" for label, n in counts.items())) for client, counts in labels.items()],
        list(texts.items())[:MOST_CLIENTS],
        [(str(name), str(why)) for name, why in told[0].get("left_out", ())],
    )
