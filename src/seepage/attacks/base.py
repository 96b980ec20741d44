"""What an attack is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from seepage.finding import Finding, NotApplicable
from seepage.streams import Stream
from seepage.threat import Fact, NotKnown, View

__all__ = ["READ_TOKENS", "Attack", "Developing", "check_needs"]

READ_TOKENS = frozenset({"count-labels", "dager", "lamp", "source-inference", "tag", "token-bag"})
"""Attacks that do without a derivative of the input, which token ids do not have, or take that of their embeddings."""


class Attack(Protocol):
    """Knobs are frozen fields; the view and the randomness are arguments.

    Attributes:
        name: as in tables and on the command line.
        needs: the facts without which it cannot begin.
        presets: named sets of knobs, such as `as_paper` and `as_code` where a paper's text and its released code
            differ; an experiment names one with `preset = "as_code"` and may change single knobs beside it.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Fact]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view."""
        ...


@runtime_checkable
class Developing(Protocol):
    """An attack that develops what a search found, such as by sharpening it.

    Those that differ in nothing else share the search: `attack(view, rng)` is what `attack.developer(view)` makes of
    `attack.search(view, rng)`.
    """

    @property
    def search(self) -> Attack:
        """The same attack without the development."""
        ...

    def developer(self, view: View) -> Callable[[Finding], Finding]:
        """What develops a finding; what it needs is looked for here, before the search."""
        ...


def check_needs(attack: Attack, view: View) -> None:
    """Raise `NotKnown` for the first fact that the attack cannot do without and the threat model hides.

    Raises:
        NotApplicable: when the inputs are token ids and the attack is made for numbers.
    """
    for fact in sorted(attack.needs):
        if not view.knows(fact):
            raise NotKnown(view.threat, fact)
    if view.task.spec.is_text and attack.name not in READ_TOKENS:
        raise NotApplicable(
            f"expected inputs that are numbers, which {attack.name!r} differentiates, got token ids; "
            f"attack text with one of {sorted(READ_TOKENS)}"
        )
