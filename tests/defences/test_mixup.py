"""Blends of examples and of their labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from common.defence_suite import ONE, OTHER
from common.nets import CLASSES, flat, image_task, images, numbers, seeded, whole_numbers
from seepage.defences import Mixup, NoDefence
from seepage.local import answer
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task


def marked(n: int) -> Examples:
    """Examples whose blends show what they are made of."""
    return Examples(torch.eye(n, dtype=torch.float64), whole_numbers(n))


@given(st.integers(1, 12), st.floats(0.1, 5.0), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_each_is_made_of_itself_and_at_most_one_other_and_so_is_its_label(n: int, alpha: float, seed: int) -> None:
    examples = marked(n)
    mixed = Mixup(alpha, CLASSES).on_data(examples, ONE / seed)
    shares = mixed.x  # (example, original)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert int((shares > 0).sum(1).max()) <= 2
    torch.testing.assert_close(shares.sum(1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(mixed.y, shares @ nn.functional.one_hot(examples.y, CLASSES).double())
    torch.testing.assert_close(shares.diagonal() + (shares - shares.diagonal().diag()).sum(1), torch.ones(n).double())


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_drawn_from_the_beta_distribution(alpha: float) -> None:
    n = 3000
    mixed = Mixup(alpha, CLASSES).on_data(Examples(torch.eye(n), whole_numbers(n)), ONE)
    own = mixed.x.diagonal()[mixed.x.diagonal() < 1]  # the rest are their own partners
    assert float(own.mean()) == pytest.approx(0.5, abs=0.04)
    assert float(own.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)


def test_training_on_blends_is_training_on_both_labels_by_their_shares() -> None:
    task, examples = image_task(), images(4)
    mixed = Mixup(1.0, CLASSES).on_data(examples, ONE / "data")
    expected = torch.stack(
        [
            mixed.y[i, label] / 4 * flat(task.gradient(task.params, mixed.x[i : i + 1], torch.tensor([label])))
            for i in range(4)
            for label in range(CLASSES)
        ]
    ).sum(0)
    sent = answer(task, task.params, examples, Recipe(sends="gradient"), Mixup(1.0, CLASSES), ONE).update
    torch.testing.assert_close(flat(sent), expected)


def test_targets_of_regression_are_blended_as_they_are() -> None:
    examples = Examples(torch.eye(6, dtype=torch.float64), numbers(6, 1))
    mixed = Mixup().on_data(examples, ONE)
    torch.testing.assert_close(mixed.y, mixed.x @ examples.y)
    task = Task(seeded(lambda: nn.Linear(6, 1)), DataSpec((6,)))
    assert flat(answer(task, task.params, examples, Recipe(SGD(0.1), epochs=2), Mixup(), ONE).update).isfinite().all()


def test_blends_differ_from_stream_to_stream_and_an_attacker_has_none() -> None:
    one, other = (Mixup(1.0, CLASSES).on_data(images(4), rng).x for rng in (ONE, OTHER))
    assert not one.equal(other)
    assert Mixup(1.0, CLASSES).expected == NoDefence()


@pytest.mark.parametrize("classes", [None, 2])
def test_too_few_classes_are_refused_with_the_number_that_is_needed(classes: int | None) -> None:
    examples = Examples(torch.eye(3), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=f"`classes` of at least 3, .* got {classes}; set it"):
        Mixup(1.0, classes).on_data(examples, ONE)
