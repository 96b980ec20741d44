"""The median filter against scipy's."""

from __future__ import annotations

import numpy as np
import torch
from scipy.ndimage import median_filter

from seepage.pieces.filters import median


def test_it_is_the_median_of_nine_pixels_with_mirrored_borders() -> None:
    x = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.stack([[median_filter(channel, 3, mode="mirror") for channel in image] for image in x.numpy()])
    np.testing.assert_array_equal(median(x).numpy(), expected)


def test_lanes_do_not_see_each_other() -> None:
    x = torch.rand(4, 2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert median(x)[2].equal(median(x[2]))
