"""Priors against a loop over pixels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from common.nets import numbers
from seepage.pieces.priors import total_variation


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
