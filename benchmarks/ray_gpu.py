"""Trials of two shapes that share one GPU on Ray, against the pool of one process in the same run.

Printed are the share of the GPU that each shape was seen to need, how many lanes were at work at once, the most memory
that the GPU had in use, the seconds of both pools, and whether both have the same table.

    python benchmarks/ray_gpu.py
    python benchmarks/ray_gpu.py --device cpu --share 0.5   # the same without a GPU, which Ray is made to believe in
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas.testing import assert_frame_equal

from seepage.audit.experiment import Experiment, parse
from seepage.audit.perform import device_name
from seepage.audit.ray_pool import RayPool
from seepage.audit.run import run
from seepage.audit.table import Table


def sweep(cohorts: int, steps: int) -> Experiment:
    """One gradient of a small network by many clients at once, and local training by few."""
    small = {"name": "one gradient", "model": {"name": "mlp", "options": {"hidden": [64]}}}
    small |= {"recipe": {"sends": "gradient"}, "attack": [{"name": "inverting-gradients", "steps": steps}]}
    large = {"name": "local training", "model": {"name": "lenet-zhu"}, "recipe": {"epochs": 2, "batch_size": 2}}
    large |= {"clients": {"count": 4 * cohorts, "examples": 8}, "watch": {"together": 4}}
    large |= {"attack": [{"name": "fedavg-leakage", "steps": steps}]}
    common = {"clients": {"count": 8 * cohorts, "examples": 1}, "watch": {"together": 8}}
    return parse({"name": "two shapes", **common, "case": [small, large]}, "two shapes")


class Watch:
    """How many trials are under way, and how much of the GPU is in use, at most."""

    def __init__(self, device: torch.device) -> None:
        self.running, self.most, self.bytes = 0, 0, 0
        self.device, self.over = device, threading.Event()
        self.sampling = threading.Thread(target=self.sample, daemon=True)

    def __call__(self, number: int, count: int, trial: Any, event: str) -> None:
        """See `run`."""
        if event in ("again", "skip") or event.startswith("note"):
            return
        self.running += 1 if event == "start" else -1
        self.most = max(self.most, self.running)

    def sample(self) -> None:
        """Of all processes together, four times a second."""
        while self.device.type == "cuda" and not self.over.wait(0.25):
            free, total = torch.cuda.mem_get_info(self.device)
            self.bytes = max(self.bytes, total - free)

    def __enter__(self) -> Watch:
        self.sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.sampling.join()


def timed(experiment: Experiment, folder: Path, device: torch.device, pool: RayPool | None) -> tuple[Table, Watch]:
    """Run it, and print what it took."""
    began = time.perf_counter()
    with Watch(device) as watch:
        table = run(experiment, folder, device=device, listener=watch, pool=pool)
    seconds = time.perf_counter() - began
    memory = f", {watch.bytes / 1e9:.1f} GB of the GPU in use" if watch.bytes else ""
    print(f"{'Ray' if pool else 'one process'}: {seconds:.1f} s, trials at once: {watch.most}{memory}")
    return table, watch


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cohorts", type=int, default=12, help="of each shape")
    parser.add_argument("--steps", type=int, default=200, help="of each attack")
    parser.add_argument("--share", type=float, help="of the GPU for each trial; default: as measured")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    experiment = sweep(asked.cohorts, asked.steps)
    order = [trial.digest for trial in experiment.trials()]
    print(f"{device_name(device)}, {os.cpu_count()} cores, torch {torch.__version__}, Ray {ray.__version__}")
    ray.init(num_gpus=1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as scratch:
        near, _ = timed(experiment, Path(scratch) / "near", device, None)
        far, _ = timed(experiment, Path(scratch) / "far", device, RayPool(gpus=asked.share))
        claims: dict[str, set[float]] = {}
        for trial in experiment.trials():
            note = far.note(trial.digest)
            claims.setdefault(trial.case, set()).add(note.get("gpu_share", asked.share))
        for case, shares in claims.items():
            print(f"{case}: asks for {max(shares):.2f} of the GPU")
        got, expected = far.read(order), near.read(order)
        # Other kernels, or another number of threads, round otherwise, and a search carries that on to where it ends.
        found = ["value", "diagnosis"]
        assert_frame_equal(got.drop(columns=found), expected.drop(columns=found))
        alike = np.isclose(got["value"], expected["value"], rtol=1e-3, atol=1e-3, equal_nan=True)
        print(f"the {len(got)} rows are those of one process, and {alike.mean():.1%} of their values within 0.001")
        for (case, metric), rows in got[got["metric"].isin(["psnr", "objective"])].groupby(["case", "metric"]):
            alone = expected.loc[rows.index, "value"].mean()
            print(f"{case}, mean {metric}: {rows['value'].mean():.4g}, in one process {alone:.4g}")
    ray.shutdown()


if __name__ == "__main__":
    main()
