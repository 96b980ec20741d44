"""Which weight of total variation `seepage attack` should use, on images that no page reports.

Wards 50 to 53 of `examples/flower`, with a network of another initialisation; the tutorial's wards are 0 and 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower"))

from ward.model import examples, network

import seepage as sp

torch.set_num_threads(1)
WARDS = range(50, 54)
RECIPE = sp.Recipe(sp.SGD(0.01), sends="weights")


def main() -> None:
    """Print the mean PSNR for every weight and number of steps."""
    torch.manual_seed(1)
    task = sp.Task(network(), sp.load_data("fashion-mnist").spec)
    held = [examples(ward) for ward in WARDS]
    (only,) = sp.play(task, held, RECIPE, sp.Federation(), sp.Stream.from_seed(1))
    view = sp.observe([(c, None) for c in only.captures], sp.Setting(task, RECIPE), sp.THREATS["honest-server"])
    for steps in (300, 1000):
        for tv in (1e-2, 1e-3, 1e-4, 1e-6):
            found = sp.InvertingGradients(tv=tv, steps=steps)(view, sp.Stream.from_seed(1))
            assert found.inputs is not None
            scored = [sp.score(x, None, data, task.spec) for x, data in zip(found.inputs, held, strict=True)]
            psnr = [one.value for client in scored for one in client.scores if one.metric == "psnr"]
            back = sum(value > 20 for value in psnr)
            print(
                f"steps {steps:5}  tv {tv:7g}  mean {sum(psnr) / len(psnr):5.2f} dB  {back} of {len(psnr)}", flush=True
            )


if __name__ == "__main__":
    main()
