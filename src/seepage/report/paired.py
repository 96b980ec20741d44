"""Whether methods of one run differ by more than chance, client by client.

The same clients met every defence and every attack, so each is its own control: differences are taken within clients,
and `seepage.audit.differences` says how sure they are and corrects for how many are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from seepage.audit.differences import Difference, differences
from seepage.audit.summary import KEYS, MEASURES, Line
from seepage.report import words
from seepage.report.tables import key

__all__ = ["Contrast", "contrasts"]

MOST = 40  # comparisons: each is resampled ten thousand times


@dataclass(frozen=True)
class Contrast:
    """Two lines of a run that differ in one thing.

    Args:
        case: in which case.
        before: the one.
        after: the other.
        under: what both have in common.
        found: how they differ.
    """

    case: str
    before: str
    after: str
    under: str
    found: Difference


def contrasts(
    rows: pd.DataFrame, lines: list[Line], labels: Mapping[tuple[str, str], str]
) -> tuple[list[Contrast], int]:
    """Each defence beside none under the same attack, and each attack beside the first one without a defence.

    Returns:
        The first ones, and how many were left out.
    """
    groups = {tuple(map(str, names)): part for names, part in rows.groupby(KEYS, sort=False)}
    pairs = [pair for pair in _pairs(lines, labels) if all(key(line) in groups for line in pair[:2])]
    sides: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    for number, (first, second, *_) in enumerate(pairs[:MOST]):
        for side, line in zip(sides, (first, second), strict=True):
            part = groups[key(line)]
            part = part[part["metric"] == MEASURES[line.kind or "image"]]
            side.append(part.assign(case=str(number), attack="", defence="", threat=""))
    if not sides[0]:
        return [], 0
    found = differences(pd.concat(sides[0]), pd.concat(sides[1]), [*MEASURES.values()])
    named = [(pairs[int(difference.case)], difference) for difference in found]
    return [Contrast(pair[0].case, *pair[2:], difference) for pair, difference in named], len(pairs[MOST:])


def _pairs(lines: list[Line], labels: Mapping[tuple[str, str], str]) -> Iterator[tuple[Line, Line, str, str, str]]:
    def met(line: Line) -> tuple[str, ...]:
        return line.case, line.attack, line.attack_settings, line.threat

    plain = {met(line): line for line in lines if line.defence == "none" and line.kind}
    for line in lines:
        base = plain.get(met(line))
        if base is not None and line.defence != "none" and line.kind == base.kind:
            attack = f"{labels[line.attack, line.attack_settings]} as {line.threat}"
            yield base, line, "no defence", words.defence_label(line.defence, line.defence_settings), attack
    firsts: dict[tuple[str, str, str], Line] = {}
    for line in plain.values():
        base = firsts.setdefault((line.case, line.threat, str(line.kind)), line)
        if base is not line:
            first, second = (labels[one.attack, one.attack_settings] for one in (base, line))
            yield base, line, first, second, f"no defence, as {line.threat}"
