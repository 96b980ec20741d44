"""The paper's own PSNR and SSIM, against numpy's and scikit-image's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.color import rgb2ycbcr
from torch.nn import functional

from seepage.metrics.pixels import psnr, ssim
from seepage.metrics.score import score
from seepage.metrics.yue2023 import psnr_yue2023, ssim_yue2023
from seepage.spec import DataSpec, Examples


def images(n: int = 3, channels: int = 3, seed: int = 0) -> torch.Tensor:
    coarse = torch.rand(n, channels, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return functional.interpolate(coarse, size=(24, 24), mode="bilinear")


def test_psnr_differs_from_the_usual_one_by_rounding_alone() -> None:
    guess, truth = images(seed=1), images(seed=2)
    torch.testing.assert_close(psnr_yue2023(guess, truth), psnr(guess, truth, 0.0, 1.0), atol=0.02, rtol=0)
    assert psnr_yue2023(truth, truth).tolist() == [100.0] * 3


def test_ssim_of_one_channel_is_the_formula_of_wang_with_one_window() -> None:
    guess, truth = images(channels=1, seed=1), images(channels=1, seed=2)
    for one, other, value in zip(guess, truth, ssim_yue2023(guess, truth), strict=True):
        a, b = (np.round(255 * x.numpy().ravel()) for x in (one, other))
        (va, cov), (_, vb) = np.cov(a, b, bias=True)
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        ma, mb = a.mean(), b.mean()
        expected = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
        assert float(value) == pytest.approx(expected, rel=1e-9)


def test_colours_weigh_a_tenth_each() -> None:
    truth = images()
    # scikit-image has the same brightness and colour differences on other scales: colours alone are swapped here.
    ycc = rgb2ycbcr(truth.permute(0, 2, 3, 1).numpy())
    grey = torch.from_numpy((ycc[..., 0] - 16) / 219)[:, None].expand(-1, 3, -1, -1)
    assert 0.79 < float(ssim_yue2023(grey, truth).mean()) < 0.9  # brightness is right, and colours are constant


def test_it_hides_blur_that_the_usual_one_sees() -> None:
    draw = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smooth = functional.interpolate(images(2), size=(64, 64), mode="bilinear")
    truth = (0.7 * smooth + 0.3 * draw).clamp(0, 1)
    blurred = functional.interpolate(functional.avg_pool2d(truth, 4), size=(64, 64), mode="bicubic").clamp(0, 1)
    assert ssim_yue2023(blurred, truth).min() > ssim(blurred, truth, 0.0, 1.0).max() + 0.2


def test_a_guess_that_is_not_finite_scores_nan() -> None:
    truth = images(2)
    guess = truth.clone()
    guess[1, 0, 0, 0] = math.nan
    for metric in (psnr_yue2023, ssim_yue2023):
        first, second = metric(guess, truth).tolist()
        assert math.isfinite(first)
        assert math.isnan(second)


def test_it_is_measured_where_it_is_asked_for() -> None:
    spec = DataSpec((3, 24, 24), classes=2)
    truth = Examples(images(2), torch.zeros(2, dtype=torch.long))
    named = {s.metric for s in score(truth.x, None, truth, spec, papers=("yue2023",)).scores}
    assert {"psnr_yue2023", "ssim_yue2023"} <= named
    assert not {"psnr_yue2023", "ssim_yue2023"} & {s.metric for s in score(truth.x, None, truth, spec).scores}
