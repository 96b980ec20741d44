"""The label of a single example."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.federation import view_of
from common.label_clients import CLASSES, GRADIENT, RNG, one_client, task_of
from common.nets import numbers
from seepage.defences import GaussianNoise
from seepage.pieces.labels import Idlg, LabelsHidden
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task
from seepage.threat import THREATS


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh], ids=["relu", "tanh"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recipe", [GRADIENT, Recipe(SGD(0.1), epochs=3), Recipe(Adam(1e-3))], ids=str)
def test_the_label_of_a_single_example_is_read_off_every_time(
    bias: bool, recipe: Recipe, activation: type[nn.Module]
) -> None:
    for seed in range(5):
        clients = {
            str(y): Examples(numbers(1, 1, 6, 6, seed=100 * seed + y), torch.tensor([y])) for y in range(CLASSES)
        }
        view = view_of(task_of(seed, bias, activation=activation), clients, recipe)
        guesses = [Idlg()(view, i, RNG) for i in range(CLASSES)]
        assert [guess.labels.tolist() for guess in guesses] == [[y] for y in range(CLASSES)]
        assert all(guess.confidence > 0.99 for guess in guesses)
        assert all(float(guess.counts.sum()) == pytest.approx(1) for guess in guesses)


def test_two_classes_without_a_bias_are_told_apart_by_positive_features() -> None:
    task = Task(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2, bias=False)), DataSpec((4,), classes=2))
    clients = {str(y): Examples(torch.ones(1, 4), torch.tensor([y])) for y in range(2)}
    view = view_of(task, clients, GRADIENT)
    assert [Idlg()(view, i, RNG).labels.item() for i in range(2)] == [0, 1]


def test_the_recipe_is_not_needed() -> None:
    view, truth = one_client(task_of(), Recipe(SGD(0.1), epochs=2), 1, 3, THREATS["eavesdropper"])
    assert Idlg()(view, 0, RNG).labels.equal(truth)


def test_noise_takes_confidence_away() -> None:
    secret = {"ada": Examples(numbers(1, 1, 6, 6), torch.tensor([4]))}
    sure = [
        Idlg()(view_of(task_of(), secret, GRADIENT, defence=GaussianNoise(std)), 0, RNG).confidence
        for std in (1e-6, 0.1, 1.0)
    ]
    assert sure == sorted(sure, reverse=True)
    assert sure[-1] < 0.7


def test_a_batch_is_refused_with_the_way_out() -> None:
    view, _ = one_client(task_of(), GRADIENT, 3, 0)
    with pytest.raises(LabelsHidden, match=r"expected a client with one example.*got 3; use the method 'ilrg'"):
        Idlg()(view, 0, RNG)
