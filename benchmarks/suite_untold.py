"""What the searches of `seepage attack` bring back where nobody tells how clients train; images are of no page.

Clients of the middle of Fashion-MNIST's thousand, or the last writers of FEMNIST, who train for one step or for many;
SME as a line and as a curve beside the searches that take every update for one step. All have the same number of
iterations. `--taken-for SGD` has the attacker take every client for one of SGD, however its update looks.

    python benchmarks/suite_untold.py
    python benchmarks/suite_untold.py --optimiser Adam --data femnist --init lecun-normal
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

import seepage as sp
from seepage.attacks import SME, InvertingGradients
from seepage.data.dataset import Dataset
from seepage.inspect.guessed_recipe import guess_recipe
from seepage.inspect.nature import infer
from seepage.inspect.suite import SMOOTH
from seepage.models import build

TRAINED = {  # epochs, batch size, examples, optimiser
    "SGD": [
        (1, None, 4, sp.SGD(0.02)),
        (1, 4, 8, sp.SGD(0.02)),
        (3, 4, 8, sp.SGD(0.02)),
        (10, 4, 8, sp.SGD(0.02)),
        (10, 4, 8, sp.SGD(0.1)),
    ],
    "Adam": [
        (1, None, 4, sp.Adam(0.001)),
        (3, 4, 8, sp.Adam(0.001)),
        (10, 4, 8, sp.Adam(0.001)),
    ],
}


def held_by(data: Dataset, client: int, n: int) -> sp.Examples:
    """The first images of a writer, counted from the last one, or a piece of the middle of a data set without any."""
    if data.train_owner is None:
        middle = len(data.train) // 2
        return data.train[middle + client * n : middle + (client + 1) * n]
    writer = data.train_owner.unique()[-1 - client]
    return data.train[(data.train_owner == writer).nonzero().flatten()[:n]]


def main() -> None:
    """Print the mean PSNR and what came back for every way to train and every search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="cnn-femnist")
    parser.add_argument("--init", default="torch", help="of its weights; lecun-normal is that of dimitrov2022")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--optimiser", choices=list(TRAINED), default="SGD")
    parser.add_argument("--taken-for", choices=["SGD"], default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    searches = {
        "inverting-gradients": InvertingGradients(steps=given.steps),
        "inverting-gradients, smooth": InvertingGradients(steps=given.steps, tv=SMOOTH),
        "sme, line": SME(steps=given.steps),
        "sme, curve": SME(steps=given.steps, curve="bezier"),
    }
    data, rng = sp.load_data(given.data), sp.Stream.from_seed(1)
    task = sp.Task(build(given.network, data.spec, rng / "model", init=given.init), data.spec)
    for epochs, batch, n, optimiser in TRAINED[given.optimiser]:
        recipe = sp.Recipe(optimiser, epochs=epochs, batch_size=batch, sends="weights")
        held = [held_by(data, i, n) for i in range(given.clients)]
        (seen,) = sp.play(task, held, recipe, sp.Federation(), rng / "federation")
        exchanges = [capture.exchanges[-1] for capture in seen.captures]
        natures = [infer(exchange, exchange, task) for exchange in exchanges]
        if given.taken_for:
            natures = [replace(nature, adaptive=False) for nature in natures]
        guess = guess_recipe(exchanges, natures, task, rng / "guess")
        assert guess is not None
        pairs = [(capture, None) for capture in seen.captures]
        view = sp.observe(pairs, sp.Setting(task, guess), sp.THREATS["honest-server"])
        for name, search in searches.items():
            found = search(view, rng / "attack")
            assert found.inputs is not None
            assert found.labels is not None
            answers = zip(found.inputs, found.labels, held, strict=True)
            scored = [sp.score(x, labels, own, data.spec) for x, labels, own in answers]
            wrong = [one.value for client in scored for one in client.scores if one.metric == "label_count_error"]
            psnr = [one.value for client in scored for one in client.scores if one.metric == "psnr"]
            back = sum(value > 20 for value in psnr)
            trained = f"{epochs:2} × {batch or n} × {n}, lr {optimiser.lr:<5g}"
            print(
                f"{trained} {name:28} mean {sum(psnr) / len(psnr):5.2f} dB  {back:2} of {len(psnr)}  "
                f"{sum(wrong) / len(wrong):.1f} labels wrong",
                flush=True,
            )


if __name__ == "__main__":
    main()
