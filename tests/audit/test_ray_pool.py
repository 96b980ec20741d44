"""The same trials on a real cluster of several raylets, some of which die, give the same table."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from typer.testing import CliRunner

from common.audits import perform, tiny
from common.poison import Poison
from seepage.attacks import ATTACKS
from seepage.audit.perform import Failed, ask, stage
from seepage.audit.pool import Done, Plan
from seepage.audit.ray_pool import RayPool, _Crew, _first_of_each_shape_first, _Flight, _Lane, _shape
from seepage.audit.run import run
from seepage.audit.scene import played, set_scene
from seepage.audit.values import SpecError
from seepage.cli import app
from seepage.threat import THREATS, Fact

CPU = torch.device("cpu")
RECORDS = {Fact.PUBLIC_COLUMNS, Fact.TARGETS}  # facts that are examples, or nearly
TESTS = Path(__file__).parents[1]


# --- without a cluster -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "threat", [name for name in THREATS if name not in ("column-aware-server", "source-seeking-server")]
)
@pytest.mark.parametrize("defence", ["none", "gaussian-noise"])
def test_what_is_sent_to_the_attacker_holds_no_example_of_a_client(threat: str, defence: str) -> None:
    experiment = tiny(
        clients={"count": 3, "examples": 2}, data={"public": 4}, threat=[threat], defence=[defence],
        recipe={"sends": "weights", "epochs": 2},
    )  # fmt: skip
    (trial,) = experiment.trials()
    scene = set_scene(trial, CPU, None)
    groups = stage(scene, played(scene), CPU)
    sent, kept = (pickle.dumps(part) for part in ([ask(scene, group) for group in groups], groups))
    rows = [row.numpy().tobytes() for group in groups for _, secret in group.pairs for row in secret.examples.x]
    assert len(rows) == 6
    assert not [row for row in rows if row in sent]
    assert all(row in kept for row in rows)  # so they would have been found


def test_what_is_sent_is_answered_as_what_was_not(tmp_path: Path) -> None:
    (trial,) = tiny(threat=["label-aware-server"]).trials()
    scene = set_scene(trial, CPU, None)
    (question,) = [ask(scene, group) for group in stage(scene, played(scene), CPU)]
    far = pickle.loads(pickle.dumps(question))
    one, other = (q.attack(q.view, q.rng) for q in (question, far))
    assert one.inputs.equal(other.inputs)
    assert far.view.clients == question.view.clients
    shared = [p for p in far.view.params.values() if p.stride(0) == 0]
    assert len(shared) == len(question.view.params)  # a global model travels once, and not once for each client


@pytest.mark.parametrize("option", [["--address", "10.0.0.1:6379"], ["--gpu-share", "0.5"]])
def test_what_is_meant_for_ray_is_refused_without_it(option: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "--out", str(tmp_path / "out"), *option])
    assert done.exit_code == 2
    assert "expected `--pool ray` beside them, got `--pool local`" in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_without_ray_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"pip install 'seepage\[ray\]'"):
        perform(tiny(), tmp_path, pool=RayPool())


class Pretended:
    """A cluster that answers at once, to see what is claimed of its GPUs; lanes of it are told by their claims."""

    class exceptions:
        RayError = RayActorError = RuntimeError

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.asked = answers, 0

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 16.0, "GPU": 2.0}

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return refs[:1], refs[1:]

    def get(self, ref: Any) -> Any:
        return self.answers.pop(0)

    def remote(self, *_: Any) -> object:
        return object()

    @property
    def stage(self) -> Pretended:
        return self

    play = answer = judge = stage

    def options(self, **_: Any) -> Pretended:
        return self


def test_a_gpu_is_claimed_whole_until_the_memory_of_a_shape_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = tiny().trials()
    again = replace(trial, seed=1)  # of the same shape
    rows = [{"outcome": "answered"}]
    ray = Pretended([Done(trial, rows, None, {"gpu_share": 0.3}), Failed("error: out of memory", memory=True)])
    crew = _Crew(RayPool(), ray, Plan("tiny", Path("nowhere"), torch.device("cuda"), None, False))
    monkeypatch.setattr(_Crew, "_lane", lambda self, claim: _Lane(ray, ray, None, claim))
    monkeypatch.setattr(_Crew, "_dismiss", lambda self, lane: None)

    assert crew.begin(_Flight(trial))
    assert [lane.claim for lane in crew.lanes] == [1.0, 1.0]  # one on each GPU
    assert [done.note["gpu_share"] for done in crew.land()] == [0.3]
    assert crew.begin(_Flight(again))
    assert [lane.claim for lane in crew.lanes] == [0.33] * 6  # three on each
    assert list(crew.land()) == []
    (lost,) = crew.lost
    assert (lost.trial, lost.attempt) == (again, 2)
    assert crew.begin(lost)
    assert [lane.claim for lane in crew.lanes] == [1.0, 1.0]  # alone, it may have room


@pytest.mark.parametrize(("share", "claim"), [(0.02, 0.25), (0.26, 0.33), (0.34, 0.5), (0.51, 1.0), (1.0, 1.0)])
def test_shares_of_a_gpu_are_even_ones(share: float, claim: float) -> None:
    (trial,) = tiny().trials()
    crew = _Crew(RayPool(), None, Plan("tiny", Path("nowhere"), torch.device("cuda"), None, False))
    crew.claims[_shape(trial)] = share
    assert crew._claim(trial) == claim
    assert claim >= share


def test_one_trial_of_each_shape_goes_first_and_all_go(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = tiny().trials()
    small = [replace(trial, seed=seed) for seed in range(3)]
    large = [replace(one, clients=replace(one.clients, examples=one.clients.examples + 1)) for one in small]
    assert list(_first_of_each_shape_first([*small, *large])) == [small[0], large[0], *small[1:], *large[1:]]
    monkeypatch.setattr("seepage.audit.ray_pool.AHEAD", 2)
    assert list(_first_of_each_shape_first([*small, *large])) == [*small[:2], large[0], small[2], *large[1:]]


def test_a_share_that_was_said_beforehand_is_claimed_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = tiny().trials()
    ray = Pretended([])
    crew = _Crew(RayPool(gpus=0.25), ray, Plan("tiny", Path("nowhere"), torch.device("cuda"), None, False))
    monkeypatch.setattr(_Crew, "_lane", lambda self, claim: _Lane(ray, ray, None, claim))
    for _ in range(16):  # on each lane one works while another is prepared
        assert crew.begin(_Flight(trial))
    assert [(lane.claim, len(lane.results)) for lane in crew.lanes] == [(0.25, 2)] * 8
    assert not crew.begin(_Flight(trial))


# --- with one --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that does no work and two nodes of one core, as three raylets."""
    pytest.importorskip("ray", reason="pip install 'seepage[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # else Ray kills where something else fills the memory
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]))
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "wait": False}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            nodes.add_node(num_cpus=1, wait=False)
        nodes.wait_for_nodes(timeout=300)  # of which Ray would wait 30
        yield nodes
        nodes.shutdown()


def rows(table: Any) -> pd.DataFrame:
    return table.read().sort_values(["trial", "client", "item", "metric"], ignore_index=True)


def processes(cluster: Any) -> list[int]:
    """Auditors and attackers of this cluster."""
    raylets = ",".join(str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes())
    found = subprocess.run(["pgrep", "-P", raylets, "-f", "^ray::_A"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def kill_one(cluster: Any, other_than: Collection[int] = ()) -> bool:
    """Kill an auditor or an attacker, if one is there that does not end by itself just now."""
    for pid in processes(cluster):
        if pid not in other_than:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


@pytest.mark.federation
@pytest.mark.filterwarnings("ignore")
def test_workers_and_a_node_die_and_nothing_is_lost(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setitem(ATTACKS, "poison", Poison)
    poison = [{"name": "poison", "how": how, "label": how} for how in ("nan", "look around", "crash", "memory")]
    several = {"clients": {"count": 20, "examples": 1}, "watch": {"together": 1}, "recipe": {"sends": "gradient"}}
    sound = tiny(**several, attack=["analytic", "count-labels", poison[0]])
    # The others come first, so that there is a node left to be killed while there is work.
    case = sound.cases[0]
    bad = tiny(attack=poison[1:], watch={"clients": 1})
    whole = replace(sound, cases=(replace(bad.cases[0], name="poisoned"), case), accuracy=True)
    done, again = [], []

    def strike(number: int, count: int, trial: Any, event: str) -> None:
        if event == "again":
            again.append(trial)
        elif event not in ("start", "skip") and not event.startswith("note"):
            done.append(trial.digest)
            if len(done) == 12:
                assert kill_one(cluster)
            if len(done) == 30:
                own = ray._private.worker.global_worker.node  # which Ray does not let us remove
                others = [node for node in cluster.worker_nodes if node.raylet_socket_name != own.raylet_socket_name]
                cluster.remove_node(others[0], allow_graceful=False)
                cluster.add_node(num_cpus=1, wait=False)

    far = run(whole, tmp_path / "ray", device=CPU, pool=RayPool(cluster.address, retries=2), listener=strike)
    near = run(replace(whole, cases=(case,)), tmp_path / "local", device=CPU)
    found = rows(far)
    assert sorted(done) == sorted(trial.digest for trial in whole.trials())  # each once
    assert_frame_equal(found[found["case"] == "all"].reset_index(drop=True), rows(near), check_exact=True)
    outcomes = dict(found[(found["case"] == "poisoned") & (found["metric"] == "none")][["attack", "outcome"]].values)
    assert outcomes.pop("crash").startswith("error: crashed: its process is gone: ")
    assert outcomes == {
        "look around": "error: LookupError: 0 secrets in this process",
        "memory": "error: out of memory: no room (attempt 3)",
    }
    # Another attempt at each of the poisoned, for sure; what was killed may have been between two trials.
    assert {trial.label for trial in again} >= {"crash", "memory"}


SPEC = """
clients = { count = 60, examples = 1 }
model = { name = "mlp", options = { hidden = [8] } }
recipe = { sends = "gradient" }
watch = { together = 1 }
attack = ["analytic"]
"""


@pytest.mark.federation
@pytest.mark.filterwarnings("ignore")
def test_after_its_driver_was_killed_the_same_command_goes_on(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    words = ["audit", "spec.toml", "--pool", "ray", "--address", cluster.address, "--out", "far", "--device", "cpu"]
    command = [sys.executable, "-m", "seepage", *words, "--json"]
    variables = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src")}
    finished, log = tmp_path / "far" / "rows", tmp_path / "log"
    with log.open("wb") as file:
        first = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=file, stderr=file)
    while first.poll() is None and len(list(finished.glob("*.parquet"))) < 3:
        time.sleep(0.01)
    first.kill()
    assert first.wait() == -signal.SIGKILL, log.read_text()
    stamps = {path: path.stat().st_mtime_ns for path in finished.glob("*.parquet")}
    assert 3 <= len(stamps) < 60
    left = processes(cluster)  # of the first, which Ray ends in its own time
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    second = subprocess.Popen(command, cwd=tmp_path, env=variables, **pipes)
    while second.poll() is None and len(list(finished.glob("*.parquet"))) == len(stamps):
        time.sleep(0.01)
    assert kill_one(cluster, other_than=left)  # of which Ray complains, but not where results are
    out, complained = second.communicate()
    assert second.returncode == 0, complained
    assert stamps.items() <= {path: path.stat().st_mtime_ns for path in finished.glob("*.parquet")}.items()
    said = json.loads(out)  # and nothing else stands there
    assert len({row["trial"] for row in said}) == 60
