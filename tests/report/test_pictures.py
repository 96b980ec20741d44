from __future__ import annotations

import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from seepage.audit.table import Footage, Pictures
from seepage.report.pictures import data_uri, gallery_pairs


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
    pairs = gallery_pairs(pictures, 20.0)
    assert [pair.recovered for pair in pairs] == [True, False, False, False]  # strictly above
    assert pairs[-1].guess is None
    assert [pair.truth_alt[-1] for pair in pairs] == list("cbda")


def test_what_is_no_image_is_not_shown() -> None:
    nothing = Pictures(["a"], ["0"], np.zeros(0, np.uint8), np.zeros(0, np.uint8), np.array([1.0]))
    assert gallery_pairs(nothing, 20.0) == []


def test_of_many_the_best_the_middle_and_the_worst_are_shown() -> None:
    n = 101
    images = np.zeros((n, 2, 2, 1), np.uint8)
    pictures = Pictures(["a"] * n, [str(i) for i in range(n)], images, images, np.arange(n, dtype=float))
    shown = {
        rank: [pair.psnr for pair in gallery_pairs(pictures, 50.0) if pair.rank == rank]
        for rank in ("best", "median", "worst")
    }
    assert shown == {"best": [100, 99, 98, 97, 96, 95], "median": [51, 50, 49], "worst": [2, 1, 0]}


def test_films_belong_to_their_pictures() -> None:
    images = np.zeros((2, 4, 4, 1), np.uint8)
    way = np.stack([np.full((4, 4, 1), shade, np.uint8) for shade in (0, 100, 200)])[None]
    film = Footage(np.array([1]), np.array([0, 5, 10]), way, way[:, :0])
    pictures = Pictures(["a", "b"], ["0", "0"], images, images, np.array([30.0, 20.0]), film)
    first, second = gallery_pairs(pictures, 25.0)
    assert (first.client, first.way, second.client) == ("a", [], "b")
    assert [int(decoded(frame).mean().round()) for frame in second.way] == pytest.approx([0, 100, 200], abs=4)
    assert all(not pair.way for pair in gallery_pairs(pictures, 25.0, filmed=False))
