"""Local differential privacy as in Flower."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch

from common.defence_suite import ONE, an_update
from common.nets import flat, numbers
from seepage.defences import Clip, GaussianNoise, LocalDp, chain


@pytest.mark.parametrize(("sensitivity", "epsilon", "delta"), [(1.0, 1.0, 1e-5), (0.2, 8.0, 1e-3)])
def test_noise_has_the_deviation_of_the_gaussian_mechanism_around_the_clipped_update(
    sensitivity: float, epsilon: float, delta: float
) -> None:
    update = {"u": numbers(200, 200)}
    defence = LocalDp(2.0, sensitivity, epsilon, delta)
    noise = flat(defence.on_update(update, ONE)) - flat(Clip(2.0).on_update(update, None))
    std = sensitivity * sqrt(2 * log(1.25 / delta)) / epsilon
    assert defence.std == pytest.approx(std)
    assert float(noise.std()) == pytest.approx(std, rel=0.02)
    assert abs(float(noise.mean())) < 4 * std / 200


def test_it_is_clipping_and_then_noise() -> None:
    defence = LocalDp(0.5)
    assert defence.expected == Clip(0.5)
    torch.testing.assert_close(defence.on_update(an_update(), None), Clip(0.5).on_update(an_update(), None))
    parts = chain(Clip(0.5), GaussianNoise(defence.std))
    torch.testing.assert_close(parts.expected.on_update(an_update(), ONE), defence.expected.on_update(an_update(), ONE))


def test_no_sensitivity_is_no_noise() -> None:
    torch.testing.assert_close(LocalDp(0.5, 0.0).on_update(an_update(), ONE), Clip(0.5).on_update(an_update(), None))
