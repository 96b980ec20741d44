from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seepage.metrics.zest import zest_similarity


def linear(weights: torch.Tensor):
    return lambda x: x @ weights


def test_of_linear_models_the_explanation_is_weight_times_distance_from_the_mean() -> None:
    draw = torch.Generator().manual_seed(1)
    x, a, b = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((10, 5), (5, 2), (5, 2)))
    apart = (x - x.mean(0))[:, :, None]
    one, other = (apart * a).flatten(), (apart * b).flatten()
    expected = float(one @ other / one.norm() / other.norm())
    assert zest_similarity(linear(a), linear(b), x) == pytest.approx(expected)


def test_what_answers_have_in_common_everywhere_explains_nothing() -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.ones(3, 2, dtype=torch.float64)
    assert zest_similarity(linear(weights), lambda x: 5 + 2 * x @ weights, x) == pytest.approx(1.0)


def test_the_masks_are_the_same_each_time() -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    models = (lambda x: x.relu(), lambda x: x.sin())
    assert zest_similarity(*models, x, masks=20) == zest_similarity(*models, x, masks=20)


def test_an_image_is_explained_by_squares_of_pixels() -> None:
    images = torch.rand(6, 2, 16, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def square(row: int, column: int) -> Callable[[Tensor], Tensor]:
        return lambda x: x[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].mean((1, 2, 3))[:, None]

    def pixel(x: Tensor) -> Tensor:
        return x[:, 1, 9, 18, None]

    # Answers that depend on the same square have the same reason, up to how strongly each image shows it.
    assert zest_similarity(square(1, 2), square(1, 2), images) == pytest.approx(1.0)
    assert abs(zest_similarity(square(1, 2), square(0, 0), images)) < 1e-9
    assert abs(zest_similarity(square(1, 1), pixel, images)) < 1e-9
    assert abs(zest_similarity(square(1, 2), pixel, images)) > 1e-3
