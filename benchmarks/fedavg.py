"""Milliseconds per client-iteration and peak memory of the whole attack on FedAvg, against peers, in one run.

One iteration of dimitrov2022's attack as its released code has it: all local steps of a client on the FEMNIST network
(10 epochs of 50 images in batches of 5), on dummies of their own for each epoch; the layer-weighted distance to the
observed update, total variation, clipping and the order prior; the derivative with respect to every dummy; one Adam
step. Peers: plain double backward through all steps, with the same priors; JAX, jit and scan over the steps, for one
client as the released code does it and mapped over clients; breaching's simulation of clients. They run where they can
be imported (`pip install jax breaching==0.1.2`, or into a folder named with --peers). SME is the surrogate that needs
no simulation. Then time and memory as functions of local steps U, examples N and clients, with fitted exponents. Each
cell runs in a process of its own.

With --whole, seconds of whole attacks on real clients in the place of milliseconds of an iteration, from the start of
Python to the last score: rows of a table of the paper.

    python benchmarks/fedavg.py --device cuda --out fedavg-cuda.json
    python benchmarks/fedavg.py --device cpu --steps 10 --images 10 --clients 1 2
    python benchmarks/fedavg.py --device cuda --growth --programs seepage "seepage, every 10th"
    python benchmarks/fedavg.py --device cuda --whole "prior, code" --data ../shared/data
    python benchmarks/fedavg.py --device cpu --whole "prior, code" "SME, quick" --clients 1 --limit 900
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cells import in_own_process
from torch.func import functional_call
from torch.nn import functional

from seepage.attacks import SME, FedAvg, fedavg, sme
from seepage.audit.experiment import read_experiment
from seepage.audit.run import run
from seepage.audit.summary import read_rows, summarise
from seepage.capture import Capture, Exchange, Secret
from seepage.engine.minimise import minimise
from seepage.models import build
from seepage.recipe import SGD, Recipe, Schedule
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Params, Task
from seepage.threat import THREATS, Setting, View, observe

SPEC = DataSpec((1, 28, 28), classes=62, mean=(0.9642384,), std=(0.1576784,))
LR = 0.004
ON_CPU = 10  # as many clients as the engine puts in one program there
SMALLEST = 0.02  # GB: less is lost in what the process held before
TABLE, ROW = "dimitrov2022/table1_femnist", "10 × 5 × 50"  # of which --whole attacks clients


@dataclass(frozen=True)
class Size:
    """Of an attack: U local steps on N images in batches of `batch`, for so many clients at once."""

    steps: int = 100
    images: int = 50
    batch: int = 5
    clients: int = 1

    @property
    def epochs(self) -> int:
        """That make so many steps."""
        return max(1, self.steps * self.batch // self.images)


Measured = dict[str, float]


def made_up_view(size: Size, device: str) -> View:
    """What a server sees of clients whose data and updates are noise: time does not depend on their values."""
    rng = Stream.from_seed(0)
    task = Task(build("cnn-femnist", SPEC, rng / "model").to(device), SPEC)
    recipe = Recipe(SGD(LR), epochs=size.epochs, batch_size=size.batch, sends="update")
    pairs = []
    for i in range(size.clients):
        here = rng / "client" / i
        update = {n: 1e-3 * (here / n).normal(*p.shape, device=device) for n, p in task.params.items()}
        exchange = Exchange(0, task.params, update, "update", task.buffers, None, size.images)
        labels = torch.arange(size.images, device=device) % 62
        secret = Examples(torch.zeros(size.images, *SPEC.shape, device=device), labels)
        pairs.append((Capture(str(i), (exchange,)), Secret(str(i), secret)))
    return observe(pairs, Setting(task, recipe), THREATS["label-aware-server"])


def ours(size: Size, device: str, iterations: int, knobs: dict[str, Any], **forced: Any) -> Measured:
    """The attack itself, with its own objective; `forced` are options of `minimise`."""
    view = made_up_view(size, device)
    stamps: list[float] = []
    attack = SME(steps=iterations) if knobs.get("surrogate") else FedAvg(steps=iterations, **knobs)

    # A call of `progress` waits for the device, so the time between two calls is that of one iteration.
    def timed(*arguments: Any, **options: Any) -> Any:
        watched = {"progress": lambda *_: stamps.append(_clock(device)), "progress_every": 1}
        return minimise(*arguments, **{**options, **watched, "chunk": size.clients, **forced})

    fedavg.minimise = sme.minimise = timed  # type: ignore[attr-defined]
    floor = _memory(device)
    attack(view, Stream.from_seed(1))
    # The first iteration is out of the ordinary; on a GPU two more warm up, and the next is captured in a graph.
    durations = [late - early for early, late in pairwise(stamps)][2 if device == "cuda" else 0 :]
    return {"ms": 1e3 * statistics.median(durations) / size.clients, "gb": _memory(device) - floor}


def seepage(size: Size, device: str, iterations: int) -> Measured:
    """All clients in one program, one CUDA graph."""
    return ours(size, device, iterations, {})


def seepage_tf32(size: Size, device: str, iterations: int) -> Measured:
    """The same with products in TF32."""
    return ours(size, device, iterations, {"precision": "tf32"})


def seepage_compiled(size: Size, device: str, iterations: int) -> Measured:
    """The same with each step and its adjoint compiled by inductor, which takes a minute before the first iteration."""
    return ours(size, device, iterations, {"compiled": True})


def seepage_compiled_tf32(size: Size, device: str, iterations: int) -> Measured:
    """Compiled, with products in TF32."""
    return ours(size, device, iterations, {"compiled": True, "precision": "tf32"})


def seepage_tuned(size: Size, device: str, iterations: int) -> Measured:
    """The same with each product of matrices timed by every program that inductor has for it, which takes minutes."""
    from torch._inductor import config

    config.max_autotune = True
    return seepage_compiled_tf32(size, device, iterations)


def seepage_every_10th(size: Size, device: str, iterations: int) -> Measured:
    """The same with every tenth state of the parameters stored and the others computed again."""
    return ours(size, device, iterations, {"keep_every": 10})


def surrogate(size: Size, device: str, iterations: int) -> Measured:
    """SME: one gradient in the place of all local steps."""
    return ours(size, device, iterations, {"surrogate": True})


def plain_update(task: Task, params: Params, schedule: Schedule, *_: Any, **__: Any) -> Params:
    """Training as most published code writes it: nothing of Seepage in it, not even a layer."""
    now = {name: p.detach().requires_grad_() for name, p in params.items()}
    for x, y in zip(schedule.x, schedule.y, strict=True):
        loss = functional.cross_entropy(functional_call(task.module, now, (x,)), y)
        gradients = torch.autograd.grad(loss, list(now.values()), create_graph=True)
        now = {name: p - LR * g for (name, p), g in zip(now.items(), gradients, strict=True)}
    return {name: p - now[name] for name, p in params.items()}


def double_backward(size: Size, device: str, iterations: int, graph: str = "never") -> Measured:
    """The attack's own objective through a graph over all steps of the module as it is, one kernel at a time."""
    fedavg.local_update = plain_update  # type: ignore[attr-defined]
    return ours(size, device, iterations, {}, batched=False, graph=graph)


def double_backward_graph(size: Size, device: str, iterations: int) -> Measured:
    """The same inside one CUDA graph."""
    return double_backward(size, device, iterations, "always")


def breaching(size: Size, device: str, iterations: int) -> Measured:
    """The "invertinggradients" of breaching with its own simulation of local steps, without a prior: its TV has RGB."""
    import breaching as peer

    class Metadata:
        modality, size, classes, shape, normalize = "vision", (50_000,), 62, SPEC.shape, True
        mean, std = SPEC.mean, SPEC.std

        def __getitem__(self, key: str) -> Any:
            return getattr(self, key)

    module = build("cnn-femnist", SPEC, Stream.from_seed(0) / "model").to(device).eval()
    weights = [p.detach() for p in module.parameters()]
    n = size.epochs * size.images
    y = torch.arange(n, device=device) % 62
    local = {"lr": LR, "steps": size.steps, "data_per_step": size.batch, "labels": list(y.split(size.batch))}
    payload = [{"parameters": weights, "buffers": list(module.buffers()), "metadata": Metadata()}]
    facts = {"num_data_points": n, "labels": y, "local_hyperparams": local}
    shared = [{"gradients": [1e-3 * torch.randn_like(w) for w in weights], "buffers": None, "metadata": facts}]
    setup = {"device": torch.device(device), "dtype": torch.float}
    seconds, floor = [], _memory(device)
    for steps in (iterations, 3 * iterations):
        config = peer.get_attack_config("invertinggradients")
        config.optim.max_iterations = steps
        config.regularization.total_variation.scale = 0.0
        attacker = peer.attacks.prepare_attack(module, torch.nn.CrossEntropyLoss(), config, setup)
        _wait(device)
        began = time.perf_counter()
        attacker.reconstruct(payload, shared, {}, dryrun=False)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return {"ms": 1e3 * (seconds[1] - seconds[0]) / (2 * iterations), "gb": _memory(device) - floor}


def jax_scan(size: Size, device: str, iterations: int) -> Measured:
    """The same objective and Adam in JAX: jit, scan over the steps, vmap over clients where there are several."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    from jax import lax

    jax.config.update("jax_platforms", device)
    jax.config.update("jax_default_matmul_precision", "highest")  # else products are rounded to TF32
    normal = jax.random.normal
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 16))
    shapes = {"conv1": (32, 1, 3, 3), "conv2": (64, 32, 3, 3), "linear1": (3136, 100), "linear2": (100, 62)}
    width = {"conv1": 32, "conv2": 64, "linear1": 100, "linear2": 62}
    params = {name: (0.05 * normal(next(keys), shape), jnp.zeros(width[name])) for name, shape in shapes.items()}
    decay = {name: math.exp(-depth) / size.steps for depth, name in enumerate(shapes)}
    low, high = (0 - SPEC.mean[0]) / SPEC.std[0], (1 - SPEC.mean[0]) / SPEC.std[0]

    def forward(params: Any, x: Any) -> Any:
        for name in ("conv1", "conv2"):
            weight, bias = params[name]
            x = lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = jax.nn.relu(x + bias[:, None, None])
            x = x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).mean((3, 5))
        x = x.reshape(len(x), -1)
        x = jax.nn.relu(x @ params["linear1"][0] + params["linear1"][1])
        return x @ params["linear2"][0] + params["linear2"][1]

    def loss(params: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(forward(params, x)), y[:, None], 1).mean()

    def step(params: Any, batch: Any) -> Any:
        return jax.tree.map(lambda p, g: p - LR * g, params, jax.grad(loss)(params, *batch)), None

    def objective(x: Any, y: Any, target: Any, factor: Any) -> Any:  # x: (epochs, n, 1, 28, 28)
        batches = x.reshape(size.steps, size.batch, *SPEC.shape), y.reshape(size.steps, size.batch)
        after, _ = lax.scan(step, params, batches)
        value = 0.0
        for name in shapes:
            for p, q, t in zip(params[name], after[name], target[name], strict=True):
                value = value + factor * decay[name] * (((p - q) / LR - t) ** 2).sum()
        images = x.reshape(-1, *SPEC.shape)
        variation = sum(((jnp.roll(images, 1, axis) - images) ** 2).sum() for axis in (2, 3)) / len(images)
        outside = ((images - images.clip(low, high)) * SPEC.std[0]) ** 2
        mean = x.mean(1)  # over all pairs of epochs, squared differences are twice the variance
        return value + 1e-3 * variation + 2.0 * outside.sum() / len(images) + 1000.0 * 2 * mean.var(0).mean()

    def attack(x: Any, first: Any, second: Any, t: Any, y: Any, target: Any) -> Any:
        gradient = jax.grad(objective)(x, y, target, 2.0 ** jnp.minimum(t / 200, 1.0))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        scale = 0.4 * 0.995 ** (t / 10)
        moved = scale * (first / (1 - 0.9 ** (t + 1))) / (jnp.sqrt(second / (1 - 0.999 ** (t + 1))) + 1e-8)
        return x - moved, first, second

    several = size.clients > 1
    axis = (size.clients,) if several else ()
    iteration = jax.jit(jax.vmap(attack, (0, 0, 0, None, 0, 0)) if several else attack)
    x = normal(next(keys), (*axis, size.epochs, size.images, *SPEC.shape))
    y = jnp.broadcast_to(jnp.arange(size.epochs * size.images) % 62, (*axis, size.epochs * size.images))
    target = jax.tree.map(lambda p: normal(next(keys), (*axis, *p.shape)), params)
    state, floor, durations = (x, jnp.zeros_like(x), jnp.zeros_like(x)), _memory(device), []
    for t in range(iterations + 1):  # the first compiles
        began = time.perf_counter()
        state = jax.block_until_ready(iteration(*state, float(t), y, target))
        durations.append(time.perf_counter() - began)
    gb = jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e9 if device == "cuda" else _memory(device) - floor
    return {"ms": 1e3 * statistics.median(durations[1:]) / size.clients, "gb": gb, "compile_s": durations[0]}


def whole(label: str, arguments: argparse.Namespace) -> Measured:
    """One row of the paper's table as `seepage reproduce` makes it: clients train, are attacked and scored."""
    experiment = read_experiment(Path(__file__).parents[1] / "experiments" / f"{TABLE}.toml")
    (case,) = (case for case in experiment.cases if case.name == ROW)
    knobs = {"precision": arguments.precision, **({"steps": arguments.whole_steps} if arguments.whole_steps else {})}
    chosen = [replace(attack, **knobs) for attack, name in zip(case.attacks, case.labels, strict=True) if name == label]
    clients = replace(case.clients, count=max(arguments.clients or [case.clients.count]))
    case = replace(case, attacks=tuple(chosen), labels=(label,), clients=clients)
    experiment = replace(experiment, cases=(case,))
    searched: list[float] = []

    def timed(*given: Any, **options: Any) -> Any:
        _wait(arguments.device)
        began = time.perf_counter()
        found = minimise(*given, **options)
        _wait(arguments.device)
        searched.append(time.perf_counter() - began)
        return found

    fedavg.minimise = sme.minimise = timed  # type: ignore[attr-defined]
    with TemporaryDirectory() as folder:
        run(experiment, Path(folder), device=torch.device(arguments.device), data=arguments.data)
        (line,) = summarise(read_rows(Path(folder))[1])
    if line.failures:
        raise RuntimeError(line.failures[0])
    scores = {name: line.mean(name) for name in ("recovered", "psnr")}
    return {"search_s": sum(searched), "clients": line.clients, "steps": chosen[0].steps, **scores}


PROGRAMS: dict[str, Callable[[Size, str, int], Measured]] = {
    "double backward": double_backward,
    "double backward, graph": double_backward_graph,
    "breaching 0.1.2": breaching,
    "JAX scan": jax_scan,
    "seepage": seepage,
    "seepage, tf32": seepage_tf32,
    "seepage, compiled": seepage_compiled,
    "seepage, compiled, tf32": seepage_compiled_tf32,
    "seepage, tuned, tf32": seepage_tuned,
    "seepage, every 10th": seepage_every_10th,
    "SME": surrogate,
}
ONE_CLIENT = {"double backward", "double backward, graph", "breaching 0.1.2"}  # others one after another: the same time
CUDA_ONLY = {"double backward, graph", *(name for name in PROGRAMS if "tf32" in name or "compiled" in name)}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _clock(device: str) -> float:
    """Seconds; on one CPU thread those that it ran, whatever else the machine was busy with."""
    alone = device == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else time.perf_counter()


def _memory(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_reserved() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def exponent(sizes: list[float], values: list[float]) -> float:
    """Of the power of the size that fits the values best: the slope of their logarithms by least squares."""
    if len(set(sizes)) < 2:
        return math.nan
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    mx, my = statistics.fmean(x), statistics.fmean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def main() -> None:
    """Print one line per cell, then the exponents, and all of it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=100, help="local steps U")
    parser.add_argument("--images", type=int, default=50, help="examples N of each client")
    parser.add_argument("--batch", type=int, default=5, help="examples of a step, m")
    parser.add_argument("--clients", type=int, nargs="+", help="1, 10 and 100; on a CPU 1 and 10")
    parser.add_argument("--programs", nargs="+", choices=sorted(PROGRAMS))
    parser.add_argument("--growth", action="store_true", help="also vary U, N and clients one at a time, and fit")
    parser.add_argument("--growth-steps", type=int, nargs="+", default=[10, 50, 100, 500])
    parser.add_argument("--growth-images", type=int, nargs="+", default=[10, 50, 100, 200], help="with 10 batches")
    parser.add_argument("--growth-clients", type=int, nargs="+", default=None, help="those of --clients")
    parser.add_argument("--iterations", type=int, default=None, help="of each cell; 12, on a CPU 3")
    parser.add_argument("--turns", type=int, default=1, help="measure all cells so often in turn: medians so far")
    parser.add_argument("--limit", type=float, default=300.0, help="most seconds for one cell")
    parser.add_argument("--peers", help="folder in which jax or breaching are installed")
    parser.add_argument("--whole", nargs="+", help=f"instead: whole attacks of {ROW!r} of {TABLE}, by label")
    parser.add_argument("--whole-steps", type=int, help="of their iterations; those of the table")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32"), help="of whole attacks")
    parser.add_argument("--data", help="folder of data sets, for whole attacks; default: $SEEPAGE_DATA")
    parser.add_argument("--out", help="also write the cells as JSON here")
    parser.add_argument("--resume", action="store_true", help="take the cells that --out has from the same device")
    parser.add_argument("--cell", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--whole-cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.iterations = arguments.iterations or (12 if arguments.device == "cuda" else 3)
    if arguments.cell:
        if arguments.peers:
            sys.path.append(arguments.peers)
        program, *numbers = arguments.cell
        size = Size(*map(int, numbers))
        print(json.dumps(PROGRAMS[program](size, arguments.device, arguments.iterations)))
        return
    if arguments.whole_cell:
        print(json.dumps(whole(arguments.whole_cell, arguments)))
        return
    clients = arguments.clients or ([1, 10, 100] if arguments.device == "cuda" else [1, ON_CPU])
    if arguments.iterations < (fewest := 5 if arguments.device == "cuda" else 2):
        parser.error(f"--iterations: expected {fewest} or more, as the first are not timed, got {arguments.iterations}")
    wanted = arguments.programs or [p for p in PROGRAMS if arguments.device == "cuda" or p not in CUDA_ONLY]
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if arguments.whole:
        rows = [_whole_in_own_process(label, arguments) for label in arguments.whole]
        for row in rows[1:]:
            if not {"error"} & (row.keys() | rows[0].keys()):
                ratios = [rows[0][what] / row[what] for what in ("search_s", "seconds")]
                print(
                    f"{row['attack']}: {ratios[0]:.1f} times as fast as {rows[0]['attack']} in the search, "
                    f"{ratios[1]:.1f} from start to end"
                )
        _write(arguments.out, name, whole=rows)
        return
    print(f"{'program':22} {'U':>4} {'N':>4} {'clients':>7} {'ms/client-iteration':>20} {'peak GB':>8}  ratio")
    done = _kept(arguments.out, name) if arguments.resume else {}
    for program, size in done:
        _print_cell(program, size, done)

    def measure(program: str, size: Size, again: bool = False) -> dict[str, Any]:
        if again or (program, size) not in done:
            result = _in_own_process(program, size, arguments)
            samples.setdefault((program, size), []).append(result.get("ms", math.inf))
            done[program, size] = {
                **result,
                **({"ms": statistics.median(samples[program, size])} if "ms" in result else {}),
            }
            _print_cell(program, size, done)
            keep()
        return done[program, size]

    def keep() -> None:  # after each cell: nothing is lost of a run that is stopped
        cells = [{"program": program, **vars(size), **result} for (program, size), result in done.items()]
        _write(arguments.out, name, cells=cells, fits=fits)

    samples: dict[tuple[str, Size], list[float]] = {}
    fits: list[dict[str, Any]] = []

    base = Size(arguments.steps, arguments.images, arguments.batch)
    for turn in range(arguments.turns):
        for program in wanted:
            for count in [1] if program in ONE_CLIENT else clients:
                measure(program, Size(base.steps, base.images, base.batch, count), again=turn > 0)
    if arguments.growth:
        for program in [p for p in wanted if p not in ONE_CLIENT]:
            most = max(clients)
            grown = {
                "U": [Size(u, base.images, base.batch, most) for u in arguments.growth_steps],
                "N": [Size(100, n, n // 10, most) for n in arguments.growth_images],
                "clients": [Size(base.steps, base.images, base.batch, c) for c in arguments.growth_clients or clients],
            }
            for axis, sizes in grown.items():
                fits.append({"program": program, "of": axis, **_fit(axis, [(s, measure(program, s)) for s in sizes])})
        for fit in fits:
            print(f"{fit['program']:22} time ∝ {fit['of']}^{fit['time']:.2f}, memory ∝ {fit['of']}^{fit['memory']:.2f}")
        keep()


def _write(path: str | None, device: str, **measured: Any) -> None:
    if path:
        text = json.dumps({"device": device, "torch": torch.__version__, **measured}, indent=1)
        Path(path).write_text(text, encoding="utf-8")


def _kept(path: str | None, device: str) -> dict[tuple[str, Size], dict[str, Any]]:
    """Cells of an earlier run on this device with this torch, but for those that failed."""
    if not path or not Path(path).exists():
        return {}
    earlier = json.loads(Path(path).read_text(encoding="utf-8"))
    if (earlier["device"], earlier["torch"]) != (device, torch.__version__):
        raise SystemExit(f"{path}: of {earlier['device']}, torch {earlier['torch']}; name another file with --out")
    sizes = [field.name for field in fields(Size)]
    return {
        (cell["program"], Size(*(cell[name] for name in sizes))): {
            key: value for key, value in cell.items() if key not in ("program", *sizes)
        }
        for cell in earlier["cells"]
        if "error" not in cell
    }


def _whole_in_own_process(label: str, arguments: argparse.Namespace) -> dict[str, Any]:
    options = ["--device", arguments.device, "--precision", arguments.precision, "--whole-cell", label]
    options += ["--data", arguments.data] if arguments.data else []
    options += ["--whole-steps", str(arguments.whole_steps)] if arguments.whole_steps else []
    options += ["--clients", *map(str, arguments.clients)] if arguments.clients else []
    began = time.perf_counter()
    result = in_own_process(__file__, options, arguments.limit)
    result = {"attack": label, "precision": arguments.precision, "seconds": time.perf_counter() - began, **result}
    if "error" in result:
        print(f"{label}: {result['error']}", flush=True)
    else:
        print(
            f"{label}: {result['clients']} clients, {result['steps']} iterations, {arguments.precision}: "
            f"{result['seconds']:.0f} s from start to end, {result['search_s']:.0f} s of it in the search; "
            f"{100 * result['recovered']:.1f} % recovered, {result['psnr']:.1f} dB",
            flush=True,
        )
    return result


def _fit(axis: str, measured: list[tuple[Size, dict[str, Any]]]) -> dict[str, float]:
    """Exponents of the time of an iteration of all clients, and of peak memory."""
    good = [(size, result) for size, result in measured if "error" not in result]
    large = [(size, result) for size, result in good if result["gb"] >= SMALLEST]

    def along(cells: list[tuple[Size, dict[str, Any]]]) -> list[float]:
        return [float({"U": s.steps, "N": s.images, "clients": s.clients}[axis]) for s, _ in cells]

    return {
        "time": exponent(along(good), [float(r["ms"]) * s.clients for s, r in good]),
        "memory": exponent(along(large), [float(r["gb"]) for _, r in large]),
    }


def _print_cell(program: str, size: Size, done: dict[tuple[str, Size], dict[str, Any]]) -> None:
    result = done[program, size]
    begin = f"{program:22} {size.steps:4} {size.images:4} {size.clients:7}"
    if "error" in result:
        print(f"{begin}  {result['error']}", flush=True)
        return
    alone = Size(size.steps, size.images, size.batch)
    peers = {p: done.get((p, alone), {}).get("ms") for p in ("double backward", "breaching 0.1.2", "JAX scan")}
    ratios = ", ".join(f"{ms / result['ms']:.1f}× {peer}" for peer, ms in peers.items() if ms and peer != program)
    print(f"{begin} {result['ms']:20.2f} {result['gb']:8.2f}  {ratios}", flush=True)


def _in_own_process(program: str, size: Size, arguments: argparse.Namespace) -> dict[str, Any]:
    options = ["--device", arguments.device, "--iterations", str(arguments.iterations)]
    options += ["--peers", arguments.peers] if arguments.peers else []
    numbers = [str(n) for n in (size.steps, size.images, size.batch, size.clients)]
    return in_own_process(__file__, [*options, "--cell", program, *numbers], arguments.limit)


if __name__ == "__main__":
    main()
