"""What an audit of very many clients costs on 1, 8 and 256 GPUs: a simulation fed with measured unit costs.

    python benchmarks/scale.py
    python benchmarks/scale.py --clients 100000 --configurations 100 --gpus 1 8 256

Cohorts of clients of equal shape are handed to GPUs one by one, as `seepage audit --pool ray` does. A GPU fails at
random (exponentially), what it was at is begun anew on the next that is free, at most `--retries` times, and it comes
back after `--back` seconds, which start up its processes. The driver writes one cohort at a time; how long that takes
is measured here, with made-up rows and pictures of the right size. Nothing else here is a measurement but the unit
costs of the attacks, which name the page that has them.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seepage.audit.table import COLUMNS, Pictures, Table


@dataclass(frozen=True)
class Workload:
    """One attack on very many clients.

    Args:
        name: what is attacked.
        together: clients in one program.
        iterations: of the attack.
        seconds: of one client and iteration in such a program, on one H200.
        images: of each client.
        shape: of an image.
        source: where that was measured.
    """

    name: str
    together: int
    iterations: int
    seconds: float
    images: int
    shape: tuple[int, int, int]
    source: str

    @property
    def cohort(self) -> float:
        """Seconds that a cohort has a GPU."""
        return self.together * self.iterations * self.seconds


WORKLOADS = (
    Workload(
        "single gradient, ResNet-18",
        64,
        4800,
        1 / 1567,
        1,
        (32, 32, 3),
        "docs/results/single-gradient.md",
    ),
    Workload("FedAvg, U = 100, FEMNIST CNN", 100, 400, 5.22e-3, 50, (28, 28, 1), "docs/results/fedavg.md"),
)


def written(work: Workload, repeats: int = 3) -> tuple[float, float]:
    """Seconds in which the driver writes a cohort, and bytes: with noise as pictures, which compresses worst."""
    count = work.together * work.images
    noise = np.random.default_rng(0).integers(0, 256, (2, count, *work.shape), dtype=np.uint8)
    clients = [str(i // work.images) for i in range(count)]
    items = [str(i % work.images) for i in range(count)]
    pictures = Pictures(clients, items, noise[0], noise[1], np.zeros(count))
    text = {name: "made up" for name in COLUMNS.names if name not in ("value", "seed")}
    # Six numbers for each image and ten for each client, about as many as an attack on images leaves.
    rows = [{**text, "value": 0.5, "seed": 0}] * (6 * count + 10 * work.together)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        for i in range(repeats):
            Table(Path(folder)).write(f"cohort{i}", rows, pictures, {})
        seconds = time.process_time() - began
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.*"))
        return seconds / repeats, size / repeats


@dataclass(frozen=True)
class Outcome:
    """How a sweep went."""

    seconds: float
    busy: float  # GPU-seconds that ended in a row
    wasted: float  # and that did not
    failed: int  # cohorts that were given up


def simulate(
    cohorts: int, each: float, gpus: int, *, mtbf: float, back: float, driver: float, retries: int, seed: int = 0
) -> Outcome:
    """Play the whole sweep, cohort by cohort.

    Args:
        cohorts: how many.
        each: seconds of one on a GPU.
        gpus: how many.
        mtbf: seconds between two failures of one GPU, on average; infinite for none.
        back: seconds until a failed GPU works again.
        driver: seconds in which the driver writes one cohort, one after another.
        retries: attempts after the first.
        seed: of the failures.
    """
    draw = random.Random(seed)
    free = [(back, gpu) for gpu in range(gpus)]  # all begin by starting up
    heapq.heapify(free)
    again: list[int] = []  # attempts already made of those that were lost
    waiting, busy, wasted, failed, written, end = cohorts, 0.0, 0.0, 0, 0.0, 0.0
    while waiting or again:
        now, gpu = heapq.heappop(free)
        attempt = again.pop() if again else 0
        waiting -= attempt == 0
        dies = draw.expovariate(1 / mtbf) if math.isfinite(mtbf) else math.inf
        if dies < each:
            wasted += dies
            failed += attempt == retries
            if attempt < retries:
                again.append(attempt + 1)
            heapq.heappush(free, (now + dies + back, gpu))
            end = max(end, now + dies)
        else:
            busy += each
            written = max(written, now + each) + driver
            heapq.heappush(free, (now + each, gpu))
            end = max(end, written)
    return Outcome(end, busy, wasted, failed)


def words(seconds: float) -> str:
    """Days where there are many hours, hours else."""
    return f"{seconds / 86400:.1f} days" if seconds > 2 * 86400 else f"{seconds / 3600:.1f} h"


def main() -> None:
    """Print the table of docs/scale.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 256])
    parser.add_argument("--mtbf", type=float, nargs="+", default=[math.inf, 1000.0, 24.0], help="hours, of one GPU")
    parser.add_argument("--back", type=float, default=60.0, help="seconds")
    parser.add_argument("--retries", type=int, default=3)
    asked = parser.parse_args()
    attacks = asked.clients * asked.configurations
    print(f"{asked.clients:,} clients x {asked.configurations} configurations = {attacks:,} attacks on a client")
    for work in WORKLOADS:
        cohorts = math.ceil(attacks / work.together)
        driver, size = written(work)
        print(f"\n{work.name}, {1000 * work.seconds:.3g} ms per client and iteration ({work.source}):")
        print(
            f"{cohorts:,} cohorts of {work.together} clients, {work.iterations} iterations, {work.cohort:.0f} s each;"
        )
        print(f"{cohorts * work.cohort / 3600:,.0f} GPU-hours without any loss. The driver writes a cohort in")
        print(f"{1000 * driver:.0f} ms, so it keeps up with {work.cohort / driver:,.0f} GPUs; at most", end=" ")
        print(f"{size * cohorts / 1e9:,.0f} GB in all\n")
        print("| GPUs | one GPU fails every | done after | GPU-hours lost | GPUs at work | cohorts given up |")
        print("|---|---|---|---|---|---|")
        for gpus in asked.gpus:
            for hours in asked.mtbf:
                got = simulate(
                    cohorts,
                    work.cohort,
                    gpus,
                    mtbf=3600 * hours,
                    back=asked.back,
                    driver=driver,
                    retries=asked.retries,
                )
                often = f"{hours:,.0f} h" if math.isfinite(hours) else "never"
                at_work = got.busy / (gpus * got.seconds)
                lost = got.wasted / 3600
                print(f"| {gpus} | {often} | {words(got.seconds)} | {lost:,.0f} | {at_work:.1%} | {got.failed} |")


if __name__ == "__main__":
    main()
