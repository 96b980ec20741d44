"""How many clients a CPU should attack in one program, against ten whatever their size.

Milliseconds per client and iteration and peak memory of searches over ten clients, of which so many at a time share a
program. Random images: how long a search takes does not depend on what it finds. "auto" is what attacks do unless told.

    python benchmarks/lanes.py --threads 1
    python benchmarks/lanes.py --settings "sme, 50 of CIFAR" --lanes auto 10
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from dataclasses import replace
from typing import NamedTuple

import torch
from cells import in_own_process

import seepage as sp
from seepage.attacks import SME, FedAvg, InvertingGradients
from seepage.models import build

CLIENTS = 10
FEMNIST, CIFAR = sp.DataSpec((1, 28, 28), classes=62), sp.DataSpec((3, 32, 32), classes=100)


class Setting(NamedTuple):
    """A search, and clients of one size."""

    attack: SME | InvertingGradients | FedAvg
    network: str
    spec: sp.DataSpec
    images: int
    epochs: int = 1
    batch: int | None = None


SETTINGS = {
    "inverting gradients, 1 of FEMNIST": Setting(InvertingGradients(), "cnn-femnist", FEMNIST, 1),
    "sme, 4 of FEMNIST": Setting(SME(), "cnn-femnist", FEMNIST, 4),
    "sme, 50 of FEMNIST": Setting(SME(), "cnn-femnist", FEMNIST, 50),
    "sme, 50 of CIFAR": Setting(SME(), "cnn-cifar", CIFAR, 50),
    "inverting gradients, 50 of CIFAR": Setting(InvertingGradients(), "cnn-cifar", CIFAR, 50),
    "fedavg, 4 × 5 × 10 of FEMNIST": Setting(FedAvg(), "cnn-femnist", FEMNIST, 10, 4, 5),
    "fedavg, 4 × 2 × 4 of CIFAR": Setting(FedAvg(), "cnn-cifar", CIFAR, 4, 4, 2),
}


def cell(name: str, chunk: int | None, iterations: int) -> dict[str, float]:
    """Milliseconds per client and iteration, and peak memory beside what was there before the search."""
    setting = SETTINGS[name]
    rng = sp.Stream.from_seed(0)
    task = sp.Task(build(setting.network, setting.spec, rng / "model"), setting.spec)
    recipe = sp.Recipe(sp.SGD(0.004), epochs=setting.epochs, batch_size=setting.batch, sends="weights")
    images = (rng / "x").normal(CLIENTS, setting.images, *setting.spec.shape)
    labels = torch.arange(setting.images) % (setting.spec.classes or 1)
    held = [sp.Examples(x, labels) for x in images]
    (seen,) = sp.play(task, held, recipe, sp.Federation(), rng / "federation")
    pairs = list(zip(seen.captures, seen.secrets, strict=True))
    view = sp.observe(pairs, sp.Setting(task, recipe), sp.THREATS["label-aware-server"])

    def seconds(steps: int) -> float:
        began = time.perf_counter()
        replace(setting.attack, steps=steps, chunk=chunk)(view, rng / "attack")
        return time.perf_counter() - began

    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    few = seconds(1)  # what is done once, and an iteration more than is counted
    spent = seconds(1 + iterations) - few
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - floor
    return {"ms": 1e3 * spent / iterations / CLIENTS, "gb": peak / 1e6}


def main() -> None:
    """Print one line for each setting and number of clients at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--lanes", nargs="+", default=["1", "2", "5", "auto", "10"], help="clients at once, or auto")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3, help="of which the median is printed; cells follow in turn")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=float, default=300.0, help="most seconds for one cell")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.cell:
        name, lanes = given.cell
        print(json.dumps(cell(name, None if lanes == "auto" else int(lanes), given.iterations)))
        return
    print(f"cpu, torch {torch.__version__}, {given.threads} threads, float32, {CLIENTS} clients")
    print(f"{'setting':36} {'at once':>7} {'ms':>7} {'peak GB':>8}  against ten")
    options = ["--iterations", str(given.iterations), "--threads", str(given.threads)]
    for name in given.settings:
        turns = [
            {n: in_own_process(__file__, [*options, "--cell", name, n], given.limit) for n in given.lanes}
            for _ in range(given.turns)
        ]
        ms = {n: statistics.median(turn[n].get("ms", float("nan")) for turn in turns) for n in given.lanes}
        for lanes in given.lanes:
            gb = max(turn[lanes].get("gb", float("nan")) for turn in turns)
            ratio = ms.get("10", float("nan")) / ms[lanes]
            print(f"{name:36} {lanes:>7} {ms[lanes]:7.1f} {gb:8.2f}  {ratio:.2f}×", flush=True)


if __name__ == "__main__":
    main()
