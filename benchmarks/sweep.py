"""Milliseconds per client-iteration and peak memory of the adjoint sweep against plain double backward, in one run.

One iteration of the FedAvg attack: simulate U local steps of the FEMNIST network of dimitrov2022 (batches of 5 out of
50 images, separate variables per epoch), compare with an observed update, and differentiate that with respect to every
dummy input; then one Adam step. Each cell runs in a process of its own, so that its peak memory is its own.

    python benchmarks/sweep.py --device cuda
    python benchmarks/sweep.py --device cpu --steps 10 50 --clients 1 10
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from cells import in_own_process
from torch import Tensor

from seepage.engine.minimise import minimise
from seepage.engine.optimisers import adam
from seepage.local import local_update
from seepage.models import build
from seepage.pieces.distances import squared
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Params, Task
from seepage.unrolled import unrolled_update

IMAGES, BATCH = 50, 5
PROGRAMS = {
    "cpu": ("double backward", "sweep", "sweep, every 10th"),
    "cuda": ("double backward", "sweep", "sweep, graph", "sweep, graph, every 10th"),
}


def cell(program: str, steps: int, clients: int, device: str, iterations: int) -> dict[str, float]:
    """Milliseconds per client-iteration, and peak memory, of one program at one size."""
    spec = DataSpec((1, 28, 28), classes=62, mean=(0.9642384,), std=(0.1576784,))
    rng = Stream.from_seed(0)
    task = Task(build("cnn-femnist", spec, rng / "model").to(device), spec)
    epochs = steps * BATCH // IMAGES
    recipe = Recipe(SGD(0.004), epochs=1, batch_size=BATCH, shuffle=False)
    lanes = 1 if program == "double backward" else clients  # it has no batched form: clients run one after another
    x = (rng / "x").normal(lanes, 1, epochs * IMAGES, 1, 28, 28, device=device)
    y = torch.arange(epochs * IMAGES, device=device).expand(lanes, -1) % 62
    params = {name: p.expand(lanes, *p.shape) for name, p in task.params.items()}
    update = {name: 0.1 * p for name, p in params.items()}
    keep = 10 if "10th" in program else 1
    floor = _memory(device)

    def objective(x: Tensor, y: Tensor, params: Params, update: Params) -> Tensor:
        schedule = recipe.schedule(x, y)
        if program == "double backward":
            guess = unrolled_update(task, params, schedule, recipe)
        else:
            guess = local_update(task, params, schedule, recipe, keep_every=keep)
        return squared(guess, update)

    # A call of `progress` waits for the device, so the time between two calls is that of one iteration.
    stamps: list[float] = []
    captured = "graph" in program
    minimise(
        objective,
        x,
        (y, params, update),
        optimiser=adam(0.1),
        steps=10 if captured else iterations,
        batched=program != "double backward",
        chunk=lanes,
        graph="always" if captured else "never",
        progress=lambda *_: stamps.append(time.perf_counter()),
        progress_every=1,
    )
    durations = [late - early for early, late in pairwise(stamps)][-5 if captured else 1 - iterations :]
    return {"ms": 1e3 * statistics.median(durations) / lanes, "gb": _memory(device) - floor}


def _memory(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_reserved() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Print one line per cell, and all of them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 50, 100, 500], help="local steps U")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--programs", nargs="+", default=None, choices=sorted({*PROGRAMS["cpu"], *PROGRAMS["cuda"]}))
    parser.add_argument("--iterations", type=int, default=3, help="of programs without a graph; the first is not timed")
    parser.add_argument("--limit", type=float, default=120.0, help="most seconds for one cell")
    parser.add_argument("--out", help="also write the cells as JSON here")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        program, steps, clients = arguments.cell
        print(json.dumps(cell(program, int(steps), int(clients), arguments.device, arguments.iterations)))
        return
    programs = arguments.programs or PROGRAMS[arguments.device]
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    print(f"{'U':>4} {'clients':>7}  {'program':20} {'ms/client-iteration':>20} {'peak GB':>8}  ratio")
    cells = []
    for steps in arguments.steps:
        baseline = float("nan")
        for clients in arguments.clients:
            for program in programs:
                if program == "double backward" and clients > 1:
                    continue  # the same number: clients one after another
                if "every" in program and clients < max(arguments.clients):
                    continue  # memory matters where there are many clients
                result = _in_own_process(program, steps, clients, arguments)
                cells.append({"steps": steps, "clients": clients, "program": program, **result})
                if "error" in result:
                    print(f"{steps:4} {clients:7}  {program:20} {result['error']}", flush=True)
                    continue
                if program == "double backward":
                    baseline = result["ms"]
                ratio = baseline / result["ms"]
                print(
                    f"{steps:4} {clients:7}  {program:20} {result['ms']:20.2f} {result['gb']:8.2f}  {ratio:.2f}×",
                    flush=True,
                )
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "cells": cells}, file, indent=1)


def _in_own_process(program: str, steps: int, clients: int, arguments: argparse.Namespace) -> dict[str, Any]:
    options = ["--device", arguments.device, "--iterations", str(arguments.iterations)]
    return in_own_process(__file__, [*options, "--cell", program, str(steps), str(clients)], arguments.limit)


if __name__ == "__main__":
    main()
