"""Which pictures are shown: a strip for each line, the best pairs of it, and not more than a browser takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from seepage.audit.summary import KEYS, Line
from seepage.audit.table import Pictures
from seepage.report.pictures import Pair, best_pairs
from seepage.report.tables import key, prior

__all__ = ["Group", "Strip", "strips"]

MOST_PAIRS = 12  # in a strip
MOST_STRIPS = 60  # with pictures
MOST_CHARACTERS = 20_000_000  # of pictures in all: a file that a browser and a mail server still take


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
    """

    line: Line
    pairs: list[Pair]
    recovered: int
    total: int
    prior: float
    scored: bool = True

    @property
    def more(self) -> int:
        """How many are not shown."""
        return self.total - len(self.pairs)


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
        pairs = [] if full else best_pairs(found[i], threshold, MOST_PAIRS)
        characters += sum(pair.size for pair in pairs)
        psnr = found[i].psnr
        recovered = int((psnr > threshold).sum())
        strip = Strip(lines[i], pairs, recovered, len(psnr), prior(lines[i], "psnr"), found[i].scored)
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
