from __future__ import annotations

import pytest
import torch
from skimage.metrics import structural_similarity

from seepage.metrics.pixels import psnr, ssim
from seepage.metrics.zhao2023 import THRESHOLD, psnr_zhao2023, ssim_zhao2023, table_zhao2023


def pair(seed: int = 0, noise: float = 0.1, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    truth = torch.rand(4, channels, 32, 32, generator=rng).double()
    return (truth + noise * torch.randn(truth.shape, generator=rng)).clamp(0, 1), truth


@pytest.mark.parametrize("noise", [0.001, 0.1, 0.5])
def test_psnr_is_the_usual_one_moved_by_eleven_and_a_half_decibels(noise: float) -> None:
    guess, truth = pair(noise=noise)
    gap = psnr_zhao2023(guess, truth) - psnr(guess, truth, 0.0, 1.0)
    torch.testing.assert_close(gap, torch.full((4,), 11.485, dtype=torch.float64), atol=1e-3, rtol=0)


def test_psnr_is_that_of_the_formula_channel_by_channel() -> None:
    guess, truth = pair(noise=0.3)
    std = torch.tensor([0.2673, 0.2564, 0.2762]).double()
    for one, other, value in zip(guess, truth, psnr_zhao2023(guess, truth), strict=True):
        error = ((one - other) ** 2).mean()
        assert float(value) == pytest.approx(float((10 * torch.log10((1 / std) ** 2 / error)).mean()), abs=1e-2)


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_is_that_of_another_library_told_the_wrong_range(channels: int) -> None:
    guess, truth = pair(noise=0.3, channels=channels)
    expected = [
        structural_similarity(
            a.numpy(),
            b.numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=255,
            channel_axis=0,
        )
        for a, b in zip(guess, truth, strict=True)
    ]
    assert ssim_zhao2023(guess, truth).tolist() == pytest.approx(expected, abs=1e-6)


def test_ssim_is_nearly_one_for_images_that_have_nothing_in_common() -> None:
    one, other = pair(0)[1], pair(1)[1]
    assert float(ssim(one, other, 0.0, 1.0).max()) < 0.2
    assert float(ssim_zhao2023(one, other).min()) > 0.99


def test_failures_count_as_zero_in_the_mean_of_the_table() -> None:
    values = torch.tensor([50.0, THRESHOLD, 29.99, float("nan")])
    assert table_zhao2023(values, values).tolist() == [50.0, 30.0, 0.0, 0.0]
