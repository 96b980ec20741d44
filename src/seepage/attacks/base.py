"""What an attack is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from seepage.finding import Finding
from seepage.streams import Stream
from seepage.threat import Fact, NotKnown, View

__all__ = ["Attack", "check_needs"]


class Attack(Protocol):
    """Knobs are frozen fields; the view and the randomness are arguments."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Fact]]

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view."""
        ...


def check_needs(attack: Attack, view: View) -> None:
    """Raise `NotKnown` for the first fact that the attack cannot do without and the threat model hides."""
    for fact in sorted(attack.needs):
        if not view.knows(fact):
            raise NotKnown(view.threat, fact)
