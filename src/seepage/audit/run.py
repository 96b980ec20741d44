"""Run an experiment: each trial once, finished ones skipped, failures as rows."""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seepage.audit.attributes import attribute_scores, source_scores
from seepage.audit.class_images import class_scores
from seepage.audit.diagnosis import answer_mismatch, diagnose, gather, write_causes
from seepage.audit.experiment import Experiment, Trial
from seepage.audit.features import true_features
from seepage.audit.optimum import model_scores
from seepage.audit.own_network import is_least_squares, network_scores, optimum_scores
from seepage.audit.scene import Scene, captured, set_scene
from seepage.audit.table import Pictures, Table
from seepage.audit.values import SpecError, digest, plain
from seepage.capture import Capture, CaptureError, Secret, examine, moved
from seepage.data import DataBroken, DataMissing, data_folder
from seepage.defences.base import Chain
from seepage.defences.dp_sgd import AccountantMissing
from seepage.engine.lanes import out_of_memory
from seepage.engine.layers import Concern
from seepage.engine.minimise import Status
from seepage.finding import Finding, NotApplicable
from seepage.metrics.perceptual import LpipsWeights, WeightsBroken, WeightsMissing, load_lpips
from seepage.metrics.score import Score, Scored, score
from seepage.task import ModuleError
from seepage.threat import Fact, NotKnown, Setting, observe

__all__ = ["WRONG", "Listener", "defence_name", "perform", "run", "version"]

Row = dict[str, Any]
Listener = Callable[[int, int, Trial, str], None]

# The specification or its files are wrong: there is nothing to measure before that is mended.
WRONG = (SpecError, ModuleError, DataMissing, DataBroken, WeightsBroken)


def version() -> str:
    """The installed version of Seepage, or that of the source tree."""
    try:
        return importlib.metadata.version("seepage")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0"


def run(
    experiment: Experiment,
    folder: Path,
    *,
    device: torch.device,
    data: str | Path | None = None,
    limit: int | None = None,
    cases: Collection[str] | None = None,
    minutes: float | None = None,
    listener: Listener | None = None,
) -> Table:
    """Perform every trial that is not finished yet and write each as soon as it is done.

    Args:
        experiment: what to do.
        folder: where results go, and where finished trials are found again.
        device: where to compute.
        data: the folder of data sets.
        limit: watch at most that many clients in each case.
        cases: perform the trials of these alone; the others stay as they are, finished or not.
        minutes: begin no trial after so many; the others wait for the next call.
        listener: called before and after each trial with (number, how many, trial, event), where the event is "start",
            "skip" for what was finished before, "late" for what `minutes` leaves, or the outcome; and before all work
            with "note: …" for every layer that is not plainly fine and every metric left out.

    Raises:
        SpecError: when the experiment itself cannot be carried out; nothing is lost.
        ModuleError: when a module cannot be attacked at all, before any work.
    """
    opened = time.perf_counter()
    table = Table(folder)
    trials = list(experiment.trials(limit))
    if not trials:
        raise SpecError(f"{experiment.name}: expected at least one [[attack]], or accuracy = true, got neither")
    names = [case.name for case in experiment.cases]
    for name in cases or ():
        if name not in names:
            raise SpecError(f"{experiment.name}: expected a case of {names}, got {name!r}")
    _write_index(experiment, trials, folder)
    trials = [trial for trial in trials if not cases or trial.case in cases]
    finished = {t.digest for t in trials if t.digest in table.finished() and not _worth_another_try(table, t)}
    weights, without = _lpips(data)
    if without and listener is not None:
        listener(0, len(trials), trials[0], f"note: LPIPS is left out: {without}")
    _check_modules([trial for trial in trials if trial.digest not in finished], len(trials), device, data, listener)
    for number, trial in enumerate(trials):
        late = minutes is not None and time.perf_counter() - opened > 60 * minutes
        if trial.digest in finished or late:
            if listener is not None:
                listener(number, len(trials), trial, "skip" if trial.digest in finished else "late")
            continue
        if listener is not None:
            listener(number, len(trials), trial, "start")
        began = time.perf_counter()
        rows, pictures = _attempt(experiment, trial, folder, device, data, weights)
        note = {"seconds": round(time.perf_counter() - began, 3), "device": _device_name(device), "trial": plain(trial)}
        table.write(trial.digest, rows, pictures, note)
        if listener is not None:
            listener(number, len(trials), trial, rows[0]["outcome"])
    return table


def _check_modules(
    trials: Sequence[Trial], count: int, device: torch.device, data: str | Path | None, listener: Listener | None
) -> None:
    """Meet every module before any of them is worked on: a trial of hours must not end at a layer of the next."""
    different = {digest((trial.data, trial.model)): trial for trial in reversed(trials)}
    for trial in reversed(different.values()):
        try:
            concerns = set_scene(trial, device, data).setting.task.concerns
        except WRONG:
            raise
        except Exception:
            continue  # a bug in the user's own code: the trial meets it again and says so in its row
        if listener is None:
            continue
        # A network has many layers of one kind: the first speaks for them.
        alike: dict[tuple[str, ...], list[Concern]] = {}
        for concern in concerns:
            alike.setdefault((concern.kind, concern.consequence, concern.why), []).append(concern)
        for first, *others in alike.values():
            more = f" (and {len(others)} more like it)" if others else ""
            listener(0, count, trial, f"note: {trial.model.name}: {first}{more}")


def _write_index(experiment: Experiment, trials: Sequence[Trial], folder: Path) -> None:
    """Which trials belong to the experiment that the folder is about, for `report` and `gate`."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {
        "name": experiment.name,
        "about": experiment.about,
        "threshold": experiment.threshold,
        "expect": plain(experiment.expect),
        "trials": [trial.digest for trial in trials],
    }
    scratch = folder / f".experiment.json.{os.getpid()}"
    scratch.write_text(json.dumps(index, indent=1))
    os.replace(scratch, folder / "experiment.json")


def _worth_another_try(table: Table, trial: Trial) -> bool:
    """An error may have been the machine's; that a fact is hidden will not change."""
    return bool(table.read([trial.digest])["outcome"].str.startswith("error").any())


def _attempt(
    experiment: Experiment,
    trial: Trial,
    folder: Path,
    device: torch.device,
    data: str | Path | None,
    weights: LpipsWeights | None,
) -> tuple[list[Row], Pictures | None]:
    """A failed trial is a row with an outcome, never a gap."""
    common = _common(experiment, trial, device)
    try:
        return perform(trial, folder, device, data, common, weights)
    except WRONG:
        raise
    except CaptureError as error:
        outcome = f"unsound capture: {error}"
    except Exception as error:
        kind = "out of memory" if out_of_memory(error) else type(error).__name__
        outcome = f"error: {kind}: {error}"
    return [_unmeasured(common, outcome)], None


def _unmeasured(common: Row, outcome: str) -> Row:
    return {**common, "client": "", "item": "", "metric": "none", "value": float("nan"), "outcome": outcome}


def perform(
    trial: Trial,
    folder: Path,
    device: torch.device,
    data: str | Path | None,
    common: Row,
    weights: LpipsWeights | None = None,
) -> tuple[list[Row], Pictures | None]:
    """One trial: play, observe, attack, score.

    Args:
        trial: what to do.
        folder: where captures are kept.
        device: where to compute.
        data: the folder of data sets.
        common: the columns that all rows of the trial share.
        weights: of the perceptual metric; without them it is left out.
    """
    scene = set_scene(trial, device, data)
    if trial.attack is None:
        return _learning(scene, common), None
    pairs = captured(scene, folder / "captures")[trial.first : trial.last]
    pairs = [(moved(capture, device), replace(s, examples=s.examples.to(device))) for capture, s in pairs]
    _refuse_unsound(pairs, scene)
    rows: list[Row] = []
    seen: list[Pictures] = []
    # Clients of different size, or seen in different rounds, do not stack: each kind is a view of its own.
    # Only who asks whose a record is compares them all.
    kind = _watched if trial.attack is not None and Fact.TARGETS in trial.attack.needs else _kind
    for _, same in groupby(sorted(pairs, key=kind), kind):
        group = list(same)
        # Before the attack, so that what cannot be examined is noticed in a second and not after an hour.
        told = trial.threat is None or Fact.RECIPE in trial.threat.facts
        evidence = [gather(c.exchanges[-1], secret.examples, scene.setting, told) for c, secret in group]
        try:
            finding = _attack(scene, group)
        except (NotKnown, NotApplicable) as error:  # of one size: what others gave away stays measured
            rows.append(_unmeasured(common, f"not applicable: {error}"))
            continue
        for i, (capture, secret) in enumerate(group):
            scored = _score(finding, i, group, scene, weights)
            fit = answer_mismatch(capture.exchanges[-1], finding, i, scene.setting)
            causes = diagnose(evidence[i], finding, i, scored.scores, fit)
            named = {**common, "client": secret.client, "diagnosis": write_causes(causes)}
            rows += _scored_rows(scored, finding, i, named)
            if not capture.members:  # an aggregate is no message of a client
                size = float(scene.setting.defence.wire_bytes(capture.exchanges[-1].answer))
                rows.append({**rows[-1], "item": "all", "metric": "wire_bytes", "value": size})
            if (promised := _promised(scene, len(secret.examples))) is not None:
                rows.append({**rows[-1], "item": "all", "metric": "epsilon", "value": promised})
            if scored.guess_pixels is not None:  # else the attack says nothing that could be shown
                seen.append(_pictures(scored.guess_pixels, scored, secret.client, scene))
    return rows, Pictures.join(seen) if seen and scene.setting.task.spec.is_image else None


def _watched(pair: tuple[Capture, Secret]) -> tuple[int, ...]:
    return tuple(exchange.round for exchange in pair[0].exchanges)


def _promised(scene: Scene, examples: int) -> float | None:
    try:
        promised = scene.setting.defence.promised_epsilon(
            scene.trial.recipe, examples, rounds=scene.trial.watch.round + 1
        )
        return None if promised == float("inf") else promised
    except AccountantMissing:  # an optional extra: what leaks is measured all the same
        return None


def _kind(pair: tuple[Capture, Secret]) -> tuple[int, ...]:
    return len(pair[1].examples), *_watched(pair)


def _learning(scene: Scene, common: Row) -> list[Row]:
    """Accuracy before the first round, as item 0, and after each."""
    begin, test = scene.beginning(), scene.held_out
    first = scene.setting.task.accuracy(begin.params, test.x, test.y, buffers=begin.buffers)
    values = [first, *(r.accuracy for r in scene.rounds())]
    return [
        {**common, "client": "all", "item": str(i), "metric": "accuracy", "value": value, "outcome": "measured"}
        for i, value in enumerate(values)
    ]


def _refuse_unsound(pairs: Sequence[tuple[Capture, Secret]], scene: Scene) -> None:
    # An update of zeros is a perfect defence rather than a damaged file, so it is attacked like any other.
    problems = [p for c, _ in pairs for p in examine(c, scene.setting.task) if p.fatal and p.key != "all"]
    if problems:
        raise CaptureError(problems)


def _attack(scene: Scene, group: Sequence[tuple[Capture, Secret]]) -> Finding:
    attack, threat = scene.trial.attack, scene.trial.threat
    assert attack is not None
    assert threat is not None
    view = observe(group, scene.setting, threat)
    return attack(view, scene.rng / "attack" / attack.name)


def _score(
    finding: Finding,
    i: int,
    group: Sequence[tuple[Capture, Secret]],
    scene: Scene,
    weights: LpipsWeights | None,
) -> Scored:
    capture, secret = group[i]
    spec, threat = scene.setting.task.spec, scene.trial.threat
    public = scene.setting.public if threat is not None and Fact.PUBLIC_DATA in threat.facts else None
    scored = score(
        _as_scored(finding.inputs, i),
        None if finding.labels is None else finding.labels[i].cpu(),
        secret.examples.to("cpu"),
        spec,
        public=None if public is None else public.to("cpu"),
        lpips_weights=weights,
        threshold=scene.trial.threshold,
        papers=scene.trial.metrics,
        features=_features(finding, i, capture, secret, scene),
        confidence=None if finding.confidence is None else float(finding.confidence[i]),
        tokens=None if finding.tokens is None else finding.tokens[i],
    )
    return replace(scored, scores=scored.scores + _beyond_inputs(finding, i, group, scene.setting))


def _as_scored(inputs: torch.Tensor | None, i: int) -> torch.Tensor | None:
    if inputs is None:
        return None
    return inputs[i].cpu().float() if inputs.is_floating_point() else inputs[i].cpu()


def _beyond_inputs(finding: Finding, i: int, group: Sequence[tuple[Capture, Secret]], setting: Setting) -> list[Score]:
    """What an attack says of a client's own model, of a column of its table, of whose a record is, or of classes."""
    capture, secret = group[i]
    scores: list[Score] = []
    if finding.params is not None:
        found = {name: p[i] for name, p in finding.params.items()}
        judge = model_scores if is_least_squares(setting.task) else network_scores
        scores += judge(found, capture, secret, setting)
    if finding.attributes is not None and setting.sensitive is not None:
        scores += attribute_scores(finding.attributes[i], secret, setting.sensitive)
        scores += optimum_scores(capture, secret, setting)
    if finding.sources is not None:
        scores += source_scores(finding.sources, i, [s for _, s in group])
    if finding.class_inputs is not None:
        scores += class_scores(finding.class_inputs[i], capture, secret, setting)
    return scores


def _features(
    finding: Finding, i: int, capture: Capture, secret: Secret, scene: Scene
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What an attack says entered a layer, and what did."""
    if finding.features is None or finding.layer is None:
        return None
    task, last = scene.setting.task, capture.exchanges[-1]
    buffers = {**task.buffers, **last.buffers_before}
    train = scene.setting.recipe.train
    return finding.features[i], true_features(task, last.before, buffers, secret.examples, finding.layer, train=train)


def _scored_rows(scored: Scored, finding: Finding, i: int, common: Row) -> list[Row]:
    outcome = "answered" if finding.status is None else Status(int(finding.status[i])).name.lower().replace("_", " ")
    common = {**common, "outcome": outcome}
    rows = [{**common, "item": s.item, "metric": s.metric, "value": s.value} for s in scored.scores]
    if finding.objective is not None:
        rows.append({**common, "item": "all", "metric": "objective", "value": float(finding.objective[i])})
    return rows


def _pictures(guess: torch.Tensor, scored: Scored, client: str, scene: Scene) -> Pictures:
    low, high = scene.setting.task.spec.low, scene.setting.task.spec.high

    def as_bytes(pixels: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        unit = torch.nan_to_num((pixels - low) / (high - low)).clamp(0, 1)
        return (255 * unit).round().to(torch.uint8).movedim(1, -1).numpy() if unit.dim() == 4 else np.zeros(0, np.uint8)

    psnr = {s.item: s.value for s in scored.scores if s.metric == "psnr"}
    items = [str(k) for k in range(len(scored.truth_pixels))]
    return Pictures(
        [client] * len(items),
        items,
        as_bytes(scored.truth_pixels),
        as_bytes(guess),
        np.array([psnr.get(item, float("nan")) for item in items]),
    )


def _lpips(data: str | Path | None) -> tuple[LpipsWeights | None, str]:
    """The weights of the perceptual metric, which do not ship with the package, or why there are none."""
    try:
        return load_lpips(data_folder(data)), ""
    except WeightsMissing as error:
        return None, str(error)


def _common(experiment: Experiment, trial: Trial, device: torch.device) -> Row:
    return {
        "trial": trial.digest,
        "experiment": experiment.name,
        "case": trial.case,
        "attack": "none" if trial.attack is None else trial.label or trial.attack.name,
        "attack_settings": "" if trial.attack is None else _settings(trial.attack),
        "defence": defence_name(trial.defence),
        "defence_settings": _settings(trial.defence),
        "threat": "none" if trial.threat is None else trial.threat.name,
        "data": trial.data.name,
        "model": trial.model.name,
        "seed": trial.seed,
        "device": _device_name(device),
        "seepage": version(),
        "torch": torch.__version__,
        "diagnosis": "",
    }


def defence_name(defence: Any) -> str:
    """`clip+gaussian-noise` for a chain of the two."""
    return "+".join(part.name for part in defence.parts) if isinstance(defence, Chain) else str(defence.name)


def _settings(value: Any) -> str:
    if isinstance(value, Chain):
        return "; ".join(_settings(part) for part in value.parts)
    return ", ".join(f"{f.name}={getattr(value, f.name)}" for f in fields(value))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
