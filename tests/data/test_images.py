from __future__ import annotations

import numpy as np
import pytest
import torch

from seepage.data.folder import DataBroken
from seepage.data.images import head_and_tail, image_examples
from seepage.spec import DataSpec, Examples

COLOUR = DataSpec((3, 2, 4), classes=5, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


def test_channels_come_first_and_bytes_become_units() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 2, 4, 3), dtype=np.uint8)
    examples = image_examples(images, np.arange(6) % 5, COLOUR)
    assert examples.x.shape == (6, 3, 2, 4)
    assert examples.x.dtype == torch.float32
    assert examples.y.dtype == torch.long
    for channel, (mean, std) in enumerate(zip(COLOUR.mean, COLOUR.std, strict=True)):
        expected = (images[..., channel].astype(np.float64) / 255 - mean) / std
        np.testing.assert_allclose(examples.x[:, channel].numpy(), expected, atol=1e-6)


def test_bytes_survive_the_way_there_and_back() -> None:
    images = np.arange(256, dtype=np.uint8).repeat(3).reshape(32, 2, 4, 3)
    pixels = COLOUR.pixels(image_examples(images, np.zeros(32, np.int64), COLOUR).x)
    assert np.array_equal((pixels * 255).round().to(torch.uint8).numpy().transpose(0, 2, 3, 1), images)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 2, 4, 3)), np.zeros(2), "expected images of type uint8, got float64"),
        (np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2), r"expected images of shape \(3, 2, 4\).*got \(3, 4, 4\)"),
        (np.zeros((2, 2, 4, 3), np.uint8), np.zeros(3), "got 3 labels for 2 images"),
        (np.zeros((2, 2, 4, 3), np.uint8), np.array([0, 5]), "expected labels 0 to 4, got 0 to 5"),
    ],
)
def test_what_does_not_fit_is_refused(
    images: np.typing.NDArray[np.uint8], labels: np.typing.NDArray[np.int64], message: str
) -> None:
    with pytest.raises(DataBroken, match=message):
        image_examples(images, labels, COLOUR)


def test_head_and_tail_are_the_whole_in_order() -> None:
    whole = Examples(torch.arange(7.0)[:, None], torch.arange(7))
    head, tail = head_and_tail(whole, 0.5)
    assert torch.equal(Examples.join([head, tail]).y, whole.y)
