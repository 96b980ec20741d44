"""Trials on a Ray cluster: the same rows as in one process, on many machines, some of which may die.

A lane is a pair of processes. Its auditor plays the federation (once for all trials that share it), makes of it a
question, and holds the answer against the secrets; its attacker is handed the question and has never held anything
else. Only rows and pictures come back to the driver, which writes them as they arrive. A trial that was lost with a
process, a node or memory is begun anew on another lane, a bounded number of times, and after that it is a row that says
so.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

import torch

from seepage.audit.experiment import Trial
from seepage.audit.perform import (
    WRONG,
    Answered,
    Failed,
    Group,
    Question,
    Refused,
    Row,
    answer,
    ask,
    columns,
    device_name,
    failure,
    judge,
    learn,
    lpips,
    stage,
    tagging,
    unmeasured,
)
from seepage.audit.pool import Begun, Done, Event, Plan
from seepage.audit.scene import Scene, captured, played, set_scene
from seepage.audit.values import SpecError, digest
from seepage.capture import Capture, Secret, moved
from seepage.metrics.tags import Tagger
from seepage.perceptual import LpipsWeights
from seepage.spec import Examples

__all__ = ["RayPool"]

Pairs: TypeAlias = list[tuple[Capture, Secret]]

# A few lanes keep a GPU busy; for each more, two processes must start and hold a context of their own.
MOST_ON_A_GPU = 4
AHEAD = 256  # so many trials are looked through for shapes that are new


@dataclass(frozen=True)
class RayPool:
    """The nodes of a Ray cluster.

    Args:
        address: of the cluster, such as `"auto"` or `"10.0.0.1:6379"`; by default $RAY_ADDRESS, or one that is started
            on this machine for the length of the run.
        retries: how often a trial is begun anew after its process, node or memory was lost.
        cpus: cores that each lane claims.
        gpus: share of a GPU that each lane claims where trials compute on one. By default the first trial of each shape
            gets a whole GPU, and the others as even a share as holds the memory that this one was seen to take, a
            quarter at least.
    """

    address: str | None = None
    retries: int = 3
    cpus: float = 1.0
    gpus: float | None = None

    def perform(self, trials: Iterable[Trial], plan: Plan) -> Iterator[Event]:
        """See `Pool`."""
        with _connected(self.address) as ray:
            crew = _Crew(self, ray, plan)
            ordered = _first_of_each_shape_first(trials) if crew.measures else trials
            waiting = (_Flight(trial) for trial in ordered)
            upcoming = next(waiting, None)
            try:
                while upcoming is not None or crew.busy:
                    if upcoming is not None and crew.begin(upcoming):
                        yield Begun(upcoming.trial, upcoming.attempt)
                        upcoming = crew.lost.pop() if crew.lost else next(waiting, None)
                        continue
                    yield from crew.land()
                    if upcoming is None and crew.lost:
                        upcoming = crew.lost.pop()
            finally:
                crew.dismiss()

    def has_gpus(self) -> bool:
        """Whether the cluster has any; one that is not there yet will have those of this machine."""
        if self.address is None and "RAY_ADDRESS" not in os.environ:
            return torch.cuda.is_available()
        with _connected(self.address) as ray:
            return bool(ray.cluster_resources().get("GPU", 0) > 0)


# --- on the driver ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Flight:
    trial: Trial
    attempt: int = 1
    began: float = 0.0


@dataclass(eq=False)
class _Lane:
    """Two processes and what they are at."""

    auditor: Any
    attacker: Any
    place: Any  # what is reserved for the two, on one node and one GPU
    claim: float  # share of a GPU
    results: dict[Any, _Flight] = field(default_factory=dict)
    hired: list[Any] = field(default_factory=list)  # what comes back once they run


@dataclass(eq=False)
class _Crew:
    """The lanes, and the trials on them; of each trial the driver holds a few references."""

    pool: RayPool
    ray: Any
    plan: Plan
    lanes: list[_Lane] = field(default_factory=list)
    lost: list[_Flight] = field(default_factory=list)
    claims: dict[str, float] = field(default_factory=dict)
    _plays: dict[str, list[Any]] = field(default_factory=dict)
    _looked: float = -math.inf
    _there: dict[str, float] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return self.pool.gpus is not None or self.plan.device.type == "cuda"

    @property
    def measures(self) -> bool:
        """Whether what a shape claims is found out by running one trial of it."""
        return self.on_gpu and self.pool.gpus is None

    @property
    def busy(self) -> bool:
        """Whether anything is under way, or waits to be begun anew."""
        return bool(self.lost) or any(lane.results for lane in self.lanes)

    def begin(self, flight: _Flight) -> bool:
        """Hand a trial to a lane; not if all have enough to do."""
        claim = self._claim(flight.trial)
        self._hire(claim)
        # While an attack has the GPU, the auditor beside it prepares the next and judges the last.
        ahead = 2 if self.on_gpu else 1
        free = [lane for lane in self.lanes if lane.claim == claim and not lane.hired and len(lane.results) < ahead]
        if not free:
            return False
        lane, trial = min(free, key=lambda lane: len(lane.results)), flight.trial
        if trial.attack is None:
            result = lane.auditor.learn.remote(trial)
        else:
            questions = lane.auditor.stage.remote(trial, self._pairs(trial, lane))
            result = lane.auditor.judge.remote(trial, lane.attacker.answer.remote(questions))
        lane.results[result] = replace(flight, began=time.perf_counter())
        return True

    def land(self) -> Iterator[Done]:
        """Wait for something to happen, and say what ended; what was lost is kept to be begun anew."""
        hired = {ref: lane for lane in self.lanes for ref in lane.hired}
        flown = {ref: lane for lane in self.lanes for ref in lane.results}
        if not hired and not flown:
            time.sleep(0.2)
            return
        ready, _ = self.ray.wait([*flown, *hired], num_returns=1, timeout=1.0)
        for ref in ready:
            lane = flown.get(ref) or hired[ref]
            if lane not in self.lanes:  # dismissed a moment ago
                continue
            try:
                got = self.ray.get(ref)
            except self.ray.exceptions.RayError as error:
                yield from self._lose(lane, ref, error)
                continue
            if ref in lane.hired:
                lane.hired.remove(ref)
                continue
            yield from self._ended(lane.results.pop(ref), got)

    def dismiss(self) -> None:
        """End all lanes, with what is under way on them."""
        for lane in self.lanes:
            self._dismiss(lane)
        self.lanes.clear()

    def _ended(self, flight: _Flight, got: Done | Failed | _Wrong) -> Iterator[Done]:
        trial, shape = flight.trial, _shape(flight.trial)
        if isinstance(got, _Wrong):
            raise SpecError(got.message)
        if isinstance(got, Failed) and got.memory and flight.attempt <= self.pool.retries:
            self.claims[shape] = 1.0  # where memory ran out beside others, it may do alone
            self.lost.append(replace(flight, attempt=flight.attempt + 1))
            return
        note = {"seconds": round(time.perf_counter() - flight.began, 3), "attempts": flight.attempt}
        if isinstance(got, Failed):
            common = columns(self.plan.experiment, trial, self.plan.device.type)
            again = f" (attempt {flight.attempt})" if flight.attempt > 1 else ""
            yield Done(trial, [unmeasured(common, got.outcome + again)], None, note)
            return
        if "gpu_share" in got.note:
            self.claims[shape] = max(self.claims.get(shape, 0.0), got.note["gpu_share"])
        yield replace(got, note={**note, **got.note})

    def _lose(self, lane: _Lane, ref: Any, error: Exception) -> Iterator[Done]:
        """A process of the lane is gone, or a node with messages that it needed."""
        self._plays.clear()  # whatever was played may have been lost too
        died = isinstance(error, self.ray.exceptions.RayActorError) or ref in lane.hired
        flights = list(lane.results.values()) if died else [lane.results.pop(ref)]
        if died:
            self.lanes.remove(lane)
            self._dismiss(lane)
        for flight in flights:
            yield from self._ended(flight, Failed(f"error: crashed: {self._reason(error)}", memory=True))

    def _reason(self, error: Exception) -> str:
        """In words that do not depend on whether the crash was seen by Ray or by who talked to the process first."""
        kind = type(getattr(error, "cause", None) or error).__name__
        if isinstance(error, self.ray.exceptions.RayActorError):
            kind = "its process is gone"
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{kind}: {lines[-1] if lines else ''}"

    def _hire(self, claim: float) -> None:
        """As many lanes as the nodes that are there have room for; those that claim another share make way."""
        if time.monotonic() - self._looked > 2:
            self._there, self._looked = self.ray.cluster_resources(), time.monotonic()
        room = self._there.get("CPU", 0) / self.pool.cpus
        if self.on_gpu:
            room = min(room, math.floor(1 / claim) * self._there.get("GPU", 0))
        for lane in [lane for lane in self.lanes if lane.claim != claim and not lane.results]:
            self.lanes.remove(lane)
            self._dismiss(lane)
        while len(self.lanes) < max(1, int(room)):
            self.lanes.append(self._lane(claim))

    def _lane(self, claim: float) -> _Lane:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": self.pool.cpus, **({"GPU": claim} if self.on_gpu else {})}
        place = placement_group([bundle])
        options: dict[str, Any] = {
            "num_cpus": self.pool.cpus / 2,
            "num_gpus": claim / 2,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(place),
        }
        # They take turns, so each may use all that both claim.
        threads = max(1, int(self.pool.cpus))
        auditor = self.ray.remote(**options)(_Auditor).remote(self.plan, threads)
        attacker = self.ray.remote(**options)(_Attacker).remote(threads)
        return _Lane(auditor, attacker, place, claim, {}, [auditor.ready.remote(), attacker.ready.remote()])

    def _dismiss(self, lane: _Lane) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(lane.place)  # which ends its processes too

    def _claim(self, trial: Trial) -> float:
        """Even shares, so that lanes serve the trials of more than one shape."""
        if not self.measures:
            return self.pool.gpus or 0.0
        lanes = min(MOST_ON_A_GPU, int(1 / self.claims.get(_shape(trial), 1.0)))
        return 100 // lanes / 100  # Ray counts in ten-thousandths, and each process of a lane claims half

    def _pairs(self, trial: Trial, lane: _Lane) -> Any:
        """Where the messages and secrets of the trial's clients are, played once for all trials of a federation."""
        key, each = f"{trial.scene} by {trial.watch.together}", trial.watch.together
        if key not in self._plays:
            for old in list(self._plays)[:-3]:  # trials of one federation follow each other
                del self._plays[old]
            parts = lane.auditor.play.options(num_returns=math.ceil(trial.messages / each)).remote(trial)
            self._plays[key] = parts if isinstance(parts, list) else [parts]
        return self._plays[key][trial.first // each]


def _first_of_each_shape_first(trials: Iterable[Trial]) -> Iterator[Trial]:
    """What shapes claim is known sooner, and lanes that have a whole GPU to themselves are hired once."""
    waiting, seen = iter(trials), set[str]()
    while chunk := list(islice(waiting, AHEAD)):
        others = []
        for trial in chunk:
            if _shape(trial) in seen:
                others.append(trial)
            else:
                seen.add(_shape(trial))
                yield trial
        yield from others


def _shape(trial: Trial) -> str:
    """Trials of one shape take about the same memory."""
    clients = (trial.clients.examples, trial.last - trial.first)
    return digest((trial.data, trial.model, trial.recipe, trial.attack, clients))


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an auditor tells nobody that there is an audit
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # what is lost is begun anew, and counted
    try:
        import ray
    except ImportError as error:
        raise SpecError("--pool: expected Ray beside `ray`, got none; pip install 'seepage[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    if address is None and "RAY_ADDRESS" not in os.environ:
        address = "local"  # else Ray would take the cluster that somebody started on this machine last
    dashboard = False if address == "local" else None
    try:
        ray.init(address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise SpecError(f"--address: expected a Ray cluster, got none at {address}: {error}") from error
    with redirect_stdout(sys.stderr):  # Ray complains of dead workers on stdout, which is for results
        try:
            yield ray
        finally:
            ray.shutdown()


# --- on the cluster --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wrong:
    """The specification, or a file that a node lacks."""

    message: str


@dataclass(frozen=True, eq=False)
class _Answers:
    found: list[Answered | Refused]
    note: dict[str, Any]


class _Auditor:
    """Knows the secrets."""

    def __init__(self, plan: Plan, threads: int) -> None:
        self.plan = plan
        self.staged: dict[str, list[Group]] = {}  # what waits for its answer
        torch.set_num_threads(threads)

    def ready(self) -> None:
        """Comes back once the process runs."""

    def play(self, trial: Trial) -> Any:
        """The messages and secrets of one federation, in parts of as many clients as are attacked together."""
        each, folder = trial.watch.together, self.plan.folder
        parts = math.ceil(trial.messages / each)
        try:
            scene = self._scene(trial)
            # On a node that shares no folder with the driver they are kept in the memory of the cluster alone.
            pairs = captured(scene, folder / "captures") if folder.is_dir() else [_compact(p) for p in played(scene)]
        except Exception as error:
            failed = _explained(error)
            return [failed] * parts if parts > 1 else failed
        slices = [pairs[i * each : (i + 1) * each] for i in range(parts)]
        return slices if parts > 1 else slices[0]

    def stage(self, trial: Trial, pairs: Pairs | Failed | _Wrong) -> list[Question] | Failed | _Wrong:
        """Questions for the attacker; what only the judge may see stays here."""
        if isinstance(pairs, Failed | _Wrong):
            return pairs
        try:
            scene = self._scene(trial)
            groups = stage(scene, pairs[: trial.last - trial.first], self.plan.device)
            self.staged[trial.digest] = groups
            return [ask(scene, group) for group in groups]
        except Exception as error:
            return _explained(error)

    def judge(self, trial: Trial, answers: _Answers | Failed | _Wrong) -> Done | Failed | _Wrong:
        """Rows and pictures, and of the secrets what these show."""
        groups = self.staged.pop(trial.digest, [])
        if isinstance(answers, Failed | _Wrong):
            return answers
        try:
            (weights, without), (tagger, untagged) = self._instruments
            if without or untagged:  # the driver has them: a table with a metric in some rows alone would mislead
                return _Wrong(f"{_where()}: {without or untagged}")
            scene, common = self._scene(trial), self._columns(trial)
            rows, pictures = judge(scene, groups, answers.found, common, weights, tagger)
        except Exception as error:
            return _explained(error)
        return Done(trial, rows, pictures, {"device": common["device"], "node": _where(), **answers.note})

    def learn(self, trial: Trial) -> Done | Failed | _Wrong:
        """Accuracy per round."""
        try:
            common = self._columns(trial)
            rows = learn(self._scene(trial), common)
        except Exception as error:
            return _explained(error)
        return Done(trial, rows, None, {"device": common["device"], "node": _where()})

    @cached_property
    def _instruments(self) -> tuple[tuple[LpipsWeights | None, str], tuple[Tagger | None, str]]:
        return lpips(self.plan.data) if self.plan.perceptual else (None, ""), tagging(self.plan.tagger)

    def _scene(self, trial: Trial) -> Scene:
        return set_scene(trial, self.plan.device, self.plan.data)

    def _columns(self, trial: Trial) -> Row:
        return columns(self.plan.experiment, trial, device_name(self.plan.device))


class _Attacker:
    """Is given questions and nothing else."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def ready(self) -> None:
        """Comes back once the process runs."""

    def answer(self, questions: Sequence[Question] | Failed | _Wrong) -> _Answers | Failed | _Wrong:
        """The attack."""
        if isinstance(questions, Failed | _Wrong):
            return questions
        began = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        try:
            found = [answer(question) for question in questions]
        except Exception as error:
            return _explained(error)
        note: dict[str, Any] = {"attack_seconds": round(time.perf_counter() - began, 3)}
        if torch.cuda.is_available() and (peak := torch.cuda.max_memory_reserved()):
            total = torch.cuda.get_device_properties(0).total_memory
            # A fifth more for what differs between clients, and a gigabyte for each of the two processes.
            share = min(1.0, math.ceil(100 * (1.2 * peak + 2e9) / total) / 100)
            note |= {"gpu_gb": round(peak / 1e9, 2), "gpu_share": share, "gpu": _where()}
        return _Answers(found, note)


def _compact(pair: tuple[Capture, Secret]) -> tuple[Capture, Secret]:
    """Without the data set of which the client's examples are a part, which would travel along."""
    capture, secret = pair
    own = Examples(secret.examples.x.cpu().clone(), secret.examples.y.cpu().clone())
    return moved(capture, "cpu"), replace(secret, examples=own)


def _explained(error: Exception) -> Failed | _Wrong:
    return _Wrong(f"{_where()}: {error}") if isinstance(error, WRONG) else failure(error)


def _where() -> str:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"{os.uname().nodename}{f' GPU {gpus}' if gpus else ''}"
