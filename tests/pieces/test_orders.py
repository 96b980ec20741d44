"""The order-invariant prior against loops over pairs, and what it must not see."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from common.attack_suite import clients
from common.federation import view_of
from common.nets import image_task, mlp, numbers, whole_numbers
from seepage.pieces.orders import convolved, label_means, order_prior, pair_distance, random_filters
from seepage.recipe import Recipe
from seepage.streams import Stream

STATISTICS = ["mean", "max", "conv-mean", "conv-max"]
FILTERS = numbers(4, 2, 3, 3, seed=9)


def statistic_by_hand(epoch: Tensor, statistic: str) -> Tensor:
    if statistic.startswith("conv"):
        epoch = functional.conv2d(epoch, FILTERS, padding=1)
    return epoch.mean(0) if statistic.endswith("mean") else epoch.max(0).values


def shuffled(x: Tensor, seed: int = 5) -> Tensor:
    """Every epoch in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([epoch[torch.randperm(len(epoch), generator=generator)] for epoch in x])


@pytest.mark.parametrize("distance", ["l1", "l2"])
@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (3, 1), (7, 2, 3)])
def test_the_distance_without_pairs_is_the_mean_over_all_pairs(shape: tuple[int, ...], distance: str) -> None:
    g = numbers(*shape)
    pairs = [
        float(((one - other).abs() if distance == "l1" else (one - other) ** 2).mean())
        for one, other in itertools.product(g, g)
    ]
    assert float(pair_distance(g, distance)) == pytest.approx(sum(pairs) / len(g) ** 2, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("distance", ["l1", "l2"])
def test_its_gradient_is_that_of_the_loop_over_pairs(distance: str) -> None:
    g = numbers(5, 4).requires_grad_()
    apart = g[:, None] - g[None]
    loop = (apart.abs() if distance == "l1" else apart**2).mean()
    (expected,) = torch.autograd.grad(loop, g)
    (got,) = torch.autograd.grad(pair_distance(g, distance), g)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("distance", ["l1", "l2"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_prior_of_eq_3(statistic: str, distance: str) -> None:
    x = numbers(4, 3, 2, 5, 4)
    g = [statistic_by_hand(epoch, statistic) for epoch in x]
    pairs = [
        float(((one - other).abs() if distance == "l1" else (one - other) ** 2).mean())
        for one, other in itertools.product(g, g)
    ]
    got = order_prior(x, statistic, distance, filters=FILTERS)
    assert float(got) == pytest.approx(sum(pairs) / 16, rel=1e-10)


@pytest.mark.parametrize("distance", ["l1", "l2"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_order_inside_an_epoch_does_not_matter(statistic: str, distance: str) -> None:
    x = numbers(4, 6, 2, 3, 3)
    before, after = (order_prior(part, statistic, distance, filters=FILTERS) for part in (x, shuffled(x)))
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_epochs_of_the_same_examples_agree(statistic: str) -> None:
    x = shuffled(numbers(1, 6, 2, 3, 3).expand(5, -1, -1, -1, -1))
    assert float(order_prior(x, statistic, filters=FILTERS)) < 1e-25


def test_inside_of_labels_the_order_does_not_matter_either_and_across_them_it_does() -> None:
    x, labels = numbers(3, 6, 2), whole_numbers(6).expand(3, -1)
    before = order_prior(x, labels=labels)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved_x, moved_labels = x.clone(), labels.clone()
    moved_x[1], moved_labels[1] = x[1][order], labels[1][order]
    torch.testing.assert_close(order_prior(moved_x, labels=moved_labels), before)
    assert not order_prior(moved_x, labels=labels).allclose(before)


def test_with_labels_that_occur_once_all_dummies_of_a_label_must_agree() -> None:
    x = numbers(4, 3, 2)
    variance = sum(float(x[:, i, p].var(correction=0)) for i in range(3) for p in range(2)) / 6
    assert float(order_prior(x, labels=torch.arange(3).expand(4, -1))) == pytest.approx(2 * variance)


def test_one_label_for_all_is_the_prior_of_the_epoch() -> None:
    x = numbers(4, 3, 2)
    torch.testing.assert_close(order_prior(x, labels=torch.zeros(4, 3, dtype=torch.long)), order_prior(x))


def test_means_of_labels_against_a_loop() -> None:
    x, labels = numbers(3, 5, 2), torch.stack([whole_numbers(5)[torch.randperm(5)] for _ in range(3)])
    for e, j in itertools.product(range(3), range(5)):
        torch.testing.assert_close(label_means(x, labels)[e, j], x[e][labels[e] == labels[0, j]].mean(0))


def test_clients_together_are_clients_one_by_one() -> None:
    x, filters = numbers(3, 4, 5, 2, 3, 3), numbers(3, 6, 2, 3, 3)
    labels = whole_numbers(60).reshape(3, 4, 5).sort(-1).values[:, :1].expand(-1, 4, -1)
    for statistic in STATISTICS:
        together = torch.vmap(lambda x, f, s=statistic: order_prior(x, s, filters=f))(x, filters)
        alone = [order_prior(one, statistic, filters=f) for one, f in zip(x, filters, strict=True)]
        torch.testing.assert_close(together, torch.stack(alone))
    together = torch.vmap(lambda x, y: order_prior(x, labels=y))(x, labels)
    torch.testing.assert_close(
        together, torch.stack([order_prior(a, labels=b) for a, b in zip(x, labels, strict=True)])
    )


@pytest.mark.parametrize("shape", [(2, 3, 3), (4, 2, 5, 6), (2, 4, 2, 3, 7)])
def test_the_convolution_is_torch_s_with_zeros_around(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    expected = functional.conv2d(x.reshape(-1, *shape[-3:]), FILTERS, padding=1)
    torch.testing.assert_close(convolved(x, FILTERS), expected.reshape(*shape[:-3], 4, *shape[-2:]))


def test_each_client_draws_filters_of_its_own_with_lecun_s_variance() -> None:
    view = view_of(image_task(mlp), clients(2), Recipe(sends="gradient"))
    filters = random_filters(view, Stream.from_seed(0))
    assert filters.shape == (2, 96, 1, 3, 3)
    assert float(filters.var()) == pytest.approx(1 / 9, rel=0.1)
    assert not filters[0].equal(filters[1])
    alone = random_filters(view_of(image_task(mlp), clients(1), Recipe(sends="gradient")), Stream.from_seed(0))
    assert filters[0].equal(alone[0])


def test_what_is_missing_or_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="'conv-max', got none; draw `random_filters`"):
        order_prior(numbers(2, 3, 1, 3, 3), "conv-max")
    with pytest.raises(ValueError, match="label by label, got 'max'"):
        order_prior(numbers(2, 3), "max", labels=torch.zeros(2, 3, dtype=torch.long))
