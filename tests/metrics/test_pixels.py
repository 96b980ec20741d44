from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from seepage.metrics.pixels import PSNR_CAP, clip, mse, psnr, ssim, unclipped_psnr

Metric = Callable[[Tensor, Tensor, float, float], Tensor]

METRICS: list[Metric] = [mse, psnr, ssim]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    truth = drawn(seed, *shape)
    return (0.7 * truth + 0.3 * drawn(seed + 1000, *shape)), truth


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 32, 32), (2, 3, 11, 40)])
@pytest.mark.parametrize("high", [1.0, 255.0])
def test_equals_scikit_image(shape: tuple[int, ...], high: float) -> None:
    guess, truth = pair(0, *shape)
    guess, truth = high * guess, high * truth
    left, right = guess.numpy(), truth.numpy()
    n = range(shape[0])
    torch.testing.assert_close(
        mse(guess, truth, 0, high),
        torch.tensor([mean_squared_error(right[i], left[i]) / high**2 for i in n], dtype=torch.float64),
    )
    torch.testing.assert_close(
        psnr(guess, truth, 0, high),
        torch.tensor([peak_signal_noise_ratio(right[i], left[i], data_range=high) for i in n], dtype=torch.float64),
    )
    theirs = [
        structural_similarity(
            right[i],
            left[i],
            data_range=high,
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for i in n
    ]
    torch.testing.assert_close(ssim(guess, truth, 0, high), torch.tensor(theirs, dtype=torch.float64))


def test_unclipped_psnr_is_scikit_image_s_of_the_guess_as_it_is() -> None:
    guess, truth = pair(0, 3, 1, 28, 28)
    beyond = 3 * guess - 1
    beyond[2, 0, 0, 0] = math.inf
    theirs = [peak_signal_noise_ratio(truth[i].numpy(), beyond[i].numpy(), data_range=1) for i in range(2)]
    ours = unclipped_psnr(255 * beyond, 255 * truth, 0.0, 255.0)
    assert ours[:2].tolist() == pytest.approx(theirs, rel=1e-12)
    assert ours[2].isnan()
    assert (ours[:2] < psnr(beyond, truth, 0.0, 1.0)[:2]).all()
    assert unclipped_psnr(truth, truth, 0.0, 1.0).tolist() == [PSNR_CAP] * 3


@pytest.mark.parametrize(("side", "window"), [(10, 9), (8, 7), (4, 3), (3, 3)])
def test_ssim_of_small_images_is_scikit_image_with_the_shrunken_window(side: int, window: int) -> None:
    guess, truth = pair(5, 1, 1, side, side)
    theirs = structural_similarity(
        truth[0, 0].numpy(),
        guess[0, 0].numpy(),
        data_range=1.0,
        gaussian_weights=True,
        sigma=0.3 * (window - 1) / 2,
        use_sample_covariance=False,
    )
    assert ssim(guess, truth, 0.0, 1.0).item() == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("side", [1, 2])
def test_ssim_without_room_for_a_window_is_nan(side: int) -> None:
    image = torch.ones(2, 1, side, side)
    assert ssim(image, image, 0.0, 1.0).isnan().tolist() == [True, True]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), side=st.integers(3, 20), channels=st.integers(1, 3))
def test_identical_images_score_best(seed: int, side: int, channels: int) -> None:
    image = drawn(seed, 2, channels, side, side)
    assert mse(image, image, 0.0, 1.0).tolist() == [0.0, 0.0]
    assert psnr(image, image, 0.0, 1.0).tolist() == [PSNR_CAP, PSNR_CAP]
    assert ssim(image, image, 0.0, 1.0).tolist() == pytest.approx([1.0, 1.0])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), low=st.floats(-100, 100), span=st.floats(0.1, 1000))
def test_every_value_is_free_of_the_range_it_is_written_in(seed: int, low: float, span: float) -> None:
    guess, truth = pair(seed, 1, 2, 12, 12)
    for metric in METRICS:
        elsewhere = metric(low + span * guess, low + span * truth, low, low + span)
        torch.testing.assert_close(elsewhere, metric(guess, truth, 0.0, 1.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_more_noise_scores_worse(metric: Metric) -> None:
    truth = 0.25 + 0.5 * drawn(1, 1, 3, 24, 24)
    noise = drawn(2, 1, 3, 24, 24) - 0.5
    values = [metric(truth + level * noise, truth, 0.0, 1.0).item() for level in (0.0, 0.1, 0.2, 0.4)]
    assert values == sorted(values, reverse=metric is not mse)


@pytest.mark.parametrize("metric", METRICS)
def test_clips_the_guess_first(metric: Metric) -> None:
    truth = drawn(3, 2, 1, 16, 16).round()
    wild = truth + (2 * truth - 1) * drawn(4, 2, 1, 16, 16)
    assert metric(wild, truth, 0.0, 1.0).tolist() == pytest.approx(metric(truth, truth, 0.0, 1.0).tolist())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 255])
def test_one_value_that_is_not_finite_makes_that_image_nan_and_no_other(
    metric: Metric, value: float, place: int
) -> None:
    guess, truth = pair(6, 3, 1, 16, 16)
    clean = metric(guess, truth, 0.0, 1.0)
    guess[1].flatten()[place] = value
    found = metric(guess, truth, 0.0, 1.0)
    assert found.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(found[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("metric", METRICS)
def test_batch_equals_one_by_one(metric: Metric) -> None:
    guess, truth = pair(7, 4, 3, 13, 17)
    one_by_one = torch.cat([metric(guess[i : i + 1], truth[i : i + 1], 0.0, 1.0) for i in range(4)])
    torch.testing.assert_close(metric(guess, truth, 0.0, 1.0), one_by_one)


@pytest.mark.parametrize("metric", METRICS)
def test_no_images_give_no_values(metric: Metric) -> None:
    assert metric(torch.zeros(0, 1, 16, 16), torch.zeros(0, 1, 16, 16), 0.0, 1.0).shape == (0,)


@pytest.mark.parametrize("metric", METRICS)
def test_wrong_shapes_are_named(metric: Metric) -> None:
    with pytest.raises(ValueError, match=r"got \(2, 1, 8, 8\) and \(3, 1, 8, 8\); pair them"):
        metric(torch.zeros(2, 1, 8, 8), torch.zeros(3, 1, 8, 8), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"\(n, channels, height, width\), got \(8, 8\)"):
        metric(torch.zeros(8, 8), torch.zeros(8, 8), 0.0, 1.0)


def test_clip_leaves_no_infinity() -> None:
    found = clip(torch.tensor([np.inf, -np.inf, np.nan, 3.0, -3.0]), -1.0, 1.0)
    assert found.isnan().tolist() == [True, True, True, False, False]
    assert found[3:].tolist() == [1.0, -1.0]
