"""Clipping of each example's gradient, against a loop over the examples."""

from __future__ import annotations

import pytest
import torch

from common.defence_suite import ONE
from common.nets import flat, image_task, images
from seepage.defences import ClipExamples, GradientNoise, NoDefence, chain
from seepage.local import answer, local_update
from seepage.recipe import SGD, Recipe


@pytest.mark.parametrize("norm", [0.01, 0.4, 1e6])
def test_a_step_is_the_mean_of_clipped_gradients(norm: float) -> None:
    task, examples = image_task(), images(5)
    one_by_one = [
        flat(task.gradient(task.params, x[None], y[None])) for x, y in zip(examples.x, examples.y, strict=True)
    ]
    expected = torch.stack([g * min(1, norm / float(g.norm())) for g in one_by_one]).mean(0)
    sent = answer(task, task.params, examples, Recipe(sends="gradient"), ClipExamples(norm), ONE).update
    torch.testing.assert_close(flat(sent), expected)


def test_no_step_is_longer_than_the_norm() -> None:
    task, recipe = image_task(), Recipe(SGD(0.5), epochs=3, batch_size=2)
    sent = answer(task, task.params, images(5), recipe, ClipExamples(0.01), ONE).update
    assert float(flat(sent).norm()) <= 0.5 * recipe.steps(5) * 0.01 + 1e-12


def test_an_attacker_can_simulate_all_of_it() -> None:
    task, recipe, examples = image_task(), Recipe(SGD(0.5), epochs=2, shuffle=False), images(3)
    defence = ClipExamples(0.05)
    assert defence.expected == defence
    sent = answer(task, task.params, examples, recipe, defence, ONE).update
    guess = local_update(task, task.params, recipe.schedule(examples.x, examples.y), recipe, defence.expected)
    torch.testing.assert_close(flat(guess), flat(sent))


def test_with_noise_after_it_the_noise_is_not_clipped() -> None:
    task, recipe = image_task(), Recipe(sends="gradient")
    private = chain(ClipExamples(0.001), GradientNoise(1.0, where="step"))
    noisy, plain = (answer(task, task.params, images(5), recipe, d, ONE).update for d in (private, NoDefence()))
    assert float((flat(noisy) - flat(plain)).std()) == pytest.approx(1.0, rel=0.15)
