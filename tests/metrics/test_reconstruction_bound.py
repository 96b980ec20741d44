"""Bounds on reconstruction against closed forms, simulated likelihood ratios, and the best attack on a small prior."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from scipy.stats import norm

from seepage.metrics.reconstruction_bound import DRAWS, _by_simulation, best_guess, reconstruction_bound


@pytest.mark.parametrize("prior", [0.001, 0.1, 0.5])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_one_step_is_the_power_of_the_test_of_two_gaussians(prior: float, noise: float) -> None:
    threshold = noise * norm.ppf(1 - prior)  # crossed with chance κ by N(0, σ²)
    assert reconstruction_bound(prior, noise) == pytest.approx(norm.sf((threshold - 1) / noise), rel=1e-9)
    chosen = 0.3 * norm.sf((threshold - 1) / noise) + 0.7 * norm.sf(threshold / noise)
    assert reconstruction_bound(prior, noise, share=0.3) == pytest.approx(chosen, rel=1e-9)


def test_steps_add_up_like_one_step_with_less_noise() -> None:
    assert reconstruction_bound(0.01, 4.0, steps=16) == pytest.approx(reconstruction_bound(0.01, 1.0), rel=1e-12)


@pytest.mark.parametrize(("share", "steps"), [(1 - 1e-9, 4), (0.25, 1)])
@pytest.mark.parametrize("prior", [0.01, 0.2])
def test_simulation_agrees_with_closed_forms_from_above(prior: float, share: float, steps: int) -> None:
    exact = reconstruction_bound(prior, 1.5, share if steps == 1 else 1.0, steps)
    simulated = _by_simulation(prior, 1.5, share, steps, DRAWS)
    assert exact <= simulated <= exact + 0.01


def test_two_chosen_steps_against_integration() -> None:
    """On a grid: the cells with the highest ratio, as long as N(0, σ²) gives them κ."""
    noise, share, prior = 0.8, 0.4, 0.05
    x = torch.linspace(-6, 8, 1401, dtype=torch.float64)
    null = torch.exp(-(x**2) / (2 * noise**2))
    here = torch.exp(-((x - 1) ** 2) / (2 * noise**2))
    mixed = (1 - share) * null + share * here
    without, within = torch.outer(null, null).flatten(), torch.outer(mixed, mixed).flatten()
    order = (within / without).argsort(descending=True)
    spent = (without / without.sum())[order].cumsum(0)
    exact = float((within / within.sum())[order][spent <= prior].sum())
    assert exact - 0.002 <= reconstruction_bound(prior, noise, share, steps=2) <= exact + 0.01


def test_no_attack_on_a_few_candidates_is_better() -> None:
    """Ten candidates that move the sum along axes of their own: the best attack takes the largest entry."""
    noise, candidates = 0.7, 10
    rng = torch.Generator().manual_seed(0)
    seen = noise * torch.randn(20_000, candidates, generator=rng)
    seen[:, 0] += 1
    found = float((seen.argmax(1) == 0).double().mean())
    bound = reconstruction_bound(1 / candidates, noise)
    assert 0.85 * bound < found <= bound  # and it comes near


def test_more_noise_fewer_steps_and_rarer_choice_promise_more() -> None:
    assert reconstruction_bound(0.1, 2.0) < reconstruction_bound(0.1, 1.0) < reconstruction_bound(0.1, 1.0, steps=2)
    assert reconstruction_bound(0.1, 1.0, 0.1, 3) < reconstruction_bound(0.1, 1.0, 0.5, 3)


def test_without_noise_nothing_and_without_a_prior_all_is_promised() -> None:
    assert reconstruction_bound(0.1, 0.0) == 1
    assert reconstruction_bound(0.0, 1.0) == 0
    assert reconstruction_bound(0.1, 1e9) == pytest.approx(0.1)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`share` in \(0, 1\].*got 0.1, 1.0, 0.0 and 1"):
        reconstruction_bound(0.1, 1.0, share=0.0)


def test_the_best_guess_is_near_most_examples() -> None:
    ring = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [9.0, 9.0]])
    assert best_guess(ring, 1.01 * sqrt(0.5), level=1e-9) == pytest.approx(4 / 5)  # the middle, which is no example
    assert best_guess(ring, 0.1, level=1e-9) == pytest.approx(1 / 5)
    assert best_guess(ring, 0.1, guesses=3, level=1e-9) == pytest.approx(3 / 5)
    assert best_guess(ring, 100.0, level=1e-9) == 1
