"""How an attacker follows the steps of local training; that they are torch's is tested with the clients themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seepage.recipe import SGD, Adam, LocalOptimiser, Recipe

GRADIENTS = torch.tensor([[3.0, -0.5, 1e-4, 0.0], [-1.0, 0.25, 2e-4, 0.0]], dtype=torch.float64)


def moved(optimiser: LocalOptimiser, gradients: Tensor) -> Tensor:
    """By how much weights of zero move."""
    theta = torch.zeros_like(gradients[0])
    slots = optimiser.init(theta)
    for t, gradient in enumerate(gradients):
        theta, slots = optimiser.step(t, theta, gradient, slots)
    return theta


def slope(optimiser: LocalOptimiser) -> Tensor:
    """How the first step answers to each entry of its gradient."""
    jacobian: Tensor = torch.func.jacrev(lambda g: moved(optimiser, g[None]))(GRADIENTS[0])
    return jacobian.diagonal()


def test_smooth_adam_raises_the_second_moment_by_its_tensor_s_mean() -> None:
    first, second, smooth = 0.9, 0.999, 0.3
    expected, m, v = torch.zeros(4, dtype=torch.float64), 0.0, 0.0
    for t, g in enumerate(GRADIENTS, 1):
        m, v = first * m + (1 - first) * g, second * v + (1 - second) * g**2
        raised = (v + smooth**2 * v.mean()) / (1 - second**t)
        expected -= 0.01 * m / (1 - first**t) / raised.sqrt()
    torch.testing.assert_close(moved(Adam(0.01, eps=0.0, smooth=smooth), GRADIENTS), expected)


def test_what_smooths_next_to_nothing_is_adam() -> None:
    torch.testing.assert_close(moved(Adam(0.01, smooth=1e-9), GRADIENTS), moved(Adam(0.01), GRADIENTS))


def test_the_slope_of_adam_is_next_to_none_or_next_to_endless_and_that_of_followed_adam_is_neither() -> None:
    exact, followed = slope(Adam(1.0)).abs(), slope(Adam(1.0).followed).abs()
    assert (exact[:2] < 1e-6).all()
    torch.testing.assert_close(float(exact[3]), 1e8)  # nothing but ε is left to divide by
    size = GRADIENTS[0].square().mean().sqrt()
    assert (followed <= 10 / size).all()
    assert (followed[GRADIENTS[0].abs() < 0.1 * size] > 1).all()


def test_the_slope_of_followed_adam_is_that_of_its_steps() -> None:
    followed, rise = Adam(1.0).followed, 1e-6
    for i, entry in enumerate(torch.eye(4, dtype=torch.float64)):
        up, down = (moved(followed, (GRADIENTS[0] + sign * rise * entry)[None])[i] for sign in (1, -1))
        torch.testing.assert_close((up - down) / (2 * rise), slope(followed)[i], rtol=1e-6, atol=1e-9)


def test_weights_without_a_gradient_stay_where_they_are() -> None:
    assert moved(Adam().followed, torch.zeros(3, 5)).equal(torch.zeros(5))


@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), Adam(0.01), Adam(0.01, smooth=0.5)], ids=str)
def test_what_is_followed_is_followed_as_it_is(optimiser: SGD | Adam) -> None:
    recipe = Recipe(optimiser, epochs=2)
    assert recipe.followed.followed == recipe.followed
    changed = isinstance(optimiser, Adam) and not optimiser.smooth
    assert (recipe.followed == recipe) is not changed
