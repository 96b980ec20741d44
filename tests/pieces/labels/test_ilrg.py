"""Counts from class-wise embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.federation import view_of
from common.label_clients import CLASSES, GRADIENT, RNG, examples_of, labels, one_client, task_of, wrong, wrong_labels
from common.nets import numbers, seeded, whole_numbers
from seepage.pieces.labels import Geng, Ilrg, LabelsHidden
from seepage.pieces.labels.ilrg import embeddings, solve_counts
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task
from seepage.threat import THREATS, NotKnown

PLAIN = Ilrg(shrink=0.0, points=1)


def test_the_plain_method_is_the_one_written_in_numpy() -> None:
    task = task_of(2)
    view, _ = one_client(task, GRADIENT, 12, 2)
    head = task.head
    w, b = (task.params[f"{head}.{part}"].numpy() for part in ("weight", "bias"))
    dw, db = (view.update[f"{head}.{part}"][0].numpy() for part in ("weight", "bias"))
    system, values = [np.ones(CLASSES)], [12.0]
    p = []
    for j in range(CLASSES):
        scores = w @ (dw[j] / db[j]) + b
        p.append(np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum())
    for i in range(CLASSES):
        system.append(np.array([p[j][i] - (i == j) for j in range(CLASSES)]))
        values.append(12 * db[i])
    expected = np.linalg.pinv(np.array(system)) @ np.array(values)
    np.testing.assert_allclose(PLAIN(view, 0, RNG).counts.numpy(), expected, rtol=1e-6)


def test_with_one_embedding_for_all_the_counts_are_exact() -> None:
    forgetful = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    task = Task(seeded(lambda: forgetful), DataSpec((1, 6, 6), classes=CLASSES))
    task.params["1.weight"].zero_()
    task.params["1.bias"].fill_(0.5)
    view, truth = one_client(task, GRADIENT, 30, 3)
    for method in (PLAIN, Ilrg()):
        guess = method(view, 0, RNG)
        torch.testing.assert_close(guess.counts, torch.bincount(truth, minlength=CLASSES).double(), rtol=0, atol=1e-8)


def test_counts_solve_the_system_whatever_the_predictions() -> None:
    for seed in range(10):
        p, truth = (2 * numbers(6, 6, seed=seed)).softmax(-1), whole_numbers(6, 9, seed).double() + 1
        n = int(truth.sum())
        torch.testing.assert_close(solve_counts(p, (truth @ p - truth) / n, n), truth)


def test_shrinking_draws_only_classes_with_a_small_quotient() -> None:
    bias = torch.tensor([-1.0, 1e-6, 0.5]).double()
    own = torch.tensor([[1.0, 0.0], [50.0, -50.0], [0.0, 1.0]]).double()
    shrunk = embeddings(bias[:, None] * own, bias, 0.1)
    mean = (bias**2) @ own / (bias @ bias)
    torch.testing.assert_close(shrunk[1], mean, rtol=0, atol=1e-6)
    assert float((shrunk[0] - own[0]).norm()) < 0.1
    torch.testing.assert_close(embeddings(bias[:, None] * own, bias), own)


@pytest.mark.parametrize("recipe", [GRADIENT, Recipe(SGD(0.01), epochs=3, batch_size=4)], ids=str)
def test_labels_of_a_batch_are_counted_on_an_untrained_net(recipe: Recipe) -> None:
    assert wrong_labels(Ilrg(), recipe) <= 1  # of forty
    assert wrong_labels(Ilrg(), recipe, 40) <= 4  # of two hundred
    assert wrong_labels(Ilrg(), recipe, norm=True) <= 1


def unlike_dummies(n: int, seed: int) -> Examples:
    """Bright and smooth, as images are and normal numbers are not."""
    coarse = nn.functional.interpolate(numbers(n, 1, 2, 2, seed=seed), size=6, mode="bilinear")
    return Examples(2 + coarse, labels(n, seed))


@pytest.mark.parametrize("recipe", [GRADIENT, Recipe(SGD(0.02), epochs=3, batch_size=4)], ids=str)
def test_for_data_unlike_dummies_it_is_better_than_geng(recipe: Recipe) -> None:
    mistakes = {"ilrg": 0, "geng": 0}
    for seed in range(12):
        examples = unlike_dummies(20, seed)
        view = view_of(task_of(seed), {"ada": examples}, recipe)
        mistakes["ilrg"] += wrong(Ilrg()(view, 0, RNG), examples.y)
        mistakes["geng"] += wrong(Geng(dummies=500)(view, 0, RNG), examples.y)
    assert mistakes["ilrg"] < mistakes["geng"]


def test_an_update_of_zeros_is_survived() -> None:
    view = view_of(task_of(), {"ada": examples_of(4, 0)}, GRADIENT)
    for update in view.rounds[-1].update.values():
        update.zero_()
    for method in (PLAIN, Ilrg()):
        guess = method(view, 0, RNG)
        assert guess.counts.isfinite().all()
        assert guess.confidence < 0.5


def test_what_cannot_be_counted_is_refused_with_the_way_out() -> None:
    view, _ = one_client(task_of(bias=False), GRADIENT, 3, 0)
    with pytest.raises(LabelsHidden, match=r"with a trained bias.*got one without; use the method 'geng-interp"):
        Ilrg()(view, 0, RNG)
    view, _ = one_client(task_of(), Recipe(Adam(1e-3)), 3, 0)
    with pytest.raises(LabelsHidden, match="got Adam; use the method 'rlu'"):
        Ilrg()(view, 0, RNG)
    view, _ = one_client(task_of(), Recipe(SGD(0.1)), 3, 0, THREATS["eavesdropper"])
    with pytest.raises(NotKnown, match="does not grant 'steps'"):
        Ilrg()(view, 0, RNG)
