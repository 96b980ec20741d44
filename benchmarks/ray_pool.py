"""A sweep of small trials on a real Ray cluster of several raylets, of which processes and one raylet are killed.

The baseline is the pool of one process, in the same run. Three things are printed: whether the table that comes out of
the massacre equals the baseline's row for row, what a trial costs on the cluster against what it costs at home, and how
the driver's memory grows with the number of trials.

    python benchmarks/ray_pool.py --trials 1000 --kills 6

Cores are few and often shared, so the efficiency is taken from processor seconds: those of one process at home, over
those of every process of the cluster that works for the run (lanes, raylets, driver), both without starting up.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from pandas.testing import assert_frame_equal

from seepage.audit.experiment import Experiment, parse
from seepage.audit.pool import LocalPool, Pool
from seepage.audit.ray_pool import RayPool
from seepage.audit.run import run
from seepage.audit.table import Table

CPU = torch.device("cpu")


def sweep(trials: int, steps: int = 0) -> Experiment:
    """Closed-form attacks on a small network: trials so short that whatever the pool adds can be seen.

    Args:
        trials: how many.
        steps: of an optimisation in the place of closed forms.
    """
    longer = [{"name": "inverting-gradients", "steps": steps, "tv": tv} for tv in (0.0, 0.01)]
    table = {
        "name": "sweep",
        "clients": {"count": trials // 2, "examples": 1},
        "model": {"name": "mlp", "options": {"hidden": [16]}},
        "recipe": {"sends": "gradient"},
        "watch": {"together": 1},
        "attack": longer if steps else ["analytic", "count-labels"],
    }
    return parse(table, "sweep")


class Watch:
    """Counts what ended, notes memory and processor time on the way, and kills at random moments."""

    def __init__(self, kills: int = 0, trials: int = 0, cluster: Any = None) -> None:
        self.done, self.lost, self.killed = 0, 0, 0
        self.memory: dict[int, float] = {}
        self.begun: tuple[float, float] | None = None  # clock and processor seconds once a tenth is done
        self.cluster, self.trials = cluster, trials
        draw = random.Random(0)
        self.moments = sorted(draw.sample(range(trials // 10, 9 * trials // 10), kills)) if kills else []
        self.draw = draw

    def __call__(self, number: int, count: int, trial: Any, event: str) -> None:
        """See `run`."""
        self.lost += event == "again"
        if event in ("start", "again", "skip") or event.startswith("note"):
            return
        self.done += 1
        if self.done % max(1, count // 10) == 0:
            self.memory[self.done] = psutil.Process().memory_info().rss / 1e6
        if self.done == max(1, count // 10):
            self.begun = time.perf_counter(), spent(self.cluster)
        if self.moments and self.done >= self.moments[0]:
            self.moments.pop(0)
            self.kill(last=not self.moments)

    def kill(self, last: bool) -> None:
        """Some process of some lane; the last victim is a raylet with all that runs on it."""
        if last:
            self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)
            self.cluster.add_node(num_cpus=1)
        else:
            os.kill(self.draw.choice(lanes(self.cluster)).pid, signal.SIGKILL)
        self.killed += 1


def behind(cluster: Any) -> list[psutil.Process]:
    """What Ray itself runs for this cluster: raylets, and the store of who is where."""
    nodes = [] if cluster is None else cluster.list_all_nodes()
    kinds = [node.all_processes.get(kind, []) for node in nodes for kind in ("raylet", "gcs_server")]
    return [psutil.Process(entry.process.pid) for entries in kinds for entry in entries]


def lanes(cluster: Any) -> list[psutil.Process]:
    """Auditors and attackers of this cluster."""
    return [child for process in behind(cluster) for child in process.children() if _name(child).startswith("ray::_A")]


def _name(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


def spent(cluster: Any) -> float:
    """Processor seconds of this process, of the lanes, and of what is behind them."""
    total = 0.0
    for process in [psutil.Process(), *lanes(cluster), *behind(cluster)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def timed(experiment: Experiment, folder: Path, pool: Pool, cluster: Any = None) -> tuple[Table, Watch, float, float]:
    """Seconds on the clock and of processors, per trial, after the first tenth of the trials."""
    watch = Watch(cluster=cluster)
    ends: list[tuple[float, float]] = []
    count = sum(1 for _ in experiment.trials())

    def listen(number: int, total: int, trial: Any, event: str) -> None:
        watch(number, total, trial, event)
        if watch.done == count and not ends:  # before the lanes are dismissed
            ends.append((time.perf_counter(), spent(cluster)))

    table = run(experiment, folder, device=CPU, pool=pool, listener=listen)
    assert watch.begun is not None
    rest = count - max(1, count // 10)
    return table, watch, (ends[0][0] - watch.begun[0]) / rest, (ends[0][1] - watch.begun[1]) / rest


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=6, help="of processes, and one raylet at the end")
    parser.add_argument("--nodes", type=int, default=2, help="of one core each, beside a head that does no work")
    parser.add_argument("--calm", type=int, default=300, help="trials of the undisturbed run that is timed")
    parser.add_argument("--long", type=int, default=60, help="trials of the undisturbed run with an optimisation")
    parser.add_argument("--steps", type=int, default=300, help="of that optimisation")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        run(sweep(4), home / "warm", device=CPU)  # imports
        experiment, short = sweep(asked.trials), sweep(asked.calm)
        near, _, *short_near = timed(experiment, home / "near", LocalPool())
        long = sweep(asked.long, asked.steps)
        _, _, *long_near = timed(long, home / "long near", LocalPool())
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(asked.nodes):
            cluster.add_node(num_cpus=1)
        pool = RayPool(cluster.address)
        _, _, *short_far = timed(short, home / "calm", pool, cluster)
        _, _, *long_far = timed(long, home / "long far", pool, cluster)
        print("milliseconds per trial, on the clock and of processors")
        for what, one, other in (("short", short_near, short_far), (f"{asked.steps} steps", long_near, long_far)):
            print(
                f"{what}: one process {1000 * one[0]:.1f}, {1000 * one[1]:.1f}; "
                f"{asked.nodes} raylets {1000 * other[0]:.1f}, {1000 * other[1]:.1f}; "
                f"efficiency {one[1] / other[1]:.2f} by processors, "
                f"{one[0] / (asked.nodes * other[0]):.2f} by the clock on as many cores"
            )
        watch = Watch(asked.kills, asked.trials, cluster)
        began = time.perf_counter()
        far = run(experiment, home / "far", device=CPU, pool=pool, listener=watch)
        seconds = time.perf_counter() - began
        cluster.shutdown()
        order = [trial.digest for trial in experiment.trials()]
        assert_frame_equal(far.read(order), near.read(order), check_exact=True)
        print(
            f"{watch.done} trials in {seconds:.0f} s, {watch.killed - 1} processes and 1 raylet killed, "
            f"{watch.lost} trials begun anew, {len(order) - len(far.finished())} lost; "
            f"the table of {len(far.read(order))} rows equals that of one process"
        )
        print("driver, MB after so many trials: " + ", ".join(f"{n}: {mb:.0f}" for n, mb in watch.memory.items()))


if __name__ == "__main__":
    main()
