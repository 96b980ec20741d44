"""Several rounds seen as one: what attacks that know nothing of rounds are shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seepage.finding import NotApplicable
from seepage.threat import Seen, View

__all__ = ["spread_rounds", "whole_span"]


def spread_rounds(rounds: Sequence[Seen], most: int) -> list[Seen]:
    """At most that many of the rounds, evenly spaced from the first to the last.

    Example:
        >>> seen = [Seen(number, {}, {}, {}, None) for number in range(10)]
        >>> [one.round for one in spread_rounds(seen, 4)]
        [0, 3, 6, 9]
    """
    if most >= len(rounds):
        return list(rounds)
    return [rounds[round(i * (len(rounds) - 1) / max(most - 1, 1))] for i in range(most)]


def whole_span(view: View) -> View:
    """The view of somebody who saw the first global model and the last answer, and nothing between them.

    The update is then Wᵗ − Wᵗ⁺ᵏ (zhao2023, section 5.3). Other clients moved the global model in the rounds between,
    so it is the client's own only as far as these agree with it or stay away.

    Raises:
        NotApplicable: for clients that send gradients, which have no last model.
    """
    if len(view.rounds) == 1:
        return view
    if view.kind == "gradient":
        raise NotApplicable(
            "expected clients that send updates or weights, whose first and last models can be compared, "
            "got clients that send gradients; attack the last round alone"
        )
    first, last = view.rounds[0], view.rounds[-1]
    update = {name: first.params[name] - (p - last.update[name]) for name, p in last.params.items()}
    return replace(view, rounds=(Seen(first.round, first.params, first.buffers, update, last.buffers_after),))
