"""What was done to an update is read off it, and nothing is seen where nothing was done."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from common.nets import CLASSES, IMAGE, batch_resnet, cnn, images, seeded
from seepage.capture import Capture, Exchange
from seepage.defences import DEFENCES, Clip, Defence, GaussianNoise, NoDefence, TopK
from seepage.inspect.nature import Nature, infer
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task

SPEC = DataSpec(IMAGE, classes=CLASSES)
RECIPE = Recipe(SGD(0.1), sends="weights")


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, CLASSES)
    )


def broad_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


def sigmoids() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 40), nn.Sigmoid(), nn.Linear(40, 30), nn.Sigmoid(), nn.Linear(30, CLASSES)
    )


def task_of(build: object) -> Task:
    return Task(seeded(build).float(), SPEC)  # type: ignore[arg-type]


def examples(n: int, seed: int = 0) -> Examples:
    return images(n, seed).to("cpu", torch.float32)


def natures(
    task: Task, recipe: Recipe = RECIPE, defence: Defence | None = None, n: int = 4, told: bool = True, clients: int = 1
) -> list[Nature]:
    held = [examples(n, seed) for seed in range(clients)]
    (only,) = play(task, held, recipe, Federation(), Stream.from_seed(0), defence=defence or NoDefence())
    exchanges = [capture.exchanges[0] for capture in only.captures]
    lengths = [infer(e, e, task).length for e in exchanges]
    return [
        infer(e, e, task, recipe if told else None, lengths[:i] + lengths[i + 1 :]) for i, e in enumerate(exchanges)
    ]


@pytest.mark.parametrize("build", [wide, cnn, batch_resnet])
@pytest.mark.parametrize("sends", ["weights", "update", "gradient"])
@pytest.mark.parametrize("steps", [1, 5])
def test_nothing_is_seen_where_nothing_was_done(build: object, sends: str, steps: int) -> None:
    if sends == "gradient" and steps > 1:
        pytest.skip("a gradient is one step")
    recipe = replace(RECIPE, sends=sends, epochs=steps)  # type: ignore[arg-type]
    (nature,) = natures(task_of(build), recipe)
    assert not any([nature.sparse, nature.levels, nature.half, nature.noise, nature.clipped])
    assert nature.frozen == ()
    assert nature.momentum in (None, False)


@pytest.mark.parametrize("sends", ["weights", "update"])
def test_each_defence_is_recognised(sends: str) -> None:
    task, recipe = task_of(wide), replace(RECIPE, sends=sends)  # type: ignore[arg-type]
    (noisy,) = natures(task, recipe, GaussianNoise(0.01))
    assert noisy.noise == pytest.approx(0.01, rel=0.1)
    (drowned,) = natures(task, recipe, GaussianNoise(1.0))
    assert drowned.noisy
    assert drowned.noise == pytest.approx(1.0, rel=0.1)
    assert drowned.fewest_examples == 0, "a rank that noise made says nothing"
    (sparse,) = natures(task, recipe, TopK(0.1))
    assert sparse.sparse
    assert not sparse.noise
    (clipped,) = natures(task, recipe, Clip(0.05))
    assert clipped.clipped == pytest.approx(0.05)
    (signed,) = natures(task, recipe, DEFENCES["sign"]())
    assert signed.signed
    (quantised,) = natures(task, recipe, DEFENCES["uniform-quantise"]())
    assert quantised.levels is not None
    assert not quantised.signed


def test_clients_that_share_an_odd_length_were_clipped() -> None:
    assert [n.clipped for n in natures(task_of(wide), defence=Clip(0.0123456), clients=3)] == [
        pytest.approx(0.0123456, rel=1e-3)
    ] * 3
    assert [n.clipped for n in natures(task_of(wide), clients=3)] == [None] * 3


def test_a_first_step_of_adam_looks_signed() -> None:
    (nature,) = natures(task_of(wide), Recipe(Adam(0.01), sends="weights"))
    assert nature.signed
    assert nature.fewest_examples == 0, "signs have a rank of their own"
    (later,) = natures(task_of(wide), Recipe(Adam(0.01), epochs=5, sends="weights"))
    assert not later.noise, "many directions are no noise"


@pytest.mark.parametrize("build", [wide, broad_cnn, sigmoids])
@pytest.mark.parametrize(("epochs", "batch"), [(1, None), (1, 2), (5, 4), (10, 4)])
def test_steps_of_adam_leave_entries_of_one_size_and_those_of_sgd_do_not(
    build: object, epochs: int, batch: int | None
) -> None:
    task, recipe = task_of(build), Recipe(epochs=epochs, batch_size=batch, sends="weights")
    (adam,) = natures(task, replace(recipe, optimiser=Adam(1e-3)), n=8)
    assert adam.adaptive
    assert not adam.noise
    assert 0.5 < adam.largest / (1e-3 * recipe.steps(8)) < 1.2, "all learning rates together, as far as steps agree"
    for optimiser in (SGD(0.1), SGD(0.1, momentum=0.9), SGD(0.1, weight_decay=0.01)):
        (plain,) = natures(task, replace(recipe, optimiser=optimiser), n=8)
        assert not plain.adaptive, optimiser


@pytest.mark.parametrize(
    "defence",
    [
        GaussianNoise(0.01),
        GaussianNoise(1.0),
        TopK(0.1),
        Clip(0.05),
        DEFENCES["uniform-quantise"](),
        DEFENCES["qsgd"](),
    ],
    ids=str,
)
def test_a_defence_is_not_taken_for_adam(defence: Defence) -> None:
    (nature,) = natures(task_of(wide), RECIPE, defence)
    assert not nature.adaptive
    (signed,) = natures(task_of(wide), RECIPE, DEFENCES["sign"]())
    assert signed.adaptive, "signs are what a first step of Adam is"


def test_batch_norm_counts_the_steps_and_shows_its_mode() -> None:
    task = task_of(batch_resnet)
    (trained,) = natures(task, replace(RECIPE, epochs=3, batch_size=2))
    assert (trained.steps, trained.fewest_steps, trained.train_mode) == (6, 6, True)
    (evaluated,) = natures(task, replace(RECIPE, epochs=3, batch_norm="eval"))
    assert (evaluated.steps, evaluated.train_mode) == (None, False)
    (silent,) = natures(task, replace(RECIPE, sends_buffers=False))
    assert silent.train_mode is None


def test_the_rank_of_the_first_layer_counts_examples_however_many_steps() -> None:
    for n in (1, 3):
        for epochs in (1, 4):
            (nature,) = natures(task_of(wide), replace(RECIPE, epochs=epochs), n=n)
            assert nature.fewest_examples == n
            assert nature.counted_rank


def test_longer_steps_than_told_show() -> None:
    """Momentum 0.9 over many steps on a single label moves the bias further than the told steps could."""
    task = task_of(wide)
    one_label = Examples(examples(4).x, torch.zeros(4, dtype=torch.long))
    fast = Recipe(SGD(0.02, momentum=0.9), epochs=12, sends="weights")
    (only,) = play(task, [one_label], fast, Federation(), Stream.from_seed(0))
    exchange = only.captures[0].exchanges[0]
    told = Recipe(SGD(0.02), epochs=2, sends="weights")
    assert infer(exchange, exchange, task, told).momentum is True
    assert infer(exchange, exchange, task, replace(told, epochs=100)).momentum is False
    assert infer(exchange, exchange, task).momentum is None
    nobody = replace(exchange, examples=None)
    assert infer(nobody, nobody, task, told).fewest_steps > 2


def test_frozen_layers_dead_units_and_half_precision_show() -> None:
    task = task_of(wide)
    (only,) = play(task, [examples(4)], RECIPE, Federation(), Stream.from_seed(0))
    (exchange,) = only.captures[0].exchanges
    still = replace(exchange, answer={**exchange.answer, "1.weight": exchange.before["1.weight"]})
    assert infer(still, still, task).frozen == ("1.weight",)
    half = replace(exchange, answer={n: t.half().float() for n, t in exchange.answer.items()})
    assert infer(half, half, task).half == "float16"
    dark = Task(seeded(wide).float(), SPEC)
    dark.params["1.bias"][:20] = -100.0  # ReLU never opens
    (only,) = play(dark, [examples(4)], RECIPE, Federation(), Stream.from_seed(0), params=dark.params)
    (exchange,) = only.captures[0].exchanges
    nature = infer(exchange, exchange, dark)
    assert nature.dead >= 20 / 70
    assert not nature.sparse, "whole rows of zeros are no compression"


def test_an_update_of_zeros_is_no_reason_to_fail() -> None:
    task = task_of(wide)
    nothing = Exchange(0, task.params, {n: torch.zeros_like(p) for n, p in task.params.items()}, "update", {})
    nature = infer(nothing, nothing, task, RECIPE)
    assert nature.length == 0
    assert len(nature.frozen) == len(task.params)
    assert Capture("a", (nothing,)).client == "a"
