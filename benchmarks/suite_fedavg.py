"""Which form of the attack on several epochs `seepage attack` should use, on images that no page reports.

Clients of the middle of Fashion-MNIST's thousand, or of another data set where `SEEPAGE_DATA` has one, with labels that
nobody tells; networks of three draws. All forms have the same number of iterations.

    python benchmarks/suite_fedavg.py
    python benchmarks/suite_fedavg.py --init torch --first 700
    python benchmarks/suite_fedavg.py --data cifar100 --network cnn-cifar --images 6
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import seepage as sp
from seepage.attacks import FedAvg
from seepage.models import build

FORMS: dict[str, dict[str, Any]] = {
    "its own values": {},
    **{name: dict(FedAvg.presets[name]) for name in ("ours_femnist", "ours_calm_femnist", "ours_cifar", "ours")},
}


def measured(task: sp.Task, held: list[sp.Examples], given: argparse.Namespace, knobs: dict[str, Any]) -> list[float]:
    """PSNR of every image."""
    recipe = sp.Recipe(sp.SGD(given.lr), epochs=given.epochs, batch_size=given.batch, sends="weights")
    (only,) = sp.play(task, held, recipe, sp.Federation(), sp.Stream.from_seed(1))
    view = sp.observe([(c, None) for c in only.captures], sp.Setting(task, recipe), sp.THREATS["honest-server"])
    found = FedAvg(**{**knobs, "steps": given.steps})(view, sp.Stream.from_seed(1))
    assert found.inputs is not None
    scored = [sp.score(x, None, data, task.spec) for x, data in zip(found.inputs, held, strict=True)]
    return [one.value for client in scored for one in client.scores if one.metric == "psnr"]


def main() -> None:
    """Print the mean PSNR and what came back for every form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--network", default="cnn-femnist")
    parser.add_argument("--init", help="of its weights, such as torch; default: that of dimitrov2022")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--first", type=int, help="image of the first client; default: the middle one of the data set")
    parser.add_argument("--images", type=int, default=8, help="of each client")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--draws", type=int, default=3, help="of the network, each with two clients of its own")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = sp.load_data(given.data)
    begin = len(data.train) // 2 if given.first is None else given.first
    print(
        f"{given.data}, {given.network}, {given.epochs} × {given.batch} × {given.images}, {given.steps} iterations",
        flush=True,
    )
    for form in given.forms:
        began, psnr = time.perf_counter(), []
        for draw in range(given.draws):
            own = {"init": given.init} if given.init else {}
            module = build(given.network, data.spec, sp.Stream.from_seed(draw) / "model", **own)
            first = begin + 2 * draw * given.images
            held = [data.train[first + i * given.images : first + (i + 1) * given.images] for i in range(2)]
            psnr += measured(sp.Task(module, data.spec), held, given, FORMS[form])
        back = sum(value > 20 for value in psnr)
        spent = time.perf_counter() - began
        print(f"{form:20} mean {sum(psnr) / len(psnr):5.2f} dB  {back:3} of {len(psnr)}  {spent:4.0f} s", flush=True)


if __name__ == "__main__":
    main()
