"""What every method of label recovery is, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seepage.finding import NotApplicable
from seepage.pieces.labels.rounding import Rounding, round_counts
from seepage.streams import Stream
from seepage.threat import View

__all__ = ["LabelGuess", "LabelMethod", "LabelsHidden", "guess_from"]

# Mean square of a remainder that could be anything: uniform on (−½, ½).
ANYTHING = 1 / 12


class LabelsHidden(NotApplicable):
    """The labels cannot be recovered from this kind of update."""


@dataclass(frozen=True, eq=False)
class LabelGuess:
    """A method's answer for one client.

    Args:
        counts: how often each label occurs, before rounding, (classes,).
        labels: after rounding, in ascending order, (n,).
        confidence: from 0 to 1; see `guess_from`.
    """

    counts: Tensor
    labels: Tensor
    confidence: float


class LabelMethod(Protocol):
    """Knobs are frozen fields; the view, which client of it, and the randomness are arguments."""

    def __call__(self, view: View, client: int, rng: Stream) -> LabelGuess:
        """The labels of the client at position `client`."""
        ...


def guess_from(counts: Tensor, n: int, spread: Tensor | None = None, rounding: Rounding = round_counts) -> LabelGuess:
    """Round estimated counts, and say how sure that is.

    True counts are whole and not negative, so the distance to what rounding made of an estimate shows its error as
    long as that is below a half. The confidence is 1 / (1 + 12·d²), where d² is the mean square over the classes of
    that distance together with the standard error that random draws left: 1 when all counts came out whole, ½ when
    they are no nearer to whole numbers than numbers drawn at random, and less where they are negative or do not sum to
    `n`. It is no probability, and it is blind to an error that moves estimates from one whole number to another.

    Args:
        counts: real-valued estimates, (classes,).
        n: number of examples.
        spread: standard error of each estimate, (classes,); none for methods without random draws.
        rounding: to whole numbers.

    Example:
        >>> guess = guess_from(torch.tensor([2.1, -0.1, 1.0]), 3)
        >>> guess.labels, round(guess.confidence, 2)
        (tensor([0, 0, 2]), 0.93)
    """
    counts = counts.detach().cpu().double().nan_to_num()
    rounded = rounding(counts, n)
    squares = (counts - rounded) ** 2 if spread is None else (counts - rounded) ** 2 + spread.cpu().double() ** 2
    doubt = float(squares.mean()) / ANYTHING
    labels = torch.arange(len(counts)).repeat_interleave(rounded)
    return LabelGuess(counts, labels, 1 / (1 + doubt))
