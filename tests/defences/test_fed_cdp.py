"""Fed-CDP: clipping and noise for each example, layer by layer."""

from __future__ import annotations

import pytest
import torch

from common.defence_suite import ONE
from common.nets import flat, image_task, images, numbers
from seepage.defences import Clip, ClipExamples, FedCdp, NoDefence, chain
from seepage.local import answer, local_update
from seepage.recipe import SGD, Recipe

LAYERS = (20_000, 30_000)


def test_each_layer_is_clipped_to_the_norm_as_in_equation_17() -> None:
    gradient = torch.cat([numbers(20), numbers(30, seed=1) / 1000])
    first, second = FedCdp(0.5, std=0.0, layers=(20, 30)).on_example_gradient(gradient, ONE).split([20, 30])
    torch.testing.assert_close(first, gradient[:20] * 0.5 / gradient[:20].norm())
    assert second.equal(gradient[20:])


def test_without_layers_and_noise_it_clips_examples() -> None:
    gradient = numbers(50)
    assert (
        FedCdp(0.5, std=0.0)
        .on_example_gradient(gradient, ONE)
        .equal(ClipExamples(0.5).on_example_gradient(gradient, ONE))
    )


def test_noise_has_the_deviation_of_equation_18() -> None:
    gradient, defence = numbers(sum(LAYERS)), FedCdp(2.0, std=0.1, layers=LAYERS)
    noise = defence.on_example_gradient(gradient, ONE) - defence.on_example_gradient(gradient, None)
    assert float(noise.std()) == pytest.approx(0.2, rel=0.02)
    assert abs(float(noise.mean())) < 4 * 0.2 / sum(LAYERS) ** 0.5


@pytest.mark.parametrize("snr", [-20.0, 0.0, 10.0])
def test_noise_is_as_far_from_each_clipped_layer_as_the_decibels_say(snr: float) -> None:
    gradient = torch.cat([numbers(LAYERS[0]), 1e-6 * numbers(LAYERS[1], seed=1)])
    defence = FedCdp(2.0, snr=snr, layers=LAYERS)
    signal = defence.on_example_gradient(gradient, None)
    noise = defence.on_example_gradient(gradient, ONE) - signal
    for s, n in zip(signal.split(LAYERS), noise.split(LAYERS), strict=True):
        assert float(10 * torch.log10((s**2).sum() / (n**2).sum())) == pytest.approx(snr, abs=0.2)


def test_the_mean_of_a_batch_has_less_noise_by_the_root_of_its_size() -> None:
    task, recipe = image_task(), Recipe(sends="gradient")
    layers = tuple(p.numel() for p in task.params.values())
    defence = FedCdp(1e30, std=1e-30, layers=layers)  # nothing is clipped, and the noise has deviation 1
    noisy, plain = (answer(task, task.params, images(9), recipe, d, ONE).update for d in (defence, NoDefence()))
    assert float((flat(noisy) - flat(plain)).std()) == pytest.approx(1 / 3, rel=0.15)


def test_noise_is_drawn_anew_at_every_step() -> None:
    task, defence = image_task(), FedCdp(1e30, std=1e-30)
    first, twice = (
        flat(answer(task, task.params, images(1), Recipe(SGD(1.0), epochs=e), defence, ONE).update) for e in (1, 2)
    )
    plain = flat(answer(task, task.params, images(1), Recipe(SGD(1.0)), NoDefence(), ONE).update)
    assert float((first - plain).std()) == pytest.approx(1, rel=0.15)
    assert float((twice - 2 * first).std()) == pytest.approx(2**0.5, rel=0.25)


def test_the_clipping_is_what_is_expected() -> None:
    defence = FedCdp(0.5, snr=-10.0, layers=(3, 4))
    assert defence.expected == FedCdp(0.5, std=0.0, layers=(3, 4))


def test_layers_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="`layers` to sum to the 7 parameters of the model, got 5; set it to tuple"):
        FedCdp(layers=(2, 3)).on_example_gradient(numbers(7), ONE)


def test_layers_are_those_of_the_model_unless_named() -> None:
    params = {"w": numbers(2, 3), "b": numbers(2)}
    assert FedCdp().fitted(params).layers == (6, 2)  # type: ignore[attr-defined]
    assert FedCdp(layers=(8,)).fitted(params).layers == (8,)  # type: ignore[attr-defined]
    (clip, cdp) = chain(Clip(1.0), FedCdp()).fitted(params).parts  # type: ignore[attr-defined]
    assert (clip, cdp.layers) == (Clip(1.0), (6, 2))


def test_a_client_clips_every_tensor_by_itself() -> None:
    task, examples = image_task(), images(1)
    recipe = Recipe(sends="gradient")
    plain, clipped = (
        local_update(task, task.params, recipe.schedule(examples.x, examples.y), recipe, defence)
        for defence in (NoDefence(), FedCdp(norm=1e-3, std=0.0))
    )
    for name, tensor in plain.items():
        expected = tensor * min(1.0, 1e-3 / float(tensor.norm()))
        torch.testing.assert_close(clipped[name], expected, rtol=1e-6, atol=1e-12)
