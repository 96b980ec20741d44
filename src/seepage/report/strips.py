"""Which pictures are shown: a gallery for each line, its most telling pairs, and not more than a browser takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from seepage.audit.summary import KEYS, Line
from seepage.audit.table import Pictures
from seepage.report.pictures import Pair, gallery_pairs
from seepage.report.tables import key, prior

__all__ = ["Group", "Strip", "strips"]

MOST_STRIPS = 60  # with pictures
MOST_CHARACTERS = 12_000_000  # of pictures in all: a file that a browser and a mail server still take
MOST_FILMED = 4_000_000  # of characters, after which pictures come without how they came about


@dataclass(frozen=True)
class Strip:
    """The pictures of one line.

    Args:
        line: which.
        pairs: those shown.
        recovered: how many of all are above the threshold.
        total: how many there are.
        prior: PSNR of the best guess without any leak.
        scored: whether there was a truth to hold the pictures against.
        moments: updates that were made at each frame of the pairs that were filmed.
        number: of the strip on the page.
    """

    line: Line
    pairs: list[Pair]
    recovered: int
    total: int
    prior: float
    scored: bool = True
    moments: tuple[int, ...] = ()
    number: int = 0

    @property
    def more(self) -> int:
        """How many are not shown."""
        return self.total - len(self.pairs)

    @property
    def clients(self) -> list[str]:
        """Whose pictures are there, in order of appearance."""
        return list(dict.fromkeys(pair.client for pair in self.pairs))

    @property
    def epochs(self) -> int:
        """How many local epochs have pictures of their own."""
        return max((len(pair.epochs) for pair in self.pairs), default=0)


@dataclass(frozen=True)
class Group:
    """The strips of one case."""

    case: str
    strips: list[Strip]


def strips(
    lines: Sequence[Line], rows: pd.DataFrame, pictures: Mapping[str, Pictures], threshold: float
) -> tuple[list[Group], list[Strip]]:
    """The strips by case, and those that are only named because there are too many.

    Where there are too many, those that leaked most are shown.
    """
    trials = _trials_of_lines(rows)
    found: dict[int, Pictures] = {}
    for i, line in enumerate(lines):
        if line.kind not in ("image", None):
            continue  # the attack says nothing that could be shown
        parts = [pictures[trial] for trial in trials[key(line)] if trial in pictures]
        parts = [part for part in parts if len(part.psnr) and part.truth.ndim == 4]
        if parts:
            found[i] = _joined(parts)

    def leak(i: int) -> tuple[int, float]:
        psnr = found[i].psnr
        return int((psnr > threshold).sum()), float(np.nan_to_num(psnr, nan=0.0).max())

    order = sorted(found, key=leak, reverse=True)  # stable: first come first among equals
    shown: dict[int, Strip] = {}
    left_out: dict[int, Strip] = {}
    characters = 0
    for i in order:
        full = len(shown) >= MOST_STRIPS or characters > MOST_CHARACTERS
        pairs = [] if full else gallery_pairs(found[i], threshold, filmed=characters < MOST_FILMED)
        characters += sum(pair.size for pair in pairs)
        psnr = found[i].psnr
        recovered = int((psnr > threshold).sum())
        film = found[i].footage if any(pair.way for pair in pairs) else None
        moments = () if film is None else tuple(int(moment) for moment in film.moments)
        leakless, scored = prior(lines[i], "psnr"), found[i].scored
        strip = Strip(lines[i], pairs, recovered, len(psnr), leakless, scored, moments, len(shown))
        (left_out if full else shown)[i] = strip
    groups: dict[str, list[Strip]] = {}
    for i in sorted(shown):
        groups.setdefault(lines[i].case, []).append(shown[i])
    return [Group(*group) for group in groups.items()], [left_out[i] for i in sorted(left_out)]


def _trials_of_lines(rows: pd.DataFrame) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for *names, trial in rows[[*KEYS, "trial"]].drop_duplicates().itertuples(index=False):
        found.setdefault(tuple(map(str, names)), []).append(str(trial))
    return found


def _joined(parts: Sequence[Pictures]) -> Pictures:
    # Clients of one line share a data set, so their images share a shape.
    parts = [part for part in parts if part.truth.shape[1:] == parts[0].truth.shape[1:]]
    return Pictures.join(parts)
