"""Lane-iterations per second of Inverting Gradients on one 32 × 32 image per lane, against peers, in one run.

One iteration: the gradient of a ResNet-18 (eval-mode BatchNorm) at a dummy image, its cosine distance to an observed
gradient plus total variation, differentiated with respect to the image, and a step of signed Adam. Peers attack one
image at a time: the plain double backward that the papers' own programs are made of, and breaching where it is
installed (`pip install breaching==0.1.2`, or a folder named with --peers). Each cell runs in a process of its own.

    python benchmarks/single_gradient.py --device cuda
    python benchmarks/single_gradient.py --device cpu --model lenet-zhu --lanes 1 10
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from cells import in_own_process
from torch import Tensor

from seepage.engine.minimise import minimise
from seepage.engine.optimisers import adam, signed
from seepage.engine.precision import Precision, arithmetic
from seepage.local import local_update
from seepage.models import build
from seepage.pieces.distances import cosine
from seepage.pieces.priors import total_variation
from seepage.recipe import Recipe
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Params, Task

SPEC = DataSpec((3, 32, 32), classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))
TV = 1e-4


def ours(
    model: str, lanes: int, device: str, precision: Precision, iterations: int, compiled: bool = False
) -> dict[str, float]:
    """Seepage: all lanes in one program, one CUDA graph."""
    rng = Stream.from_seed(0)
    task = Task(build(model, SPEC, rng / "model").to(device), SPEC)
    recipe = Recipe(sends="gradient", batch_norm="eval")
    x = (rng / "x").normal(lanes, 1, 1, *SPEC.shape, device=device)
    y = torch.arange(lanes, device=device)[:, None] % 10
    params, buffers = ({n: t.expand(lanes, *t.shape) for n, t in d.items()} for d in (task.params, task.buffers))
    update = {n: (rng / n).normal(lanes, *t.shape, device=device) for n, t in task.params.items()}

    def objective(x: Tensor, y: Tensor, params: Params, buffers: Params, update: Params) -> Tensor:
        guess = local_update(task, params, recipe.schedule(x, y), recipe, buffers=buffers, compiled=compiled)
        return cosine(guess, update) + TV * total_variation(x)

    # A call of `progress` waits for the device, so the time between two calls is that of one iteration.
    stamps: list[float] = []
    minimise(
        objective,
        x,
        (y, params, buffers, update),
        optimiser=signed(adam(0.1)),
        steps=iterations,
        chunk=lanes,
        batched=task.batched,
        precision=precision,
        progress=lambda *_: stamps.append(time.perf_counter()),
        progress_every=1,
    )
    durations = [late - early for early, late in pairwise(stamps)][4:]  # the first ones warm up and capture
    return {"ms": 1e3 * statistics.median(durations), "gb": _memory(device)}


def plain(model: str, lanes: int, device: str, precision: Precision, iterations: int) -> dict[str, float]:
    """Double backward through the module itself, one image, one kernel at a time."""
    module = build(model, SPEC, Stream.from_seed(0) / "model").to(device).eval()
    weights = list(module.parameters())
    observed = [torch.randn_like(w) for w in weights]
    x = torch.randn(1, *SPEC.shape, device=device, requires_grad=True)
    y = torch.zeros(1, dtype=torch.long, device=device)
    optimiser = torch.optim.Adam([x], 0.1)
    durations = []
    with arithmetic(precision):
        for _ in range(iterations):
            _wait(device)
            began = time.perf_counter()
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(x), y)
            guess = torch.autograd.grad(loss, weights, create_graph=True)
            inner = torch.stack([(g * o).sum() for g, o in zip(guess, observed, strict=True)]).sum()
            lengths = [torch.stack([(t**2).sum() for t in tree]).sum().sqrt() for tree in (guess, observed)]
            (1 - inner / lengths[0] / lengths[1] + TV * total_variation(x)).backward()
            assert x.grad is not None
            x.grad.sign_()
            optimiser.step()
            _wait(device)
            durations.append(time.perf_counter() - began)
    return {"ms": 1e3 * statistics.median(durations[3:]), "gb": _memory(device)}


def breaching(model: str, lanes: int, device: str, precision: Precision, iterations: int) -> dict[str, float]:
    """The "invertinggradients" of breaching on the same module; time per iteration from two lengths of run."""
    import breaching as peer

    class Metadata:
        modality, size, classes, shape, normalize = "vision", (50_000,), 10, SPEC.shape, True
        mean, std = SPEC.mean, SPEC.std

        def __getitem__(self, key: str) -> Any:
            return getattr(self, key)

    module = build(model, SPEC, Stream.from_seed(0) / "model").to(device).eval()
    loss = torch.nn.CrossEntropyLoss()
    weights = [p.detach() for p in module.parameters()]
    x = torch.randn(1, *SPEC.shape, device=device)
    y = torch.zeros(1, dtype=torch.long, device=device)
    observed = [g.detach() for g in torch.autograd.grad(loss(module(x), y), list(module.parameters()))]
    payload = [{"parameters": weights, "buffers": list(module.buffers()), "metadata": Metadata()}]
    facts = {"num_data_points": 1, "labels": y, "local_hyperparams": None}
    shared = [{"gradients": observed, "buffers": None, "metadata": facts}]
    seconds = []
    with arithmetic(precision):
        for steps in (iterations, 3 * iterations):
            config = peer.get_attack_config("invertinggradients")
            config.optim.max_iterations = steps
            setup = {"device": torch.device(device), "dtype": torch.float}
            attacker = peer.attacks.prepare_attack(module, loss, config, setup)
            _wait(device)
            began = time.perf_counter()
            attacker.reconstruct(payload, shared, {}, dryrun=False)
            _wait(device)
            seconds.append(time.perf_counter() - began)
    return {"ms": 1e3 * (seconds[1] - seconds[0]) / (2 * iterations), "gb": _memory(device)}


PROGRAMS = {
    "double backward": plain,
    "breaching 0.1.2": breaching,
    "seepage": ours,
    "seepage, compiled": partial(ours, compiled=True),
}


PEERS = ("double backward", "breaching 0.1.2")


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _memory(device: str) -> float:
    return torch.cuda.max_memory_reserved() / 1e9 if device == "cuda" else float("nan")


def main() -> None:
    """Print one line per cell, and all of them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 8, 64, 128, 256])
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32"))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--limit", type=float, default=120.0, help="most seconds for one cell")
    parser.add_argument("--compiled", action="store_true", help="also time compiled programs")
    parser.add_argument("--peers", help="folder in which breaching is installed")
    parser.add_argument("--out", help="also write the cells as JSON here")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        if arguments.peers:
            sys.path.append(arguments.peers)
        program, lanes = arguments.cell
        settings = (arguments.model, int(lanes), arguments.device, arguments.precision, arguments.iterations)
        print(json.dumps(PROGRAMS[program](*settings)))
        return
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, {arguments.model}, {arguments.precision}")
    print(f"{'program':18} {'lanes':>5} {'ms/iteration':>13} {'lane-iterations/s':>18} {'peak GB':>8}  ratio")
    cells, rates = [], {}
    names = ["seepage", "seepage, compiled"] if arguments.compiled else ["seepage"]
    wanted = [("double backward", 1), ("breaching 0.1.2", 1), *((n, k) for k in arguments.lanes for n in names)]
    for program, lanes in wanted:
        result = _in_own_process(program, lanes, arguments)
        cells.append({"program": program, "lanes": lanes, **result})
        if "error" in result:
            print(f"{program:18} {lanes:5}  {result['error']}", flush=True)
            continue
        rate = 1e3 * lanes / float(result["ms"])
        rates.setdefault(program, rate)
        ratios = [f"{rate / rates[peer]:.1f}× {peer}" for peer in PEERS if peer in rates and peer != program]
        print(
            f"{program:18} {lanes:5} {result['ms']:13.2f} {rate:18.0f} {result['gb']:8.2f}  {', '.join(ratios)}",
            flush=True,
        )
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "cells": cells}, file, indent=1)


def _in_own_process(program: str, lanes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    options = ["--device", arguments.device, "--model", arguments.model, "--precision", arguments.precision]
    options += ["--iterations", str(arguments.iterations)]
    options += ["--peers", arguments.peers] if arguments.peers else []
    return in_own_process(__file__, [*options, "--cell", program, str(lanes)], arguments.limit)


if __name__ == "__main__":
    main()
