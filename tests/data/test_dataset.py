from __future__ import annotations

import numpy
import pytest
import torch

from seepage.data import Column, Dataset, load
from seepage.spec import DataSpec, Examples

SPEC = DataSpec((1, 2, 2), classes=2, mean=(0.5,), std=(0.25,))


def half(n: int = 4) -> Examples:
    return Examples(torch.linspace(-2, 2, 4 * n).reshape(n, 1, 2, 2), torch.arange(n) % 2)


def test_other_normalisation_keeps_the_pixels() -> None:
    data = Dataset("toy", SPEC, half(), half(), None, ("a", "b"), "CC0", "here")
    raw = data.normalised_by()
    torch.testing.assert_close(raw.train.x, SPEC.pixels(data.train.x))
    again = raw.normalised_by((0.5,), (0.25,))
    torch.testing.assert_close(again.train.x, data.train.x)
    assert again.spec == data.spec
    assert torch.equal(again.test.y, data.test.y)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"expected train examples of shape \(1, 3, 3\), got \(1, 2, 2\)"):
        Dataset("toy", DataSpec((1, 3, 3), classes=2), half(), half(), None, ("a", "b"), "CC0", "here")


def test_owners_must_be_one_each() -> None:
    with pytest.raises(ValueError, match="got 3 owners for 4 examples"):
        Dataset("toy", SPEC, half(), half(), torch.zeros(3), ("a", "b"), "CC0", "here")


def test_classes_must_have_names() -> None:
    with pytest.raises(ValueError, match="expected 2 class names, got 1"):
        Dataset("toy", SPEC, half(), half(), None, ("a",), "CC0", "here")


def test_classes_without_names_have_numbers() -> None:
    assert Dataset("toy", SPEC, half(), half()).classes == ("0", "1")


@pytest.mark.parametrize(
    ("x", "y", "what"),
    [
        (half().x, half().y.int(), r"torch\.int64 of shape \(n,\), got torch\.int32 of shape \(4,\)"),
        (half().x, torch.eye(4)[:, :2], r"got torch\.float32 of shape \(4, 2\); call `\.long\(\)`, after `\.argmax"),
        (half().x, half().y + 1, "expected test labels 0 to 1, got 1 to 2"),
        (half().x.byte(), half().y, r"expected normalised test examples in floating point, got torch\.uint8"),
    ],
)
def test_what_no_module_could_learn_from_is_refused(x: torch.Tensor, y: torch.Tensor, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Dataset("toy", SPEC, half(), Examples(x, y))


def test_column_by_name() -> None:
    columns = (Column("age", 0, 1, "numeric"), Column("sex", 1, 3, "categorical", ("f", "m")))
    data = Dataset("toy", SPEC, half(), half(), None, ("a", "b"), "CC0", "here", columns=columns)
    assert data.column("sex").features == slice(1, 3)
    with pytest.raises(KeyError, match=r"expected one of the columns \['age', 'sex'\]"):
        data.column("race")


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(ValueError, match=r"expected one of the data sets \['adult'.*got 'minst'"):
        load("minst")
    with pytest.raises(ValueError, match="expected `split` to be 'train', 'test' or None, got 'valid'"):
        load("fashion-mnist", split="valid")  # type: ignore[call-overload]


def test_resized_images_are_those_of_pillow() -> None:
    from PIL import Image

    pixels = torch.rand(3, 1, 8, 8)
    spec = DataSpec((1, 8, 8), classes=2, mean=(0.5,), std=(0.25,))
    examples = Examples(spec.normalise(pixels), torch.arange(3) % 2)
    data = Dataset("toy", spec, examples, examples, None, ("a", "b"), "CC0", "here")
    for size in (4, 20):
        small = data.resized(size)
        assert small.spec.shape == (1, size, size)
        for ours, image in zip(small.spec.pixels(small.test.x), pixels, strict=True):
            theirs = Image.fromarray(image[0].numpy()).resize((size, size), Image.Resampling.BICUBIC)
            torch.testing.assert_close(ours[0], torch.from_numpy(numpy.array(theirs)).clamp(0, 1), rtol=0, atol=1e-5)


def test_a_table_is_not_resized() -> None:
    table = Examples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    data = Dataset("rows", DataSpec((3,), classes=1), table, table, None, ("a",), "CC0", "here")
    with pytest.raises(ValueError, match="expected images to resize, got the table 'rows'"):
        data.resized(4)
