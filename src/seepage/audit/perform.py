"""One trial in three steps, of which only the middle one is the attacker's.

The auditor plays the federation and decides what the attacker sees (`stage`, `ask`); the attacker answers a `Question`
that holds a view and no secret (`answer`); the auditor holds the answer against the secret (`judge`). The steps may run
in one process, one after another (`perform`), or on different machines (`seepage.audit.ray_pool`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seepage.attacks import Attack
from seepage.attacks.base import Developing
from seepage.audit.attributes import attribute_scores, source_scores
from seepage.audit.class_images import class_scores
from seepage.audit.diagnosis import Evidence, answer_mismatches, diagnose, gather, write_causes
from seepage.audit.experiment import Trial
from seepage.audit.features import true_features
from seepage.audit.footage import footage, trimmed
from seepage.audit.optimum import model_scores
from seepage.audit.own_network import is_least_squares, network_scores, optimum_scores
from seepage.audit.pretraining import Trained
from seepage.audit.scene import Scene, captured, set_scene
from seepage.audit.table import Pictures
from seepage.audit.tagger import TaggerMissing, load_tagger
from seepage.audit.values import SpecError
from seepage.capture import Capture, CaptureError, Exchange, Secret, examine, moved
from seepage.data import DataBroken, DataMissing, data_folder
from seepage.defences.base import Chain
from seepage.defences.dp_sgd import AccountantMissing
from seepage.engine.bookmarks import Bookmark, Bookmarks, bookmarking
from seepage.engine.film import Film, filming
from seepage.engine.lanes import out_of_memory
from seepage.engine.minimise import Status
from seepage.finding import Finding, NotApplicable
from seepage.home import version
from seepage.knobs import knobs
from seepage.metrics.score import Score, Scored, score
from seepage.metrics.tags import Tagger, Tagging
from seepage.perceptual import LpipsWeights, WeightsBroken, WeightsMissing, load_lpips
from seepage.streams import Stream
from seepage.task import ModuleError
from seepage.threat import Fact, NotKnown, Setting, View, observe

__all__ = [
    "WRONG",
    "Answered",
    "Failed",
    "Group",
    "Question",
    "Refused",
    "Row",
    "Searches",
    "answer",
    "ask",
    "attack_name",
    "columns",
    "defence_name",
    "device_name",
    "failure",
    "judge",
    "learn",
    "lpips",
    "perform",
    "settings_text",
    "stage",
    "tagging",
    "unmeasured",
]

Row = dict[str, Any]

# The specification or its files are wrong: there is nothing to measure before that is mended.
WRONG = (SpecError, ModuleError, DataMissing, DataBroken, WeightsBroken)


MOST_SEARCHES = 16  # remembered at once: images, and the film of how they were found


@dataclass(frozen=True, eq=False)
class Question:
    """All that an attack is given, wherever it runs: a view, and randomness that no client has."""

    attack: Attack
    view: View
    rng: Stream


@dataclass(frozen=True, eq=False)
class Answered:
    """What an attack found, and what its search looked like on the way."""

    finding: Finding
    film: Film


@dataclass(eq=False)
class Searches:
    """What was found in the federation at hand, for attacks that make different things of one search.

    Args:
        scene: digest of that federation.
        found: by the digest of the trial that would search alone, and the number of the group.
        seconds: that attacks have taken so far, in all trials together.
    """

    scene: str = ""
    found: dict[tuple[str, int], Answered | Refused] = field(default_factory=dict)
    seconds: float = 0.0

    def answer(self, trial: Trial, group: int, question: Question, folder: Path) -> Answered | Refused:
        """As `answer`, but no search is made twice, and one that was killed goes on from what `folder` has of it."""
        attack = question.attack
        if not isinstance(attack, Developing):
            return _going_on(question, folder / f"{trial.digest}-{group}")
        if self.scene != trial.scene:  # trials of one federation follow each other: one is enough to remember
            self.scene, self.found = trial.scene, {}
        develop = attack.developer(question.view)
        key = replace(trial, attack=attack.search).digest, group
        if key not in self.found:
            self.found[key] = _going_on(replace(question, attack=attack.search), folder / f"{key[0]}-{group}")
            if len(self.found) > MOST_SEARCHES:
                del self.found[next(iter(self.found))]
        found = self.found[key]
        return replace(found, finding=develop(found.finding)) if isinstance(found, Answered) else found


@dataclass(frozen=True)
class Refused:
    """What an attack says that does not apply, or needs a fact that the threat model hides."""

    why: str


@dataclass(frozen=True)
class Failed:
    """A step that raised.

    Args:
        outcome: for the row.
        memory: whether memory ran out, so that there is hope with more of it.
    """

    outcome: str
    memory: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """Clients of one trial that stack, with what the auditor knows of them.

    Args:
        pairs: what each sent, and its secret.
        evidence: what can be seen in each update before any attack.
    """

    pairs: tuple[tuple[Capture, Secret], ...]
    evidence: tuple[Evidence, ...]


def perform(
    trial: Trial,
    folder: Path,
    device: torch.device,
    data: str | Path | None,
    common: Row,
    weights: LpipsWeights | None = None,
    tagger: Tagger | None = None,
    searches: Searches | None = None,
) -> tuple[list[Row], Pictures | None]:
    """One trial: play, observe, attack, score.

    Args:
        trial: what to do.
        folder: where captures are kept.
        device: where to compute.
        data: the folder of data sets.
        common: the columns that all rows of the trial share.
        weights: of the perceptual metric; without them it is left out.
        tagger: tells which tags images have; without one the metric is left out.
        searches: of the trials before this one.
    """
    searches = searches or Searches()
    scene = set_scene(trial, device, data)
    if trial.attack is None:
        return learn(scene, common, folder / "halfway"), None
    # Before the attack, so that what cannot be examined is noticed in a second and not after an hour.
    groups = stage(scene, captured(scene, folder / "captures", slice(trial.first, trial.last)), device)
    halfway = folder / "halfway"
    began = time.perf_counter()
    answers = [searches.answer(trial, i, ask(scene, group), halfway) for i, group in enumerate(groups)]
    searches.seconds += time.perf_counter() - began
    return judge(scene, groups, answers, common, weights, tagger)


def stage(scene: Scene, pairs: Sequence[tuple[Capture, Secret]], device: torch.device) -> list[Group]:
    """Sort the attacked clients into groups that stack, and look at what they sent.

    Clients of different size, or seen in different rounds, do not stack: each kind is a view of its own. Only who asks
    whose a record is compares them all.
    """
    attack, threat = scene.trial.attack, scene.trial.threat
    pairs = [(moved(capture, device), replace(s, examples=s.examples.to(device))) for capture, s in pairs]
    _refuse_unsound(pairs, scene)
    kind = _watched if attack is not None and Fact.TARGETS in attack.needs else _kind
    told = threat is None or threat.knows_training
    return [
        Group(group, tuple(gather(_last(group), [secret.examples for _, secret in group], scene.setting, told)))
        for group in (tuple(same) for _, same in groupby(sorted(pairs, key=kind), kind))
    ]


def ask(scene: Scene, group: Group) -> Question:
    """What the attacker gets of a group: the door that `observe` is, and nothing beside it."""
    attack, threat = scene.trial.attack, scene.trial.threat
    assert attack is not None
    assert threat is not None
    return Question(attack, observe(group.pairs, scene.setting, threat), scene.rng / "attack" / attack.name)


def answer(question: Question) -> Answered | Refused:
    """The attack itself."""
    film = Film(question.view.task.spec)
    try:
        with filming(film):
            return Answered(question.attack(question.view, question.rng), film)
    except (NotKnown, NotApplicable) as error:
        return Refused(str(error))


def _going_on(question: Question, folder: Path) -> Answered | Refused:
    with bookmarking(Bookmarks(folder)):
        return answer(question)


def judge(
    scene: Scene,
    groups: Iterable[Group],
    answers: Iterable[Answered | Refused],
    common: Row,
    weights: LpipsWeights | None = None,
    tagger: Tagger | None = None,
) -> tuple[list[Row], Pictures | None]:
    """Hold what was answered against the secrets."""
    rows: list[Row] = []
    seen: list[Pictures] = []
    spec = scene.setting.task.spec
    for group, answered in zip(groups, answers, strict=True):
        if isinstance(answered, Refused):  # of one size: what others gave away stays measured
            rows.append(unmeasured(common, f"not applicable: {answered.why}"))
            continue
        finding, film = answered.finding, answered.film
        fits = answer_mismatches(_last(group.pairs), finding, range(len(group.pairs)), scene.setting)
        for i, (capture, secret) in enumerate(group.pairs):
            scored = _score(finding, i, group.pairs, scene, weights, tagger)
            causes = diagnose(group.evidence[i], finding, i, scored.scores, fits[i])
            named = {**common, "client": secret.client, "diagnosis": write_causes(causes)}
            rows += _scored_rows(scored, finding, i, named)
            if not capture.members:  # an aggregate is no message of a client
                size = float(scene.setting.defence.wire_bytes(capture.exchanges[-1].answer))
                rows.append({**rows[-1], "item": "all", "metric": "wire_bytes", "value": size})
            if (promised := _promised(scene, len(secret.examples))) is not None:
                rows.append({**rows[-1], "item": "all", "metric": "epsilon", "value": promised})
            if scored.guess_pixels is not None:  # else the attack says nothing that could be shown
                shown = _pictures(scored.guess_pixels, scored, secret.client, scene)
                seen.append(replace(shown, footage=footage(film, spec, i, scored.guess_pixels, shown.psnr)))
    return rows, trimmed(Pictures.join(seen)) if seen and spec.is_image else None


def failure(error: Exception) -> Failed:
    """What a row says of an error that is not the specification's.

    Example:
        >>> failure(torch.OutOfMemoryError("no room"))
        Failed(outcome='error: out of memory: no room', memory=True)
    """
    if isinstance(error, CaptureError):
        return Failed(f"unsound capture: {error}")
    memory = out_of_memory(error) or isinstance(error, MemoryError)
    return Failed(f"error: {'out of memory' if memory else type(error).__name__}: {error}", memory)


def unmeasured(common: Row, outcome: str) -> Row:
    """A failed trial is a row with an outcome, never a gap."""
    return {**common, "client": "", "item": "", "metric": "none", "value": float("nan"), "outcome": outcome}


def _last(pairs: Iterable[tuple[Capture, Secret]]) -> list[Exchange]:
    return [capture.exchanges[-1] for capture, _ in pairs]


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


def learn(scene: Scene, common: Row, folder: Path | None = None) -> list[Row]:
    """Accuracy before the first round, as item 0, and after each.

    A training that was killed goes on with the round after the last that `folder` has of it.
    """
    if folder is None:
        values = _learn(scene)
    else:
        with bookmarking(Bookmarks(folder / scene.trial.digest)) as bookmarks:
            values = _learn(scene, Bookmark(bookmarks, "rounds", (0, 1), scene.trial.federation.rounds))
    return [
        {**common, "client": "all", "item": str(i), "metric": "accuracy", "value": value, "outcome": "measured"}
        for i, value in enumerate(values)
    ]


def _learn(scene: Scene, mark: Bookmark | None = None) -> list[float]:
    begin, test = scene.beginning(), scene.held_out
    values = torch.zeros(scene.trial.federation.rounds + 1, dtype=torch.float64)
    values[0] = scene.setting.task.accuracy(begin.params, test.x, test.y, buffers=begin.buffers)
    done = 0
    if mark is not None:
        (params, buffers, values), done = mark.read((begin.params, begin.buffers, values))
        begin = Trained(params, buffers)
    for played in scene.rounds(begin=begin, first=done):
        assert played.accuracy is not None
        values[played.number + 1] = played.accuracy
        if mark is not None:
            mark.keep((played.params, played.buffers, values), played.number + 1)
    return values.tolist()


def _refuse_unsound(pairs: Sequence[tuple[Capture, Secret]], scene: Scene) -> None:
    # An update of zeros is a perfect defence rather than a damaged file, so it is attacked like any other.
    problems = [p for c, _ in pairs for p in examine(c, scene.setting.task) if p.fatal and p.key != "all"]
    if problems:
        raise CaptureError(problems)


def _score(
    finding: Finding,
    i: int,
    group: Sequence[tuple[Capture, Secret]],
    scene: Scene,
    weights: LpipsWeights | None,
    tagger: Tagger | None,
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
        certainty=None if finding.certainty is None else finding.certainty[i],
        tagger=tagger,
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


def lpips(data: str | Path | None) -> tuple[LpipsWeights | None, str]:
    """The weights of the perceptual metric, which do not ship with the package, or why there are none."""
    try:
        return load_lpips(data_folder(data)), ""
    except WeightsMissing as error:
        return None, str(error)


def tagging(how: Tagging | None) -> tuple[Tagger | None, str]:
    """What tells which tags images have, where the experiment asks for it, or why it is missing."""
    try:
        return (None if how is None else load_tagger(how)), ""
    except TaggerMissing as error:
        return None, str(error)


def columns(experiment: str, trial: Trial, device: str) -> Row:
    """What all rows of a trial share; `device` by its name."""
    return {
        "trial": trial.digest,
        "experiment": experiment,
        "case": trial.case,
        "attack": attack_name(trial),
        "attack_settings": "" if trial.attack is None else settings_text(trial.attack),
        "defence": defence_name(trial.defence),
        "defence_settings": settings_text(trial.defence),
        "threat": "none" if trial.threat is None else trial.threat.name,
        "data": trial.data.name,
        "model": trial.model.name,
        "seed": trial.seed,
        "device": device,
        "seepage": version(),
        "torch": torch.__version__,
        "diagnosis": "",
    }


def attack_name(trial: Trial) -> str:
    """What rows call the attack of a trial; learning has none."""
    return "none" if trial.attack is None else trial.label or trial.attack.name


def defence_name(defence: Any) -> str:
    """`clip+gaussian-noise` for a chain of the two."""
    return "+".join(part.name for part in defence.parts) if isinstance(defence, Chain) else str(defence.name)


def settings_text(value: Any) -> str:
    """The knobs of an attack or a defence, as they stand in a row.

    Example:
        >>> from seepage.attacks.fedavg import FedAvg
        >>> "spread" in settings_text(FedAvg()), settings_text(FedAvg(spread=0.1))[-10:]
        (False, 'spread=0.1')
    """
    if isinstance(value, Chain):
        return "; ".join(settings_text(part) for part in value.parts)
    return ", ".join(f"{name}={knob}" for name, knob in knobs(value).items())


def device_name(device: torch.device) -> str:
    """As in the column of that name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
