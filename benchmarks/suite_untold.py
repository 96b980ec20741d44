"""What the searches of `seepage attack` bring back where nobody tells how clients train; images are of no page.

Clients of the middle of Fashion-MNIST's thousand, who train for one step or for many; SME as a line and as a curve
beside the searches that take every update for one step. All have the same number of iterations.

    python benchmarks/suite_untold.py
"""

from __future__ import annotations

import argparse

import torch

import seepage as sp
from seepage.attacks import SME, InvertingGradients
from seepage.inspect.guessed_recipe import guess_recipe
from seepage.inspect.nature import Nature
from seepage.inspect.suite import SMOOTH
from seepage.models import build

TRAINED = [  # epochs, batch size, examples, learning rate
    (1, None, 4, 0.02),
    (1, 4, 8, 0.02),
    (3, 4, 8, 0.02),
    (10, 4, 8, 0.02),
    (10, 4, 8, 0.1),
]


def main() -> None:
    """Print the mean PSNR and what came back for every way to train and every search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="cnn-femnist")
    parser.add_argument("--init", default="torch", help="of its weights; lecun-normal is that of dimitrov2022")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    searches = {
        "inverting-gradients": InvertingGradients(steps=given.steps),
        "inverting-gradients, smooth": InvertingGradients(steps=given.steps, tv=SMOOTH),
        "sme, line": SME(steps=given.steps),
        "sme, curve": SME(steps=given.steps, curve="bezier"),
    }
    data, rng = sp.load_data("fashion-mnist"), sp.Stream.from_seed(1)
    task = sp.Task(build(given.network, data.spec, rng / "model", init=given.init), data.spec)
    middle = len(data.train) // 2
    for epochs, batch, n, lr in TRAINED:
        recipe = sp.Recipe(sp.SGD(lr), epochs=epochs, batch_size=batch, sends="weights")
        held = [data.train[middle + i * n : middle + (i + 1) * n] for i in range(given.clients)]
        (seen,) = sp.play(task, held, recipe, sp.Federation(), rng / "federation")
        exchanges = [capture.exchanges[-1] for capture in seen.captures]
        guess = guess_recipe(exchanges, [Nature(1.0)] * len(exchanges), task, rng / "guess")
        assert guess is not None
        pairs = [(capture, None) for capture in seen.captures]
        view = sp.observe(pairs, sp.Setting(task, guess), sp.THREATS["honest-server"])
        for name, search in searches.items():
            found = search(view, rng / "attack")
            assert found.inputs is not None
            scored = [sp.score(x, None, own, data.spec) for x, own in zip(found.inputs, held, strict=True)]
            psnr = [one.value for client in scored for one in client.scores if one.metric == "psnr"]
            back = sum(value > 20 for value in psnr)
            print(
                f"{epochs:2} × {batch or n} × {n}, lr {lr:<5g} {name:28} mean {sum(psnr) / len(psnr):5.2f} dB  "
                f"{back:2} of {len(psnr)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
