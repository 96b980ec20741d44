"""What to do now: a few sentences for somebody who has to decide, each with the reason in what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from seepage.audit.diagnosis import Cause
from seepage.audit.gate import Verdict
from seepage.audit.summary import AS_CAPTURED, Kind
from seepage.report.headline import PLURALS, Tally
from seepage.report.words import plural
from seepage.threat import Fact, ThreatModel

__all__ = ["advice"]

FEW = 20
"""Clients, below which an interval over them is seldom narrow enough to decide by."""


def advice(
    rows: pd.DataFrame,
    every: Mapping[Kind, Sequence[Tally]],
    threats: Mapping[str, ThreatModel],
    causes: Mapping[Cause, int],
    verdicts: Sequence[Verdict],
) -> list[str]:
    """What follows from the results, most important first.

    Args:
        rows: as `Table.read` gives them.
        every: from `every_tally`.
        threats: whom the rows name, and what they know.
        causes: from `count_causes`.
        verdicts: of the gate, where there is a policy.
    """
    tallies = {kind: part for kind, part in every.items() if any(not math.isnan(one.mean) for one in part)}
    if not tallies:
        return ["Nothing was scored, so nothing follows from this page yet: see why below, and run the audit again."]
    attacked = rows[(rows["attack"] != "none") & (rows["metric"] != "none")]
    words = [*_about_defences(tallies), *_about_who_attacks(attacked, threats)]
    if stuck := causes.get(Cause.STUCK, 0):
        words.append(
            f"Give the attacks more steps or restarts before you rely on a low number: in {plural(stuck, 'update')} "
            "the search stopped short."
        )
    clients = int(attacked["client"].nunique())
    if clients < FEW:
        words.append(f"Attack more clients, which makes the intervals narrower: these are {plural(clients, 'client')}.")
    if not verdicts:
        words.append("Write down what you accept as a policy, and hold every version against it with `seepage gate`.")
    return words


def _about_defences(tallies: Mapping[Kind, Sequence[Tally]]) -> list[str]:
    words = []
    unmeasured = []
    for kind, part in tallies.items():
        leaking = [one for one in part if one.leaks]
        if not leaking:
            continue
        defended = [one for one in part if one.defence not in ("none", AS_CAPTURED)]
        tight = [one for one in defended if not one.leaks]
        if tight:
            best = min(tight, key=lambda one: (math.inf if math.isnan(one.cost) else one.cost, one.share))
            which = "a defence" if math.isnan(best.cost) or len(tight) == 1 else "the cheapest defence"
            result = "none came back" if best.counts else "attacks got no more than a guess"
            words.append(f"Against the loss of {PLURALS[kind]}, {best.label} is {which} that held here: {result}.")
        elif defended:
            words.append(
                f"None of the defences measured here keeps {PLURALS[kind]} in: do not rely on them for that. Measure "
                "stronger ones, or others, with `seepage frontier`."
            )
        else:
            unmeasured.append(PLURALS[kind])
    if unmeasured:
        words.append(
            f"No defence was measured against the loss of {' and '.join(unmeasured)}: audit the same network with "
            "[[defence]] tables, or with `seepage frontier`, which compares many strengths."
        )
    if not words:
        counted = any(one.counts for part in tallies.values() for one in part)
        found = "Nothing came back here." if counted else "No more came back here than a guess finds."
        words.append(f"{found} That is true of these attacks alone: try stronger ones before you rely on it.")
    return words


def _about_who_attacks(attacked: pd.DataFrame, threats: Mapping[str, ThreatModel]) -> list[str]:
    """A defence looks better to an attacker who does not know of it."""
    defended = attacked[~attacked["defence"].isin(["none", AS_CAPTURED])]
    if defended.empty or any(Fact.DEFENCE in threats[str(name)].facts for name in defended["threat"].unique()):
        return []
    return [
        "Attack once more as somebody who knows of the defence (threat model `informed-server`): these attackers did "
        "not, and one who does may get more."
    ]
