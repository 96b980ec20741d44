"""Choosing an attack's knobs: by what the attacker sees, or, where that is asked for, by the truth, as every row says.

Who tunes on what the attacker sees is handed questions, as an attack is, and has no way to a secret. Knobs may weigh
the terms of an objective, whose values then do not compare, so the default is not the attack's own objective but how
far the update that its answer would have given is from the one that was sent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as Grid

from seepage.attacks import Attack
from seepage.audit.experiment import Experiment, Trial, attack_label, parse
from seepage.audit.perform import Answered, Group, Question, answer, ask, columns, judge, stage
from seepage.audit.scene import Scene, captured, set_scene
from seepage.audit.values import SpecError, build, digest, inside, read_table
from seepage.finding import Finding
from seepage.local import local_update
from seepage.metrics.registry import METRICS
from seepage.spelling import meant
from seepage.threat import THREATS, View

__all__ = [
    "Knob",
    "Tried",
    "Tuning",
    "explains",
    "print_tried",
    "read_tuning",
    "shown",
    "tune",
    "tuned_table",
    "write_tuned",
]

TRUTH = "tuned on truth"
"""What is added to the name of the threat model, and so to every row, where the truth was looked at."""


@dataclass(frozen=True)
class Knob:
    """Where to look for the value of one knob: between two numbers, or among some choices.

    Args:
        low: the lowest number; whole numbers where both are.
        high: the highest.
        log: whether factors matter rather than differences.
        choices: instead of numbers.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        numbers = self.low is not None and self.high is not None
        if numbers == bool(self.choices):
            raise ValueError("expected `low` and `high`, or `choices`, and not both")


@dataclass(frozen=True)
class Tuning:
    """The table `tune` of an experiment.

    Args:
        knobs: what may change, by name: a table as in `Knob`, or a list of choices.
        attack: name or label of the attack; may be left out where there is one.
        tries: how many settings are tried.
        on: `"mismatch"` between the update that was sent and the one that the answer gives, or the attack's own
            `"objective"`: both are the attacker's. The name of a metric grants the truth instead.
    """

    knobs: Mapping[str, Any]
    attack: str = ""
    tries: int = 20
    on: str = "mismatch"

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError(f"expected `tries` of at least 1, got {self.tries}")
        if not self.knobs:
            raise ValueError("expected at least one of `knobs`, got none")
        if self.on not in ("mismatch", "objective", *METRICS):
            raise ValueError(f"expected `on` to be 'mismatch', 'objective' or a metric, got {self.on!r}")

    @property
    def on_truth(self) -> bool:
        """Whether the truth is looked at."""
        return self.on not in ("mismatch", "objective")


@dataclass(frozen=True)
class Tried:
    """One setting, and what it was worth: lower is better."""

    knobs: dict[str, Any]
    value: float


Worth = Callable[[Attack], float]


def read_tuning(path: Path) -> tuple[Experiment, Tuning, dict[str, Knob], dict[str, Any]]:
    """The experiment of a file, its table `tune`, the knobs in it, and the file's whole content.

    Raises:
        SpecError: naming the file, the key and what was expected.
    """
    table = dict(read_table(path))
    if "tune" not in table:
        raise SpecError(f"{path}: expected a table `[tune]` with `knobs`, got none; see docs/howto/tuning.md")
    where = inside(str(path), "tune")
    tuning = build(Tuning, table["tune"], where)
    experiment = parse(table, str(path), default_name=path.stem)
    attack = _tuned(experiment, tuning, where)
    knobs: dict[str, Knob] = {}
    for name, entry in tuning.knobs.items():
        there = [field.name for field in fields(attack)]  # type: ignore[arg-type]
        if name not in there:
            raise SpecError(f"{where}.knobs: expected a knob of {attack.name!r}, got {name!r}{meant(name, there)}")
        choices = {"choices": entry} if isinstance(entry, list) else entry
        knobs[name] = build(Knob, choices, f"{where}.knobs.{name}")
    return experiment, tuning, knobs, table


def _tuned(experiment: Experiment, tuning: Tuning, where: str) -> Attack:
    pairs = [pair for case in experiment.cases for pair in zip(case.labels, case.attacks, strict=True)]
    known = dict(pairs)
    if tuning.attack not in known and (tuning.attack or len(known) != 1):
        raise SpecError(f"{where}.attack: expected one of {sorted(known)}, got {tuning.attack!r}")
    return known[tuning.attack or next(iter(known))]


def tune(
    experiment: Experiment,
    tuning: Tuning,
    knobs: Mapping[str, Knob],
    folder: Path,
    device: torch.device,
    data: Path | None = None,
    listener: Callable[[Tried], None] | None = None,
) -> list[Tried]:
    """Try settings on the clients that the experiment watches, and say what each was worth.

    Args:
        experiment: what is attacked.
        tuning: how to tune.
        knobs: where to look.
        folder: where captures are kept, and what was tried, so that a second call goes on.
        device: where to compute.
        data: the folder of data sets.
        listener: called after each try.

    Returns:
        What was tried, best first.
    """
    label = tuning.attack or experiment.cases[0].labels[0]
    trials = [trial for trial in experiment.trials() if trial.attack is not None and trial.label == label]
    staged = []
    for trial in trials:
        with experiment.placed(trial.case):
            staged.append(_staged(trial, folder, device, data))
    if tuning.on_truth:
        worth = _on_truth(staged, tuning.on)
    else:
        questions = [ask(scene, group) for scene, groups in staged for group in groups]
        worth = _on_view(questions, tuning.on)
    attack = trials[0].attack
    assert attack is not None
    name = digest(([trial.digest for trial in trials], tuning.on, knobs))  # of what a second call goes on with
    return _search(attack, knobs, tuning.tries, worth, folder / "tries.log", name, experiment.seed, listener)


def _staged(trial: Trial, folder: Path, device: torch.device, data: Path | None) -> tuple[Scene, list[Group]]:
    scene = set_scene(trial, device, data)
    return scene, stage(scene, captured(scene, folder / "captures", slice(trial.first, trial.last)), device)


def _on_view(questions: Sequence[Question], on: str) -> Worth:
    """By what the attacker sees: nothing else is in reach here."""

    def worth(attack: Attack) -> float:
        values: list[float] = []
        for question in questions:
            answered = answer(replace(question, attack=attack))
            if not isinstance(answered, Answered):
                raise SpecError(f"tune: the attack does not apply: {answered.why}")
            found = answered.finding.objective if on == "objective" else explains(question.view, answered.finding)
            if found is None:
                raise SpecError(f"tune.on: expected an attack that says its {on!r}, got {attack.name!r}")
            values += found.double().flatten().tolist()
        return sum(values) / len(values)

    return worth


def _on_truth(staged: Sequence[tuple[Scene, list[Group]]], metric: str) -> Worth:
    """By what only the auditor knows: an upper bound on what tuning can bring, and no attacker."""
    sign = -1.0 if _more_is_better(metric) else 1.0

    def worth(attack: Attack) -> float:
        values: list[float] = []
        for scene, groups in staged:
            answers = [answer(replace(ask(scene, group), attack=attack)) for group in groups]
            rows, _ = judge(scene, groups, answers, columns("tune", scene.trial, "cpu"))
            values += [row["value"] for row in rows if row["metric"] == metric]
        if not values:
            raise SpecError(f"tune.on: expected a metric of what {attack.name!r} answers, got {metric!r}")
        return sign * sum(values) / len(values)

    return worth


def explains(view: View, finding: Finding) -> torch.Tensor | None:
    """How far the update that an answer would have given points away from the one that was seen, (clients,).

    From 0, it explains it, to 2; with the recipe and the defence that the attacker believes in. `None` where the answer
    names no inputs and labels to train on.
    """
    if finding.inputs is None or finding.labels is None:
        return None
    recipe, gaps = view.assumed_recipe, []
    for i in range(len(view.clients)):
        parts = (view.params, view.update, view.buffers)
        params, seen, buffers = ({name: t[i] for name, t in part.items()} for part in parts)
        with torch.no_grad():
            schedule = recipe.schedule(finding.inputs[i], finding.labels[i])
            given = local_update(view.task, params, schedule, recipe, view.assumed_defence, buffers=buffers)
        one, other = (torch.cat([u[k].reshape(-1) for k in sorted(u)]).double() for u in (seen, given))
        gaps.append((one / one.norm() - other / other.norm()).norm())
    return torch.stack(gaps)


def _search(
    attack: Attack,
    knobs: Mapping[str, Knob],
    tries: int,
    worth: Worth,
    journal: Path,
    name: str,
    seed: int,
    listener: Callable[[Tried], None] | None,
) -> list[Tried]:
    """Optuna's tree of Parzen estimators; what was tried before is read from the journal."""
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise SpecError("seepage tune: expected Optuna, got none; pip install 'seepage[tune]'") from error
    optuna.logging.set_verbosity(logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
        study_name=name,
        sampler=optuna.samplers.TPESampler(seed=seed),
        load_if_exists=True,
    )
    places = {name: _place(knob, optuna.distributions) for name, knob in knobs.items()}
    while sum(trial.state.is_finished() for trial in study.trials) < tries:
        trial = study.ask(places)
        value = worth(_with(attack, trial.params))
        if math.isfinite(value):
            study.tell(trial, value)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if listener is not None:
            listener(Tried(dict(trial.params), value))
    found = [Tried(dict(t.params), float(t.value)) for t in study.trials if t.value is not None]
    if not found:
        raise SpecError(f"tune: expected a finite number from one of {tries} tries of {attack.name!r}, got none")
    return sorted(found, key=lambda tried: tried.value)


def _with(attack: Attack, knobs: Mapping[str, Any]) -> Attack:
    changed: Attack = replace(attack, **knobs)  # type: ignore[type-var]
    return changed


def _place(knob: Knob, kinds: Any) -> Any:
    if knob.choices:
        return kinds.CategoricalDistribution(list(knob.choices))
    whole = isinstance(knob.low, int) and isinstance(knob.high, int)
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    return kind(knob.low, knob.high, log=knob.log)


def tuned_table(table: Mapping[str, Any], experiment: Experiment, tuning: Tuning, best: Tried) -> dict[str, Any]:
    """The content of the file with the best knobs in it, and the tuned attack alone.

    Where the truth was looked at, every threat model is called so, and with it every row.
    """
    changed = {key: value for key, value in table.items() if key not in ("tune", "case")}
    label = tuning.attack or experiment.cases[0].labels[0]
    cases = [dict(case) for case in table.get("case", [])]
    for part in (changed, *cases):
        if "attack" in part:
            part["attack"] = [_knobs(entry, best) for entry in part["attack"] if attack_label(entry) == label]
        if tuning.on_truth and ("threat" in part or part is changed):
            part["threat"] = [_marked(entry) for entry in part.get("threat", ["honest-server"])]
    how = f"Knobs tuned on {tuning.on} ({shown(best, tuning.on)} after {tuning.tries} tries)."
    changed["about"] = f"{table.get('about', '')} {how}".strip()
    return {**changed, **({"case": cases} if cases else {})}


def shown(tried: Tried, on: str) -> str:
    """What a setting was worth, in the unit of what it was tuned on.

    Example:
        >>> shown(Tried({}, -20.5), "psnr"), shown(Tried({}, 0.25), "mismatch")
        ('20.5', '0.25')
    """
    return f"{-tried.value if _more_is_better(on) else tried.value:.4g}"


def _more_is_better(on: str) -> bool:
    return on in METRICS and METRICS[on].higher_is_more_leakage


def _knobs(entry: Any, best: Tried) -> dict[str, Any]:
    return {**(entry if isinstance(entry, Mapping) else {"name": entry}), **best.knobs}


def _marked(entry: Any) -> dict[str, Any]:
    name = entry if isinstance(entry, str) else entry["name"]
    facts = [fact.value for fact in THREATS[name].facts] if name in THREATS else entry["facts"]
    return {"name": f"{name}, {TRUTH}", "facts": sorted(facts)}


def write_tuned(path: Path, table: Mapping[str, Any]) -> Path:
    """The tuned experiment as a file of its own."""
    import tomli_w  # comes with the extra that brought Optuna

    path.write_text(tomli_w.dumps(dict(table)), encoding="utf-8")
    return path


def print_tried(tried: Sequence[Tried], on: str, most: int = 10) -> None:
    """The best settings, as a table on stdout."""
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for name in tried[0].knobs:
        grid.add_column(name, justify="right")
    grid.add_column(on, justify="right")
    for one in tried[:most]:
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in one.knobs.values()]
        grid.add_row(*cells, shown(one, on))
    Console(highlight=False).print(grid)
