"""Attack what was captured: with the clients' data scored, without them said as far as it can be known."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.attacks.base import Attack
from seepage.audit.diagnosis import answer_mismatches, diagnose, gather, write_causes
from seepage.audit.features import true_features
from seepage.audit.footage import footage, trimmed
from seepage.audit.summary import AS_CAPTURED
from seepage.audit.table import Pictures, Table
from seepage.audit.values import digest, plain
from seepage.capture import Capture, Secret, moved
from seepage.engine.film import Film, filming
from seepage.engine.lanes import out_of_memory
from seepage.engine.minimise import Status
from seepage.finding import Finding, NotApplicable
from seepage.frameworks.arrange import arrange
from seepage.home import version
from seepage.inspect.doctor import Examination, assumed
from seepage.inspect.suite import Chosen
from seepage.metrics.matching import match, taken
from seepage.metrics.pixels import clip, psnr
from seepage.metrics.recovered import THRESHOLD
from seepage.metrics.score import Scored, score
from seepage.recipe import Recipe
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import NotKnown, Setting, ThreatModel, View, observe

__all__ = ["Target", "attack_captures"]

Row = dict[str, Any]
Pair = tuple[Capture, Secret | None]
Listener = Callable[[int, int, str, str], None]


@dataclass(frozen=True, eq=False)
class Target:
    """What is attacked, and by whom.

    Args:
        name: of the audit.
        captures: as they were read, one per client.
        secrets: by client, where there are any.
        task: the module.
        model: the name of the module.
        recipe: how clients train, as the attacker was told or guesses it.
        told: whether it was told.
        threat: who attacks.
        examinations: from `doctor`.
        left_out: (attack, reason) of those that do not fit.
        words: for text, the token of each id, so that answers can be read.
        ruler: by what range images are scored and shown, where that is not the one that the attacker assumes.
    """

    name: str
    captures: Sequence[Capture]
    secrets: Mapping[str, Secret]
    task: Task
    model: str
    recipe: Recipe | None
    told: bool
    threat: ThreatModel
    examinations: Sequence[Examination]
    left_out: Sequence[tuple[str, str]] = ()
    words: Sequence[str] | None = None
    ruler: DataSpec | None = None


def attack_captures(
    target: Target,
    suite: Sequence[Chosen],
    folder: Path,
    *,
    device: torch.device,
    seed: int = 0,
    listener: Listener | None = None,
) -> Table:
    """Run the suite and write its rows, pictures and notes, as an audit does.

    Args:
        target: what is attacked.
        suite: with what.
        folder: where results go; attacks whose results are there are not run again.
        device: where to compute.
        seed: of everything random.
        listener: called before and after each attack with (number, how many, attack, "start" or outcome).
    """
    table = Table(folder)
    trials = [_digest(target, chosen, seed) for chosen in suite]
    _write_index(target, trials, folder)
    task = target.task if device.type == "cpu" else target.task.to(device)
    pairs: list[Pair] = [
        (moved(arrange(c, target.task), device), _on(target.secrets.get(c.client), device)) for c in target.captures
    ]
    for number, (chosen, trial) in enumerate(zip(suite, trials, strict=True)):
        if trial in table.finished():
            continue
        if listener is not None:
            listener(number, len(suite), chosen.name, "start")
        began = time.perf_counter()
        common = _common(target, chosen, trial, seed, device)
        outcome = _Outcome([])
        # Clients of different size, or seen in different rounds, do not stack: each kind is a view of its own.
        for _, same in groupby(sorted(pairs, key=_kind), _kind):
            part = _attempt(target, task, chosen, list(same), common, Stream.from_seed(seed))
            outcome = outcome.with_those_of(part)
        note = {
            "seconds": round(time.perf_counter() - began, 3),
            "device": common["device"],
            "trial": {"threat": plain(target.threat)},
            "why": chosen.why,
            "labels": outcome.labels,
            "texts": outcome.texts,
            "examinations": [_noted(examination) for examination in target.examinations],
            "left_out": [list(pair) for pair in target.left_out],
        }
        table.write(trial, outcome.rows, _joined(outcome.pictures) if outcome.pictures else None, note)
        if listener is not None:
            listener(number, len(suite), chosen.name, str(outcome.rows[0]["outcome"]))
    return table


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Rows, pictures, how often each client is believed to have each label, and which texts it is believed to have."""

    rows: list[Row]
    pictures: list[Pictures] = field(default_factory=list)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def with_those_of(self, other: _Outcome) -> _Outcome:
        """What both say, about different clients."""
        return _Outcome(
            self.rows + other.rows,
            self.pictures + other.pictures,
            self.labels | other.labels,
            self.texts | other.texts,
        )


def _attempt(target: Target, task: Task, chosen: Chosen, pairs: list[Pair], common: Row, rng: Stream) -> _Outcome:
    """A failed attack is a row with an outcome, never a gap."""
    try:
        return _perform(target, task, chosen, pairs, common, rng)
    except (NotKnown, NotApplicable) as error:
        why = f"not applicable: {error}"
    except Exception as error:
        why = f"error: {'out of memory' if out_of_memory(error) else type(error).__name__}: {error}"
    row = {**common, "client": "", "item": "", "metric": "none", "value": float("nan"), "outcome": why}
    return _Outcome([row])


def _perform(target: Target, task: Task, chosen: Chosen, pairs: list[Pair], common: Row, rng: Stream) -> _Outcome:
    setting = Setting(task, assumed(target.recipe))
    view = observe(pairs, setting, target.threat)
    attack = chosen.attack
    ruler = target.ruler or task.spec
    takes = [_take(attack, view, rng / "attack" / attack.name / str(start)) for start in range(chosen.restarts)]
    rows: list[Row] = []
    pictures: list[Pictures] = []
    labels: dict[str, dict[str, int]] = {}
    texts: dict[str, list[str]] = {}
    for i, (capture, secret) in enumerate(pairs):
        (best, film), *rest = sorted(takes, key=lambda take: _objective(take[0], i))
        others = [finding for finding, _ in rest]
        if best.labels is not None and task.spec.classes is not None:
            labels[capture.client] = _counted(best.labels[i])
        measured = [("all", metric, value) for metric, value in _unscored(best, others, i, capture, setting).items()]
        diagnosis, scored = "", None
        if secret is not None:
            told = target.told and target.threat.knows_training
            (evidence,) = gather(capture.exchanges[-1:], [secret.examples], setting, told)
            scored = _score(best, i, capture, secret, setting, ruler)
            (fit,) = answer_mismatches(capture.exchanges[-1:], best, [i], setting)
            diagnosis = write_causes(diagnose(evidence, best, i, scored.scores, fit))
            measured += [(one.item, one.metric, one.value) for one in scored.scores]
        named = {**common, "client": capture.client, "outcome": _ended(best, i), "diagnosis": diagnosis}
        rows += [{**named, "item": item, "metric": metric, "value": value} for item, metric, value in measured]
        if best.inputs is not None and task.spec.is_image:
            pictures.append(_pictures(capture.client, ruler, best.inputs[i], scored, film, i))
        if task.spec.is_text and (best.inputs is not None or best.tokens is not None):
            texts[capture.client] = _readable(best, i, target.words)
    return _Outcome(rows, pictures, labels, texts)


def _take(attack: Attack, view: View, rng: Stream) -> tuple[Finding, Film]:
    film = Film(view.task.spec)
    with filming(film):
        return attack(view, rng), film


def _readable(finding: Finding, i: int, words: Sequence[str] | None) -> list[str]:
    """An answer about texts, one string each, or the tokens that occur in one; `?` for what is not known."""
    said = finding.inputs[i] if finding.inputs is not None else finding.tokens[i].nonzero().T  # type: ignore[index]
    kept = [[int(token) for token in row if int(token) != 0] for row in said]
    known = [[token for token in row if token >= 0] for row in kept]
    return [
        " ".join("?" if t < 0 else str(t) if words is None else words[t] for t in row)
        for row, some in zip(kept, known, strict=True)
        if some
    ]


def _score(finding: Finding, i: int, capture: Capture, secret: Secret, setting: Setting, ruler: DataSpec) -> Scored:
    return score(
        None if finding.inputs is None else finding.inputs[i].detach().cpu().float(),
        None if finding.labels is None else finding.labels[i].cpu(),
        secret.examples.to("cpu"),
        ruler,
        features=_features(finding, i, capture, secret, setting),
        tokens=None if finding.tokens is None else finding.tokens[i],
    )


def _unscored(best: Finding, others: Sequence[Finding], i: int, capture: Capture, setting: Setting) -> dict[str, float]:
    """What is known of an answer without the truth."""
    values: dict[str, float] = {}
    if best.objective is not None:
        values["objective"] = float(best.objective[i])
    if best.confidence is not None:
        values["label_confidence"] = float(best.confidence[i])
    (distance,) = answer_mismatches(capture.exchanges[-1:], best, [i], setting)
    if distance == distance:
        values["update_explained"] = 1 - distance**2 / 2  # the cosine of two directions that far apart
    agreed = [
        _agreement(best.inputs[i], other.inputs[i], setting.task.spec)
        for other in others
        if best.inputs is not None and other.inputs is not None
    ]
    if agreed:
        values["restart_psnr"] = sum(agreed) / len(agreed)
    return values or {"answered": 1.0}


def _agreement(one: Tensor, other: Tensor, spec: DataSpec) -> float:
    """PSNR between what two restarts came to, paired as well as they can be."""
    low, high = (spec.low, spec.high) if spec.is_image else (0.0, 1.0)
    pixels = [clip(spec.pixels(x.detach().cpu().double()), low, high) for x in (one, other)]
    if not spec.is_image:
        pixels = [x.detach().cpu().double() for x in (one, other)]
    paired = taken(pixels[1], match(pixels[1], pixels[0], low, high), float("nan"))
    shape = (len(paired), 1, 1, -1)  # rows of tables are compared as images of one line
    return float(psnr(paired.reshape(shape), pixels[0].reshape(shape), low, high).mean())


def _objective(finding: Finding, i: int) -> float:
    value = 0.0 if finding.objective is None else float(finding.objective[i])
    return value if value == value else float("inf")


def _ended(finding: Finding, i: int) -> str:
    return "answered" if finding.status is None else Status(int(finding.status[i])).name.lower().replace("_", " ")


def _counted(labels: Tensor) -> dict[str, int]:
    found = Counter(int(label) for label in labels.flatten().tolist())
    return {str(label): found[label] for label in sorted(found) if label >= 0}


def _features(
    finding: Finding, i: int, capture: Capture, secret: Secret, setting: Setting
) -> tuple[Tensor, Tensor] | None:
    if finding.features is None or finding.layer is None:
        return None
    task, last = setting.task, capture.exchanges[-1]
    buffers = {**task.buffers, **last.buffers_before}
    real = true_features(task, last.before, buffers, secret.examples, finding.layer, train=setting.recipe.train)
    return finding.features[i], real


def _pictures(client: str, spec: DataSpec, guess: Tensor, scored: Scored | None, film: Film, i: int) -> Pictures:
    """Without the truth its place is empty: pictures of no height."""

    def as_bytes(pixels: Tensor) -> NDArray[np.uint8]:
        unit = torch.nan_to_num((pixels - spec.low) / (spec.high - spec.low)).clamp(0, 1)
        whole: NDArray[np.uint8] = (255 * unit).round().to(torch.uint8).movedim(1, -1).numpy()
        return whole

    if scored is None or scored.guess_pixels is None:
        pixels, psnr = spec.pixels(guess.detach().cpu().float()), np.full(len(guess), np.nan)
        real = np.zeros((len(guess), 0, 0, guess.shape[1]), np.uint8)
        way = footage(film, spec, i, pixels, np.zeros(len(guess)))  # no picture is better than another
    else:
        pixels, real = scored.guess_pixels, as_bytes(scored.truth_pixels)
        psnr = np.array([one.value for one in scored.scores if one.metric == "psnr"], dtype=float)
        way = footage(film, spec, i, pixels, psnr)
    items = [str(k) for k in range(len(pixels))]
    return Pictures([client] * len(pixels), items, real, as_bytes(pixels), psnr, way)


def _joined(parts: Sequence[Pictures]) -> Pictures:
    # Clients with and without a secret do not share a row of pictures: scored ones go first.
    scored = [part for part in parts if part.truth.shape[1]] or list(parts)
    return trimmed(Pictures.join(scored))


def _on(secret: Secret | None, device: torch.device) -> Secret | None:
    return None if secret is None else replace(secret, examples=secret.examples.to(device))


def _kind(pair: Pair) -> tuple[int, tuple[int, ...], bool]:
    capture, secret = pair
    count = capture.exchanges[-1].examples
    count = len(secret.examples) if count is None and secret is not None else count
    return count or 0, tuple(exchange.round for exchange in capture.exchanges), secret is None


def _noted(examination: Examination) -> dict[str, Any]:
    return {
        "client": examination.client,
        "round": examination.exchange.round,
        "checks": [asdict(check) for check in examination.checks],
        "reasons": [asdict(reason) for reason in examination.reasons],
    }


def _digest(target: Target, chosen: Chosen, seed: int) -> str:
    what = [[c.client, [[e.round, _sum(e.answer)] for e in c.exchanges]] for c in target.captures]
    sealed = sorted(target.secrets)
    whole = [what, sealed, target.model, target.recipe, target.threat, chosen.attack, chosen.restarts, seed]
    return digest(whole if target.ruler is None else [*whole, target.ruler])


def _sum(tensors: Mapping[str, Tensor]) -> float:
    total = sum(float(t.double().sum()) for t in tensors.values())
    return total if total == total and abs(total) != float("inf") else 0.0


def _common(target: Target, chosen: Chosen, trial: str, seed: int, device: torch.device) -> Row:
    attack = chosen.attack
    return {
        "trial": trial,
        "experiment": target.name,
        "case": target.name,
        "attack": chosen.name,
        "attack_settings": ", ".join(f"{f.name}={getattr(attack, f.name)}" for f in fields(attack)),  # type: ignore[arg-type]
        "defence": AS_CAPTURED,
        "defence_settings": "",
        "threat": target.threat.name,
        "data": "captured",
        "model": target.model,
        "seed": seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "seepage": version(),
        "torch": torch.__version__,
        "diagnosis": "",
    }


def _write_index(target: Target, trials: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    clients = len(target.captures)
    about = f"Captured updates of {clients} client{'s' if clients != 1 else ''}, attacked as {target.threat.name}."
    index = {"name": target.name, "about": about, "threshold": THRESHOLD, "expect": [], "trials": list(trials)}
    scratch = folder / f".experiment.json.{os.getpid()}"
    scratch.write_text(json.dumps(index, indent=1))
    os.replace(scratch, folder / "experiment.json")
