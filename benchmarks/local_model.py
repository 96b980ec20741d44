"""The federation of driouich2023 on Adult: ten clients of a 3 x 256 MLP at batch 512, in one program and one by one.

    python benchmarks/local_model.py --rounds 20
    python benchmarks/local_model.py --rounds 1000 --skip-plain

Prints seconds per round (median), on the clock and of the processor, and what 1000 rounds take at that pace, beside a
plain PyTorch loop over clients in the same run. Rounds of all are played in turn, so that what else the machine does
falls on all of them. Not a test.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

from seepage.data import load
from seepage.models import build
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, play
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Task

LR, BATCH = 0.01, 512


def clients(folder: Path | None) -> tuple[list[Examples], Task]:
    """The ten clients of driouich2023, and their task."""
    data = load("adult-phd", folder)
    assert data.train_owner is not None
    held = [data.train[data.train_owner == owner] for owner in range(10)]
    return held, Task(build("mlp", data.spec, Stream.from_seed(0)), data.spec)


def plain_round(module: nn.Module, held: list[Examples]) -> None:
    """FedAvg as one writes it first: a copy, a loader's batches and an optimiser for each client."""
    total = sum(len(examples) for examples in held)
    mean = {name: torch.zeros_like(p) for name, p in module.state_dict().items()}
    for examples in held:
        local = copy.deepcopy(module).train()
        optimiser = torch.optim.SGD(local.parameters(), LR)
        for which in torch.randperm(len(examples)).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(local(examples.x[which]), examples.y[which]).backward()
            optimiser.step()
        for name, p in local.state_dict().items():
            mean[name] += len(examples) / total * p
    module.load_state_dict(mean)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=None, help="folder of data sets; default: $SEEPAGE_DATA")
    parser.add_argument("--skip-plain", action="store_true", help="measure Seepage alone")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    held, task = clients(options.data)
    recipe = Recipe(SGD(LR), batch_size=BATCH, sends="weights", sends_buffers=False)
    ways = {
        name: play(task, held, recipe, Federation(options.rounds + 1, together=together), Stream.from_seed(0))
        for name, together in (("together", True), ("one by one", False))
    }
    module = copy.deepcopy(task.module)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ways, "plain PyTorch loop")}
    for number in range(options.rounds + 1):
        for name in spent:
            if options.skip_plain and name != "together":
                continue
            began = time.perf_counter(), time.process_time()
            if name in ways:
                next(ways[name])
            else:
                plain_round(module, held)
            if number:  # the first round warms up
                spent[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, {options.threads} threads")
    for name, measured in spent.items():
        if measured:
            clock, processor = (median(seconds) for seconds in zip(*measured, strict=True))
            print(
                f"{name:20s} {clock:.3f} s a round, {clock * 1000 / 60:.1f} min for 1000 rounds of 10 clients; "
                f"of the processor {processor:.3f} s and {processor * 1000 / 60:.1f} min"
            )
    if options.out:
        options.out.write_text(json.dumps({"rounds": options.rounds, "threads": options.threads, "seconds": spent}))


if __name__ == "__main__":
    main()
