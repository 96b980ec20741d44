from __future__ import annotations

import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from seepage.audit.table import Pictures
from seepage.report.pictures import best_pairs, data_uri


def decoded(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_survive(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(data_uri(pixels)), pixels if channels == 3 else pixels[:, :, 0])


def test_other_channels_show_the_first_and_large_images_shrink() -> None:
    assert decoded(data_uri(np.zeros((4, 4, 5), np.uint8))).shape == (4, 4)
    assert decoded(data_uri(np.zeros((224, 448, 3), np.uint8))).shape == (56, 112, 3)


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match="height, width, channels"):
        data_uri(np.zeros((4, 4), np.uint8))


def test_pairs_come_best_first_and_missing_ones_last() -> None:
    images = np.zeros((4, 2, 2, 1), np.uint8)
    pictures = Pictures(list("abcd"), list("0123"), images, images, np.array([math.nan, 20.0, 31.0, 5.0]))
    pairs = best_pairs(pictures, 20.0, 4)
    assert [pair.recovered for pair in pairs] == [True, False, False, False]  # strictly above
    assert pairs[-1].guess is None
    assert [pair.truth_alt[-1] for pair in pairs] == list("cbda")
    assert len(best_pairs(pictures, 20.0, 2)) == 2


def test_what_is_no_image_is_not_shown() -> None:
    nothing = Pictures(["a"], ["0"], np.zeros(0, np.uint8), np.zeros(0, np.uint8), np.array([1.0]))
    assert best_pairs(nothing, 20.0, 12) == []
