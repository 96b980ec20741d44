from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.metrics.baselines import best_constant, class_mean, even_labels, mean_image
from seepage.metrics.labels import label_accuracy
from seepage.metrics.pixels import mse
from seepage.spec import DataSpec, Examples


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), colour=st.tuples(*[st.floats(0, 1)] * 3))
def test_no_constant_is_nearer(seed: int, colour: tuple[float, ...]) -> None:
    truth = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    other = torch.tensor(colour).reshape(3, 1, 1).expand_as(truth)
    best = mse(best_constant(truth), truth, 0.0, 1.0)
    assert (best <= mse(other, truth, 0.0, 1.0) + 1e-9).all()


def test_means_do_not_care_whether_they_are_taken_before_or_after_normalising() -> None:
    spec = DataSpec((3, 4, 4), classes=2, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels, y = torch.rand(6, 3, 4, 4), torch.tensor([0, 0, 1, 1, 1, 0])
    public = Examples(spec.normalise(pixels), y)
    torch.testing.assert_close(spec.pixels(mean_image(public)), pixels.mean(0))
    torch.testing.assert_close(
        spec.pixels(class_mean(public, torch.tensor([1, 0]))),
        torch.stack([pixels[y == 1].mean(0), pixels[y == 0].mean(0)]),
    )


def test_a_class_without_public_data_falls_back_to_the_mean() -> None:
    public = Examples(torch.tensor([[0.0], [4.0]]), torch.tensor([0, 1]))
    assert class_mean(public, torch.tensor([9, -1, 1])).flatten().tolist() == [2.0, 2.0, 4.0]
    assert class_mean(public, torch.zeros(0, dtype=torch.long)).shape == (0, 1)


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=10))
def test_even_labels_are_the_mean_over_all_even_guesses(labels: list[int]) -> None:
    truth = torch.tensor(labels)
    each, rest = divmod(len(labels), 4)
    guesses = [torch.tensor([*range(4)] * each + list(more), dtype=torch.long) for more in combinations(range(4), rest)]
    mean = sum(label_accuracy(guess, truth) for guess in guesses) / len(guesses)
    assert even_labels(truth, 4) == pytest.approx(mean)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="at least one public example, got none; pass `public=None`"):
        mean_image(Examples(torch.zeros(0, 2), torch.zeros(0)))
    with pytest.raises(ValueError, match=r"expected images .* got shape \(2, 3\)"):
        best_constant(torch.zeros(2, 3))
