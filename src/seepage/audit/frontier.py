"""The frontier between leakage and accuracy: each strength of each defence as a point with its intervals."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch

from seepage.audit.experiment import Case, Experiment, Trial
from seepage.audit.gate import Limit, Policy, Verdict, gate
from seepage.audit.run import defence_name, settings_text
from seepage.audit.scene import set_scene
from seepage.audit.summary import HEADLINES, MEASURES, answers, over_clients, read_rows
from seepage.audit.values import SpecError, digest
from seepage.metrics.intervals import Interval, mean_interval
from seepage.metrics.reconstruction_bound import best_guess, reconstruction_bound
from seepage.metrics.registry import METRICS
from seepage.threat import Fact, ThreatModel

__all__ = [
    "Bound",
    "Point",
    "as_frame",
    "bounds",
    "cheapest",
    "points",
    "read_seeds",
    "seed_folder",
    "seeded",
    "told_first",
]

MOST_GUESSED = 2000  # held-out images among which the best guess is looked for


@dataclass(frozen=True)
class Bound:
    """What differential privacy proves about a defence.

    Args:
        prior: the chance that a guess without the messages counts as brought back, κ.
        most: the chance that any attack on them brings an image back is at most this, γ.
    """

    prior: float
    most: float


@dataclass(frozen=True)
class Point:
    """One strength of one defence.

    Args:
        case: name of the case.
        defence: name.
        settings: its knobs.
        leak: of the strongest attack, over clients and seeds.
        attack: which one that is.
        threat: and who makes it.
        accuracy: of the global model after the last round, over seeds.
        wire_bytes: of one message; NaN where it was not measured.
        epsilon: that the defence promises; NaN without a promise.
        bound: on what any attack can do; `None` where the defence proves nothing.
        verdicts: of the policy, where there is one.
    """

    case: str
    defence: str
    settings: str
    leak: Interval
    attack: str
    threat: str
    accuracy: Interval
    wire_bytes: float
    epsilon: float
    bound: Bound | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def within(self) -> bool:
        """Whether it keeps every limit of a policy."""
        return bool(self.verdicts) and all(verdict.outcome == "within" for verdict in self.verdicts)


def seeded(
    experiment: Experiment, seeds: int, *, cases: Collection[str] | None = None, accuracy_of: str | None = None
) -> list[Experiment]:
    """The experiment once for each seed, with accuracy, and with attackers who know the defence beside the others.

    Args:
        experiment: as read.
        seeds: how many.
        cases: these alone.
        accuracy_of: accuracy is measured in this case alone, by an experiment of its own, which attacks nothing.

    Example:
        >>> from seepage.audit.experiment import parse
        >>> table = {"attack": ["inverting-gradients"], "defence": [{"name": "top-k", "share": [0.1, 0.5]}]}
        >>> first, second = seeded(parse(table, "here"), 2)
        >>> second.seed, [threat.name for threat in first.cases[0].threats], len(first.cases[0].defences)
        (1, ['honest-server', 'honest-server, told the defence'], 2)
    """
    known = [case.name for case in experiment.cases]
    for name in (*(cases or ()), *([] if accuracy_of is None else [accuracy_of])):
        if name not in known:
            raise SpecError(f"{experiment.name}: expected a case of {known}, got {name!r}")
    attacked = [c for c in experiment.cases if c.name != accuracy_of and (not cases or c.name in cases)]
    if not any(case.attacks for case in attacked):
        raise SpecError(f"{experiment.name}: expected at least one [[attack]], got none: leakage has to be measured")
    whole = replace(experiment, accuracy=accuracy_of is None, cases=tuple(map(_with_aware, attacked)))
    learnt = tuple(replace(c, attacks=(), labels=()) for c in experiment.cases if c.name == accuracy_of)
    parts = [whole, *([replace(experiment, accuracy=True, cases=learnt)] if learnt else [])]
    return [replace(part, seed=experiment.seed + i) for i in range(seeds) for part in parts]


def _with_aware(case: Case) -> Case:
    if any(Fact.DEFENCE in threat.facts for threat in case.threats):
        return case
    told = [ThreatModel(f"{t.name}, told the defence", t.facts | {Fact.DEFENCE}, t.about) for t in case.threats]
    return replace(case, threats=(*case.threats, *told))


def seed_folder(folder: Path, experiment: Experiment) -> Path:
    """Where the results of one seed are, a folder of results like any other."""
    alone = "" if any(case.attacks for case in experiment.cases) else "-accuracy"
    return folder / f"seed-{experiment.seed}{alone}"


def read_seeds(folder: Path, experiments: Sequence[Experiment]) -> pd.DataFrame:
    """The rows of all seeds."""
    return pd.concat([read_rows(seed_folder(folder, e))[1] for e in experiments], ignore_index=True)


def bounds(
    experiment: Experiment,
    device: torch.device,
    data: str | Path | None,
    metric: str = "recovered",
) -> dict[tuple[str, str, str], Bound]:
    """What is proven about the messages that are attacked, by case, defence and its settings.

    It is about images that count as brought back, so that the chance of a guess can be measured: on held-out images.
    """
    found: dict[tuple[str, str, str], Bound] = {}
    if metric != "recovered":
        return found
    trials = {(t.case, defence_name(t.defence), settings_text(t.defence)): t for t in experiment.trials()}
    for key, trial in trials.items():
        if (bound := _bound(trial, device, data)) is not None:
            found[key] = bound
    return found


def _bound(trial: Trial, device: torch.device, data: str | Path | None) -> Bound | None:
    scene = set_scene(trial, device, data)
    spec, rounds = scene.setting.task.spec, len(trial.watch.rounds)
    defence = trial.defence.fitted(scene.setting.task.params)
    sizes = sorted({len(examples) for examples in scene.clients})
    mechanisms = [(size, defence.mechanism(trial.recipe, size, rounds)) for size in sizes]
    if not spec.is_image or any(mechanism is None for _, mechanism in mechanisms):
        return None
    reach = (spec.high - spec.low) * 10 ** (-trial.threshold / 20)
    key = f"{digest((trial.data, trial.model.pretraining))} {reach}"
    if key not in _GUESSES:
        _GUESSES[key] = best_guess(spec.pixels(scene.held_out.x[:MOST_GUESSED]).cpu(), reach)
    worst = []
    for size, mechanism in mechanisms:
        assert mechanism is not None
        prior = min(1.0, size * _GUESSES[key])  # of the answers to a batch any one may be the example
        worst.append(Bound(prior, _cached_bound(prior, mechanism.noise, mechanism.share, mechanism.steps)))
    return max(worst, key=lambda bound: bound.most)


_GUESSES: dict[str, float] = {}
_cached_bound = lru_cache(maxsize=256)(reconstruction_bound)


def told_first(rows: pd.DataFrame) -> str:
    """The metric of leakage that what was attacked calls for: images that came back, cells of a table, or tokens.

    Example:
        >>> from seepage.audit.summary import KEYS
        >>> line = dict.fromkeys(KEYS, "a")
        >>> told_first(pd.DataFrame([{**line, "metric": name} for name in ("label_accuracy", "cell_accuracy")]))
        'cell_accuracy'
    """
    return next((HEADLINES[kind] for kind in MEASURES if not answers(rows, kind).empty), "recovered")


def points(
    rows: pd.DataFrame,
    metric: str = "recovered",
    policy: Policy | None = None,
    proven: dict[tuple[str, str, str], Bound] | None = None,
    accuracy_of: str | None = None,
) -> list[Point]:
    """One point for each strength of each defence, in order of appearance.

    Args:
        rows: of all seeds.
        metric: what leakage is measured in.
        policy: limits that each point is held against.
        proven: bounds, as `bounds` gives them.
        accuracy_of: a case whose accuracy stands for that of all, as papers have it that attack one data set and learn
            another.
    """
    if metric not in METRICS:
        raise SpecError(f"--metric: expected one that `seepage list metrics` names, got {metric!r}")
    if accuracy_of is not None:
        if accuracy_of not in set(rows["case"]):
            raise SpecError(f"--accuracy-of: expected a case of {sorted(set(rows['case']))}, got {accuracy_of!r}")
        rows = _learnt_elsewhere(rows, accuracy_of)
    found = []
    for (case, defence, knobs), part in rows.groupby(["case", "defence", "defence_settings"], sort=False):
        leaks = {
            (str(attack), str(threat)): over_clients(same, metric, ("seed", "client"))
            for (attack, threat), same in part[part["metric"] == metric].groupby(["attack", "threat"], sort=False)
        }
        learnt = part[part["metric"] == "accuracy"]
        measured = {who: leak for who, leak in leaks.items() if not math.isnan(leak.mean)}
        if not measured or learnt.empty:
            continue
        sign = 1 if METRICS[metric].higher_is_more_leakage else -1
        attack, threat = max(measured, key=lambda who: sign * measured[who].mean)
        found.append(
            Point(
                str(case),
                str(defence),
                str(knobs),
                measured[attack, threat],
                attack,
                threat,
                _last_round(learnt),
                float(part.loc[part["metric"] == "wire_bytes", "value"].mean()),
                float(part.loc[part["metric"] == "epsilon", "value"].mean()),
                (proven or {}).get((str(case), str(defence), str(knobs))),
                () if policy is None else tuple(_worst(part, limit) for limit in policy.limit),
            )
        )
    if not found:
        known = sorted(set(rows["metric"]) & set(METRICS))
        raise SpecError(f"--metric: expected one that the attacks give, of {known}, got {metric!r}")
    return found


def _learnt_elsewhere(rows: pd.DataFrame, case: str) -> pd.DataFrame:
    learnt = rows["metric"] == "accuracy"
    attacked = [name for name in rows["case"].unique() if name != case]
    copies = [rows[learnt & (rows["case"] == case)].assign(case=name) for name in attacked]
    return pd.concat([rows[~learnt & (rows["case"] != case)], *copies], ignore_index=True)


def _worst(rows: pd.DataFrame, limit: Limit) -> Verdict:
    """A limit held against each attack by each attacker alone: weak ones would dilute a mean."""
    learnt, attacked = rows[rows["attack"] == "none"], rows[rows["attack"] != "none"]
    verdicts = []
    for _, same in attacked.groupby(["attack", "threat"], sort=False):
        (verdict,) = gate(pd.concat([same, learnt]), Policy((limit,)))
        lost = (same["metric"] == "none") | ((same["metric"] == limit.metric) & same["value"].isna())
        if verdict.outcome != "unmeasured" or lost.any():  # else it says nothing of this metric
            verdicts.append(verdict)
    order = ["broken", "unmeasured", "within"]
    return min(verdicts or gate(rows, Policy((limit,))), key=lambda verdict: order.index(verdict.outcome))


def _last_round(learnt: pd.DataFrame) -> Interval:
    number = pd.to_numeric(learnt["item"])
    return mean_interval(learnt.loc[number == number.max(), "value"], share=True)


def cheapest(found: Sequence[Point]) -> dict[str, Point | None]:
    """For each case the point within the policy that costs the least accuracy, and of equals the fewest bytes."""
    return {
        case: max(
            (point for point in found if point.case == case and point.within),
            key=lambda point: (point.accuracy.mean, -point.wire_bytes),
            default=None,
        )
        for case in dict.fromkeys(point.case for point in found)
    }


def as_frame(found: Sequence[Point]) -> pd.DataFrame:
    """The points as a table for machines."""
    chosen = [point for point in cheapest(found).values() if point is not None]
    return pd.DataFrame(
        [
            {
                "case": p.case,
                "defence": p.defence,
                "settings": p.settings,
                "leak": p.leak.mean,
                "leak_low": p.leak.low,
                "leak_high": p.leak.high,
                "attack": p.attack,
                "threat": p.threat,
                "accuracy": p.accuracy.mean,
                "accuracy_low": p.accuracy.low,
                "accuracy_high": p.accuracy.high,
                "wire_bytes": p.wire_bytes,
                "epsilon": p.epsilon,
                "prior": math.nan if p.bound is None else p.bound.prior,
                "bound": math.nan if p.bound is None else p.bound.most,
                "within": p.within if p.verdicts else None,
                "cheapest": p in chosen if p.verdicts else None,
            }
            for p in found
        ]
    )
