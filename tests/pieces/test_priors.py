"""Priors against a loop over pixels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from common.nets import numbers
from seepage.pieces.priors import outside_box, squared_variation, total_variation
from seepage.spec import DataSpec


def by_hand(x: Tensor) -> float:
    images = x.reshape(-1, *x.shape[-2:])
    height, width = x.shape[-2:]
    down = [
        abs(float(image[i + 1, j] - image[i, j])) for image in images for i in range(height - 1) for j in range(width)
    ]
    across = [
        abs(float(image[i, j + 1] - image[i, j])) for image in images for i in range(height) for j in range(width - 1)
    ]
    return sum(down) / len(down) + sum(across) / len(across)


@pytest.mark.parametrize("shape", [(4, 5), (1, 3, 3), (2, 3, 4, 2), (2, 1, 2, 7)])
def test_total_variation_is_the_mean_step_down_plus_the_mean_step_across(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    assert float(total_variation(x)) == pytest.approx(by_hand(x), rel=1e-12)


def test_total_variation_of_a_flat_image_is_zero_and_does_not_see_brightness() -> None:
    assert float(total_variation(torch.full((2, 1, 4, 4), 0.7))) == 0
    x = numbers(2, 1, 4, 4)
    torch.testing.assert_close(total_variation(x + 3), total_variation(x))


def test_total_variation_grows_with_contrast() -> None:
    x = numbers(2, 1, 4, 4)
    torch.testing.assert_close(total_variation(3 * x), 3 * total_variation(x))


@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (3, 2, 4, 5), (2, 1, 1, 3)])
def test_squared_variation_is_the_sum_over_neighbours_around_the_borders(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    height, width = shape[-2:]
    total = 0.0
    for image in x:
        for channel in image:
            for i in range(height):
                for j in range(width):
                    total += float((channel[i, j] - channel[i, j - 1]) ** 2 + (channel[i, j] - channel[i - 1, j]) ** 2)
    assert float(squared_variation(x)) == pytest.approx(total / shape[0], rel=1e-12)


def test_outside_of_the_box_raw_values_are_measured() -> None:
    spec = DataSpec((2, 3, 3), mean=(0.5, 0.2), std=(0.3, 2.0))
    x = 3 * numbers(4, 2, 3, 3)
    pixels = spec.pixels(x)
    expected = ((pixels - pixels.clamp(0, 1)) ** 2).mean(0).sum()
    torch.testing.assert_close(outside_box(x, *spec.box(x)), expected)
    assert float(outside_box(spec.normalise(torch.rand(4, 2, 3, 3)), *spec.box(torch.zeros(1)))) < 1e-12
