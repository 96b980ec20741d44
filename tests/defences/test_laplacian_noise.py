"""Laplacian noise has its own deviation and its own tails."""

from __future__ import annotations

import pytest

from common.defence_suite import ONE
from common.nets import flat, numbers
from seepage.defences import LaplacianNoise, NoDefence


@pytest.mark.parametrize("scale", [0.01, 5.0])
def test_noise_has_the_stated_scale_no_mean_and_tails(scale: float) -> None:
    update = {"a": numbers(200, 100), "b": numbers(200, 100, seed=1)}
    noise = flat(LaplacianNoise(scale).on_update(update, ONE)) - flat(update)
    assert float(noise.std()) == pytest.approx(2**0.5 * scale, rel=0.03)
    assert float(noise.abs().mean()) == pytest.approx(scale, rel=0.03)
    assert abs(float(noise.mean())) < 0.03 * scale
    assert float((noise**4).mean() / noise.var() ** 2) == pytest.approx(6, rel=0.15)  # 3 of a Gaussian
    a, b = noise.reshape(2, -1)
    assert abs(float((a * b).mean())) < 0.06 * scale**2  # tensors have noise of their own


def test_all_that_is_expected_of_it_is_nothing() -> None:
    assert LaplacianNoise(1.0).expected == NoDefence()
