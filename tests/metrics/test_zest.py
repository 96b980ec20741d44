from __future__ import annotations

import pytest
import torch

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
