"""Milliseconds of one simulated local step and of its adjoint for many clients, compiled against traced, in one run.

An iteration of the attack on FedAvg is U such steps and as many adjoints, which is nearly all of its time: with
`--clients 100`, the sum of the two times is what an iteration with U = 100 takes for one client. On a GPU each is
captured in a CUDA graph, as in the attack. `--kernels` lists where the time of the compiled program goes, and the
largest relative difference between the two programs says whether they compute the same. `--inductor` compiles with
other settings than the attack does, to see what they would bring.

    python benchmarks/step.py --precision tf32 --kernels 20
    python benchmarks/step.py --network cnn-cifar --clients 20
    python benchmarks/step.py --precision tf32 --inductor max_autotune_gemm=true triton.prefer_nd_tiling=true
    python benchmarks/step.py --device cpu --clients 2 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from seepage import local
from seepage.engine.compiled import OPTIONS, Compiler
from seepage.engine.precision import arithmetic
from seepage.engine.sweep import Program
from seepage.models import build
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Task

SPECS = {
    "cnn-femnist": DataSpec((1, 28, 28), classes=62, mean=(0.9642384,), std=(0.1576784,)),
    "cnn-cifar": DataSpec((3, 32, 32), classes=100, mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762)),
}
Part = Callable[[], Any]


def program_of(task: Task, batch: int) -> Program:
    """What the attack would simulate a client with."""
    found: list[Program] = []

    def caught(program: Program, theta: Any, buffers: Any, *_: Any) -> Any:
        found.append(program)
        return theta, buffers

    recipe = Recipe(SGD(0.004), batch_size=batch, sends="update")
    x = torch.zeros(batch, *task.spec.shape)
    schedule = recipe.schedule(x, torch.zeros(batch, dtype=torch.long))
    local.sweep = caught  # type: ignore[attr-defined]
    local.local_update(task, task.params, schedule, recipe, compiled=True)
    return found[0]


def parts_of(program: Program, task: Task, clients: int, batch: int, device: str) -> dict[str, Part]:
    """A step and its adjoint for all clients, as functions without arguments."""
    rng = Stream.from_seed(1)
    theta = {name: p.expand(clients, *p.shape).contiguous() for name, p in task.params.items()}
    buffers = {name: b.expand(clients, *b.shape).contiguous() for name, b in task.buffers.items()}
    x = (rng / "x").normal(clients, batch, *task.spec.shape, device=device)
    y = (torch.arange(clients * batch, device=device) % task.spec.classes).reshape(clients, batch)
    bar = {name: 1e-3 * (rng / name).normal(*p.shape, device=device) for name, p in theta.items()}
    slots: dict[str, Any] = program.slots(theta)
    return {
        "step": lambda: program.advance(0, theta, slots, buffers, x, y),
        "adjoint": lambda: program.pull(0, theta, slots, buffers, x, y, (bar, slots)),
    }


def milliseconds(part: Part, device: str, repeats: int) -> float:
    """Of one call, without what it takes to launch it."""
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(repeats):
            part()
        return 1e3 * (time.perf_counter() - began) / repeats
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        part()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            part()
    graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / repeats


def difference(ours: Any, plain: Any) -> float:
    """The largest among all tensors, each relative to its largest entry."""
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(plain), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if a is not None)


def list_kernels(parts: dict[str, Part], count: int) -> None:
    """The kernels that take longest, of one step and one adjoint."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for part in parts.values():
            part()
        torch.cuda.synchronize()
    kernels = sorted(profiled.key_averages(), key=lambda k: -k.self_device_time_total)
    for kernel in kernels[:count]:
        print(f"{kernel.self_device_time_total:8.1f} µs {kernel.count:4} ×  {kernel.key[:100]}")


def main() -> None:
    """Print one line for each program, then the kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--network", default="cnn-femnist", choices=sorted(SPECS))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32"))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kernels", type=int, default=0, help="list so many of the compiled program, on a GPU")
    parser.add_argument("--inductor", nargs="*", default=[], metavar="SETTING=JSON", help="of torch._inductor.config")
    given = parser.parse_args()
    for setting in given.inductor:
        key, _, value = setting.partition("=")
        if key not in torch._inductor.list_options():
            parser.error(f"expected a setting of torch._inductor.config, got {key}")
        try:
            OPTIONS["inductor"][key] = json.loads(value)
        except json.JSONDecodeError:
            parser.error(f"expected {key}=JSON, such as {key}=true, got {setting}")
    name = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, {given.network}, {given.clients} clients, batches of {given.batch}")
    spec = SPECS[given.network]
    task = Task(build(given.network, spec, Stream.from_seed(0) / "model"), spec)
    program = program_of(task, given.batch)
    task.module.to(given.device)
    task = Task(task.module, spec)
    results: dict[str, Any] = {}
    times: dict[str, float] = {}
    with torch.no_grad(), arithmetic(given.precision):
        for what, backend in (("traced", "none"), ("compiled", "inductor")):
            began = time.perf_counter()
            parts = parts_of(
                replace(program, compiler=Compiler(backend)), task, given.clients, given.batch, given.device
            )
            results[what] = [part() for part in parts.values()]
            ready = time.perf_counter() - began
            took = {part: milliseconds(call, given.device, given.repeats) for part, call in parts.items()}
            times[what] = sum(took.values())
            print(
                f"{what:9} {given.precision}: step {took['step']:.3f} ms, adjoint {took['adjoint']:.3f} ms, "
                f"{times[what] / given.clients:.4f} ms a client; {ready:.0f} s until the first",
                flush=True,
            )
        print(f"compiled is {times['traced'] / times['compiled']:.2f} times as fast as traced")
        print(f"largest relative difference: {difference(results['compiled'], results['traced']):.1e}")
        if given.kernels and given.device == "cuda":
            list_kernels(parts, given.kernels)


if __name__ == "__main__":
    main()
