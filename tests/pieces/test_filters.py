"""The filters against those of scipy and scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import median_filter
from skimage.exposure import equalize_hist

from seepage.pieces.filters import as_photographs, equalised, median


def test_it_is_the_median_of_nine_pixels_with_mirrored_borders() -> None:
    x = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.stack([[median_filter(channel, 3, mode="mirror") for channel in image] for image in x.numpy()])
    np.testing.assert_array_equal(median(x).numpy(), expected)


def test_lanes_do_not_see_each_other() -> None:
    x = torch.rand(4, 2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert median(x)[2].equal(median(x[2]))


def test_equalisation_spreads_values_evenly_and_keeps_their_order() -> None:
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3 * 0.1
    spread = equalised(x).flatten(-2)
    even = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    torch.testing.assert_close(spread.sort(-1).values, even.expand(2, 3, 64))
    assert spread.argsort(-1).equal(x.flatten(-2).argsort(-1))


def test_equalisation_is_that_of_scikit_image_on_few_grey_values() -> None:
    levels = torch.randint(0, 256, (32, 32), generator=torch.Generator().manual_seed(0))
    # scikit-image counts what is at most a value, here half of the equal ones count: half a bin apart.
    reference = equalize_hist(levels.numpy(), nbins=256)
    assert np.abs(equalised(levels.double()).numpy() - reference).max() < 0.01


def test_photographs_are_one_line_of_what_was_found() -> None:
    x = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0] *= 0.1  # one is dark and flat, and stays so beside the others
    shown = as_photographs(x)
    gain, shift = np.polyfit(x.flatten().numpy(), shown.flatten().numpy(), 1)
    np.testing.assert_allclose(shown.numpy(), gain * x.numpy() + shift, atol=1e-12)
    assert float(shown.mean()) == pytest.approx(0.43)
    assert float(shown.flatten(1).std(1).mean()) == pytest.approx(0.22)
    assert shown[0].mean() < shown[1:].mean() - 0.1
    assert torch.isfinite(as_photographs(torch.zeros(2, 3, 4, 4))).all()
