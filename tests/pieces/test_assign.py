"""Matching of epochs against all permutations."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from common.nets import numbers, whole_numbers
from seepage.pieces.assign import combine, match_epochs


def total(reference: Tensor, epoch: Tensor, order: tuple[int, ...], similarity: str) -> float:
    errors = ((reference - epoch[list(order)]) ** 2).flatten(1)
    return float(errors.sum() if similarity == "squared" else errors.mean(1).log10().sum())


def by_trying_all(reference: Tensor, epoch: Tensor, allowed: Tensor, similarity: str) -> list[int]:
    rows = range(len(epoch))
    orders = [order for order in itertools.permutations(rows) if all(allowed[i, j] for i, j in enumerate(order))]
    return list(min(orders, key=lambda order: total(reference, epoch, order, similarity)))


@pytest.mark.parametrize("similarity", ["psnr", "squared"])
@pytest.mark.parametrize("seed", range(4))
def test_the_matching_is_the_best_of_all_permutations(similarity: str, seed: int) -> None:
    x = numbers(3, 5, 2, 2, seed=seed)
    orders = match_epochs(x, similarity=similarity)
    everything = torch.ones(5, 5, dtype=torch.bool)
    assert orders[0].tolist() == [0, 1, 2, 3, 4]
    for e in (1, 2):
        assert orders[e].tolist() == by_trying_all(x[0], x[e], everything, similarity)


@pytest.mark.parametrize("similarity", ["psnr", "squared"])
@pytest.mark.parametrize("seed", range(4))
def test_inside_of_labels_it_is_the_best_of_those_that_keep_them(similarity: str, seed: int) -> None:
    x, y = numbers(2, 6, 3, seed=seed), whole_numbers(6, 2, seed)
    labels = torch.stack([y, y[torch.randperm(6, generator=torch.Generator().manual_seed(seed))]])
    orders = match_epochs(x, labels, similarity)
    assert labels[1][orders[1]].equal(labels[0])
    allowed = labels[0][:, None] == labels[1][None]
    assert orders[1].tolist() == by_trying_all(x[0], x[1], allowed, similarity)


def test_epochs_that_were_shuffled_are_put_back() -> None:
    x = numbers(8, 4)
    generator = torch.Generator().manual_seed(0)
    noisy = torch.stack([x + 1e-3 * numbers(8, 4, seed=e) for e in range(6)])
    shuffles = torch.stack([torch.arange(8), *(torch.randperm(8, generator=generator) for _ in range(5))])
    shown = torch.stack([epoch[order] for epoch, order in zip(noisy, shuffles, strict=True)])
    orders = match_epochs(shown)
    torch.testing.assert_close(combine(shown, orders), noisy.mean(0))
    assert orders.equal(shuffles.argsort(1))


def test_a_bad_first_epoch_is_outvoted_in_a_second_pass() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.0])[:, None]
    first = torch.tensor([0.0, 1.0, 2.4, 2.6])[:, None]
    shown = torch.stack([first, x, x, x])
    once, twice = (combine(shown, match_epochs(shown, passes=passes), "median") for passes in (1, 2))
    torch.testing.assert_close(once, x)
    torch.testing.assert_close(twice, x)
    with pytest.raises(ValueError, match="`passes` of at least 1, got 0"):
        match_epochs(shown, passes=0)


@pytest.mark.parametrize("epochs", [1, 2, 3, 6, 7])
def test_mean_and_median_are_numpy_s(epochs: int) -> None:
    x = numbers(epochs, 4, 2)
    straight = torch.arange(4).expand(epochs, -1)
    torch.testing.assert_close(combine(x, straight), x.mean(0))
    torch.testing.assert_close(combine(x, straight, "median"), torch.quantile(x, 0.5, dim=0))


def test_a_few_bad_epochs_move_the_mean_and_not_the_median() -> None:
    x = torch.zeros(7, 2)
    x[:3] = 100.0
    straight = torch.arange(2).expand(7, -1)
    assert combine(x, straight, "median").eq(0).all()
    assert combine(x, straight).gt(40).all()


def test_dummies_that_are_not_finite_or_equal_are_matched_all_the_same() -> None:
    x = torch.zeros(2, 3, 2)
    x[1, 0] = torch.nan
    assert sorted(match_epochs(x)[1].tolist()) == [0, 1, 2]
