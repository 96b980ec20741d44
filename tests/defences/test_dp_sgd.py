"""DP-SGD: the mechanism against Opacus' own optimiser, the accountant against Opacus and a closed form."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn

from common.defence_suite import ONE, OTHER
from common.nets import flat, image_task, images
from seepage import local
from seepage.defences import ClipExamples, DpSgd, Mixup, NoDefence, chain
from seepage.defences.dp_sgd import AccountantMissing
from seepage.local import answer
from seepage.recipe import SGD, Recipe


def sent(defence: DpSgd | ClipExamples | NoDefence, recipe: Recipe, n: int = 6, rng=ONE) -> torch.Tensor:
    task = image_task()
    return flat(answer(task, task.params, images(n), recipe, defence, rng).update)


def test_without_noise_it_is_clipping() -> None:
    recipe = Recipe(SGD(0.5), epochs=2, batch_size=2)
    assert sent(DpSgd(0.1, 0.0), recipe).equal(sent(ClipExamples(0.1), recipe))


@pytest.mark.parametrize(("batch", "n"), [(None, 6), (3, 6), (50, 6)])
def test_noise_on_the_mean_has_deviation_sigma_c_over_the_batch(batch: int | None, n: int) -> None:
    recipe = Recipe(SGD(1.0), batch_size=batch, shuffle=False)
    noise = sent(DpSgd(0.2, 3.0), recipe, n) - sent(DpSgd(0.2, 0.0), recipe, n)
    # Steps add up; clipping moves a little with the noise of the step before.
    expected = 3.0 * 0.2 / min(batch or n, n) * math.sqrt(recipe.steps(n))
    assert float(noise.std()) == pytest.approx(expected, rel=0.15)
    assert not torch.allclose(sent(DpSgd(0.2, 3.0), recipe, n, ONE), sent(DpSgd(0.2, 3.0), recipe, n, OTHER))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_clipped_gradients_without_the_gradients_are_the_same(
    soft: bool, frozen: bool, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)
    )
    net[1].weight.requires_grad_(not frozen)
    task, data = image_task(lambda: net), images(6)
    defence = Mixup(1.0, classes=3) if soft else NoDefence()
    whole = chain(defence, DpSgd(0.3, noise))
    recipe = Recipe(SGD(0.5), epochs=2, batch_size=4)

    def update() -> torch.Tensor:
        return flat(answer(task, task.params, data, recipe, whole, ONE).update)

    quick = update()
    asked = []
    monkeypatch.setattr(local, "_per_example", lambda *a: asked.append(a) or plain(*a))
    assert update().equal(quick)
    assert not asked
    monkeypatch.setattr(local, "ROW_BY_ROW", ())
    torch.testing.assert_close(update(), quick, rtol=1e-9, atol=1e-12)
    assert asked


plain = local._per_example


@pytest.mark.filterwarnings("ignore")
def test_clipping_is_that_of_opacus() -> None:
    opacus = pytest.importorskip("opacus")
    task, data = image_task(), images(6)
    module = nn.Sequential(*task.module)
    wrapped = opacus.GradSampleModule(module)
    optimiser = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), 1.0), noise_multiplier=0.0, max_grad_norm=0.1, expected_batch_size=6
    )
    before = flat({k: p.detach().clone() for k, p in module.named_parameters()})
    nn.functional.cross_entropy(wrapped(data.x), data.y).backward()
    optimiser.step()
    theirs = before - flat({k: p.detach() for k, p in module.named_parameters()})
    torch.testing.assert_close(sent(DpSgd(0.1, 0.0), Recipe(SGD(1.0))), theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.filterwarnings("ignore")
def test_the_accountant_is_that_of_opacus() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    reference = accountants.RDPAccountant()
    for _ in range(2 * 3 * 10):
        reference.step(noise_multiplier=1.1, sample_rate=0.1)
    recipe = Recipe(epochs=3, batch_size=10)
    assert DpSgd(1.0, 1.1).promised_epsilon(recipe, 100, 1e-5, rounds=2) == pytest.approx(
        reference.get_epsilon(1e-5), rel=1e-9
    )


@pytest.mark.filterwarnings("ignore")
def test_epsilon_of_one_full_batch_is_near_that_of_the_gaussian_mechanism() -> None:
    pytest.importorskip("opacus.accountants")
    sigma, delta = 2.0, 1e-5
    epsilon = DpSgd(1.0, sigma).promised_epsilon(Recipe(), 50, delta)

    def left(epsilon: float) -> float:  # Balle and Wang, 2018, theorem 8
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        return phi(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * phi(-1 / (2 * sigma) - epsilon * sigma)

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > delta else (low, middle)
    assert low <= epsilon < 1.25 * low  # an upper bound, and not a loose one


def test_no_noise_is_no_privacy() -> None:
    pytest.importorskip("opacus.accountants")
    assert DpSgd(1.0, 0.0).promised_epsilon(Recipe(), 10) == math.inf


def test_a_missing_accountant_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(AccountantMissing, match=r"seepage\[dp\]"):
        DpSgd().promised_epsilon(Recipe(), 10)


@pytest.mark.parametrize("knobs", [{"norm": 0.0}, {"noise": -1.0}])
def test_knobs_that_make_no_sense_are_refused(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        DpSgd(**knobs)


def test_a_short_last_batch_is_noised_as_much_as_its_mean_can_move() -> None:
    """Six examples in batches of four and two: an example moves a mean of two by C / 2."""
    recipe = Recipe(SGD(1.0), batch_size=4, shuffle=False)
    noise = sent(DpSgd(0.2, 3.0), recipe) - sent(DpSgd(0.2, 0.0), recipe)
    assert float(noise.std()) == pytest.approx(3.0 * 0.2 / 2 * math.sqrt(2), rel=0.15)
