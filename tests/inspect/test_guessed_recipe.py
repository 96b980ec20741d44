"""An attacker who is told nothing finds the learning rate of a single step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from common.nets import CLASSES, IMAGE, batch_resnet, cnn, images, seeded
from seepage.inspect.guessed_recipe import guess_rate, guess_recipe
from seepage.inspect.nature import infer
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Task

SPEC = DataSpec(IMAGE, classes=CLASSES, low=-2.0, high=2.0)


@pytest.mark.parametrize("build", [cnn, batch_resnet])
@pytest.mark.parametrize("lr", [0.001, 0.3])
def test_the_rate_of_one_step_is_found_from_the_update_alone(build: object, lr: float) -> None:
    task = Task(seeded(build), SPEC)  # type: ignore[arg-type]
    recipe = Recipe(SGD(lr), sends="weights")
    (only,) = play(task, [images(4)], recipe, Federation(), Stream.from_seed(0))
    (exchange,) = only.captures[0].exchanges
    assert guess_rate(exchange, task, Stream.from_seed(1)) == pytest.approx(lr, rel=0.15)
    guessed = guess_recipe([exchange], [infer(exchange, exchange, task)], task, Stream.from_seed(1))
    assert guessed is not None
    assert (guessed.steps(4), guessed.sends, guessed.batch_norm) == (1, "weights", "train")


@pytest.mark.parametrize("steps", [1, 4])
def test_adam_is_told_from_sgd_by_the_update_alone(steps: int) -> None:
    wide = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, CLASSES)
    )
    task = Task(seeded(lambda: wide), SPEC)
    recipe = Recipe(Adam(0.002), epochs=steps, sends="weights")
    (only,) = play(task, [images(4), images(4, 1), images(4, 2)], recipe, Federation(), Stream.from_seed(0))
    exchanges = [capture.exchanges[0] for capture in only.captures]
    seen = [infer(exchange, exchange, task) for exchange in exchanges]
    guessed = guess_recipe(exchanges, seen, task, Stream.from_seed(1))
    assert guessed is not None
    assert isinstance(guessed.optimiser, Adam)
    assert guessed.optimiser.lr == pytest.approx(0.002 * steps, rel=0.15)
    assert guessed.steps(4) == 1
    plain = [replace(nature, adaptive=False) for nature in seen]
    mostly_plain = guess_recipe(exchanges, [seen[0], *plain[1:]], task, Stream.from_seed(1))
    assert mostly_plain is not None
    assert isinstance(mostly_plain.optimiser, SGD), "one of three clients does not decide"


def test_the_mode_of_batch_norm_is_taken_from_the_buffers() -> None:
    task = Task(seeded(batch_resnet), SPEC)
    recipe = Recipe(SGD(0.1), sends="update", batch_norm="eval")
    (only,) = play(task, [images(4)], recipe, Federation(), Stream.from_seed(0))
    (exchange,) = only.captures[0].exchanges
    guessed = guess_recipe([exchange], [infer(exchange, exchange, task)], task, Stream.from_seed(1))
    assert guessed is not None
    assert guessed.batch_norm == "eval"


def test_without_a_last_bias_or_a_count_there_is_no_guess() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False)).double()
    task = Task(module, SPEC)
    (only,) = play(task, [images(2)], Recipe(sends="update"), Federation(), Stream.from_seed(0))
    (exchange,) = only.captures[0].exchanges
    assert guess_rate(exchange, task, Stream.from_seed(0)) is None
    biased = Task(seeded(cnn), SPEC)
    (only,) = play(biased, [images(2)], Recipe(sends="update"), Federation(), Stream.from_seed(0))
    silent = replace(only.captures[0].exchanges[0], examples=None)
    assert guess_rate(silent, biased, Stream.from_seed(0)) is None
    zeros = {name: torch.zeros_like(p) for name, p in biased.params.items()}
    assert guess_rate(replace(silent, examples=2, answer=zeros), biased, Stream.from_seed(0)) is None
