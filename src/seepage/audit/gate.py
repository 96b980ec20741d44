"""The gate: rows against what an organisation accepts, as an exit code."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import pandas as pd

from seepage.audit.summary import AS_CAPTURED, over_clients
from seepage.audit.values import SpecError, build, read_table

__all__ = ["Limit", "Policy", "Verdict", "exit_code", "gate", "read_policy"]


LINE = ["case", "attack", "attack_settings", "defence", "defence_settings", "threat"]


@dataclass(frozen=True)
class Limit:
    """One thing that must hold.

    Args:
        metric: as `seepage list metrics` names it, or `accuracy`.
        at_most: the statistic must not be above this.
        at_least: the statistic must not be below this.
        statistic: of each attack on each defence under each threat model and in each case that match: mean, max, min,
            p95 (95th percentile), or `last` (the last round's). The limit must hold for every one of them.
        attack: only rows of attacks that match this pattern (`*` and `?` as in file names).
        defence: likewise.
        threat: likewise.
        case: likewise.
    """

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    statistic: Literal["mean", "max", "min", "p95", "last"] = "mean"
    attack: str = "*"
    defence: str = "*"
    threat: str = "*"
    case: str = "*"

    def __post_init__(self) -> None:
        if self.at_most is None and self.at_least is None:
            raise ValueError("expected `at_most` or `at_least`, got neither")


@dataclass(frozen=True)
class Policy:
    """All limits of an organisation."""

    limit: tuple[Limit, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of one limit.

    Args:
        limit: the limit.
        value: the statistic where it is worst; NaN when it could not be measured.
        outcome: `"within"`, `"broken"` or `"unmeasured"`.
        why: a sentence.
    """

    limit: Limit
    value: float
    outcome: Literal["within", "broken", "unmeasured"]
    why: str


def read_policy(path: Path) -> Policy:
    """Read a policy file.

    Raises:
        SpecError: naming the file, the key and what was expected.
    """
    policy = build(Policy, read_table(path, "a policy file"), str(path))
    if not policy.limit:
        raise SpecError(f"{path}: expected at least one [[limit]], got none")
    return policy


def gate(rows: pd.DataFrame, policy: Policy) -> list[Verdict]:
    """Every limit of the policy held against the rows.

    Example:
        >>> rows = pd.DataFrame([{"metric": "psnr", "value": v, "attack": "a", "defence": "none", "threat": "t",
        ...                       "case": "c", "client": "0", "item": "0", "outcome": "reduced"} for v in (10.0, 30.0)])
        >>> [v.outcome for v in gate(rows, Policy((Limit("psnr", at_most=25.0), Limit("ssim", at_most=0.5))))]
        ['within', 'unmeasured']
    """
    return [_hold(limit, rows) for limit in policy.limit]


def exit_code(verdicts: list[Verdict]) -> int:
    """0 within limits, 1 a limit broken, 2 could not be measured.

    Example:
        >>> exit_code([])
        0
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    return 1 if "broken" in outcomes else 2 if "unmeasured" in outcomes else 0


def _hold(limit: Limit, rows: pd.DataFrame) -> Verdict:
    keep = pd.Series(True, index=rows.index, dtype=bool)
    for column in ("attack", "defence", "threat", "case"):
        pattern = getattr(limit, column)
        keep &= pd.Series([fnmatchcase(str(name), pattern) for name in rows[column]], index=rows.index, dtype=bool)
    # What attacks a capture is chosen for it, some to see whether they fit; in an audit somebody asked for each.
    unfit = (rows["defence"] == AS_CAPTURED) & rows["outcome"].astype(str).str.startswith("not applicable")
    failed = rows[keep & (rows["metric"] == "none") & ~unfit]
    values = rows[keep & (rows["metric"] == limit.metric)]
    if len(failed):
        why = f"{len(failed)} trials gave no number, the first because: {failed['outcome'].iloc[0]}"
        return Verdict(limit, math.nan, "unmeasured", why)
    if values.empty:
        known = sorted(set(rows["metric"]) - {"none"})
        return Verdict(limit, math.nan, "unmeasured", f"no row of {limit.metric!r} matches; there are {known}")
    if limit.statistic == "last":
        values = _last(values)
        if values.empty:
            return Verdict(limit, math.nan, "unmeasured", f"{limit.metric!r} is not measured round by round")
    if values["value"].isna().any():
        why = f"{int(values['value'].isna().sum())} of {len(values)} values of {limit.metric!r} are not numbers"
        return Verdict(limit, math.nan, "unmeasured", why)
    # Each attack, defence, threat model and case by itself: a weak attack makes a strong one no weaker.
    named = values.assign(**{column: "" for column in LINE if column not in values}).fillna(dict.fromkeys(LINE, ""))
    lines = dict(list(named.groupby(LINE, sort=False)))
    found = {line: _statistic(part, limit.statistic) for line, part in lines.items()}
    highest, lowest = max(found, key=found.__getitem__), min(found, key=found.__getitem__)
    outcome: Literal["within", "broken"] = "within"
    worst, beyond = lowest if limit.at_most is None else highest, ""
    if limit.at_most is not None and found[highest] > limit.at_most:
        outcome, worst, beyond = "broken", highest, f" is above {limit.at_most:g}"
    elif limit.at_least is not None and found[lowest] < limit.at_least:
        outcome, worst, beyond = "broken", lowest, f" is below {limit.at_least:g}"
    attacked = lines[worst][lines[worst]["attack"] != "none"]  # accuracy has rounds in the place of clients
    whose = f" ({_called(worst, list(lines))})" if len(lines) > 1 else ""
    sure = _how_sure(attacked, limit) if limit.statistic == "mean" else ""
    return Verdict(limit, found[worst], outcome, f"{found[worst]:.4g}{beyond}{whose}{sure}")


def _called(line: tuple[Hashable, ...], lines: list[tuple[Hashable, ...]]) -> str:
    """A line in words, with what tells it from the others."""
    case, attack, knobs, defence, strength, threat = line
    differ = {column: len({other[i] for other in lines}) > 1 for i, column in enumerate(LINE)}
    by = f"{attack} ({knobs})" if differ["attack_settings"] and knobs else attack
    on = f"{defence} ({strength})" if differ["defence_settings"] and strength else defence
    who = "" if attack == "none" else f"{by} as {threat}, "
    return f"{who}{'no defence' if defence == 'none' else on}{f', case {case}' if differ['case'] else ''}"


def _how_sure(values: pd.DataFrame, limit: Limit) -> str:
    """The interval over clients, and that another sample of them could have ended on the other side of the limit."""
    found = over_clients(values, limit.metric)
    if math.isnan(found.low):
        return ""
    ends = [end for end in (limit.at_least, limit.at_most) if end is not None]
    either = ", to both sides of the limit" if any(found.low <= end < found.high for end in ends) else ""
    unit = "clients" if values["client"].nunique() > 1 else "values of one client"
    return f"; 95 % interval [{found.low:.4g}, {found.high:.4g}] over {found.n} {unit}{either}"


def _statistic(values: pd.DataFrame, name: str) -> float:
    if name == "p95":
        return float(values["value"].quantile(0.95))
    return float(values["value"].agg("mean" if name == "last" else name))


def _last(values: pd.DataFrame) -> pd.DataFrame:
    """The rows of each trial's last round; federations may be of different length."""
    number = pd.to_numeric(values["item"], errors="coerce")
    trials = [values[column] for column in ("case", "attack", "defence", "threat", "trial") if column in values]
    return values[number == number.groupby(trials).transform("max")]
