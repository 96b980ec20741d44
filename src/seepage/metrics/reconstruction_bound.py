"""How often any attack can bring an example back through differentially private noise: reconstruction robustness.

Hayes, Mahloujifar and Balle, 2023, "Bounding training data reconstruction in DP-SGD"
(https://arxiv.org/abs/2302.07225), theorem 2 and algorithm 1; Kaissis, Hayes, Ziller and Rueckert, 2023, "Bounding data
reconstruction attacks with the hypothesis testing interpretation of differential privacy"
(https://arxiv.org/abs/2307.03928).
"""

from __future__ import annotations

from math import floor, sqrt

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from seepage.metrics.intervals import share_interval

__all__ = ["best_guess", "reconstruction_bound"]

DRAWS = 200_000


def reconstruction_bound(prior: float, noise: float, share: float = 1.0, steps: int = 1, draws: int = DRAWS) -> float:
    """The largest chance with which an attack that sees all steps brings an example back.

    An attack is a test: its answer is right with chance `prior` at most where the example took no part, and noise makes
    the two cases hard to tell apart. The most powerful test (Neyman and Pearson) has the ratio of the likelihoods of
    N(b, σ²) with b = 1 in a `share` of the steps, and of N(0, σ²). It holds whatever the attack knows besides,
    all other examples included.

    Args:
        prior: κ, the chance that the best guess without any message is close enough.
        noise: σ, deviation of the noise over the length by which an example can move a sum.
        share: q, the chance that the example takes part in a step.
        steps: T.
        draws: for q < 1 and T > 1, where there is no closed form, so many of either case, by a fixed seed; three
            standard errors of both are added, so that the bound stays one.

    Returns:
        γ, in [κ, 1].

    Example:
        >>> round(reconstruction_bound(0.01, noise=1.0), 3), round(reconstruction_bound(0.01, noise=1.0, steps=16), 3)
        (0.092, 0.953)
    """
    if not 0 <= prior <= 1 or noise < 0 or not 0 < share <= 1 or steps < 1:
        raise ValueError(
            "expected `prior` in [0, 1], `noise` of at least 0, `share` in (0, 1] and `steps` of at least 1, "
            f"got {prior}, {noise}, {share} and {steps}"
        )
    if prior in (0, 1) or noise == 0:
        return 1.0 if noise == 0 and prior else float(prior)
    if share == 1:
        return float(ndtr(ndtri(prior) + sqrt(steps) / noise))
    if steps == 1:  # the ratio grows with what is seen: the test is a threshold
        return float((1 - share) * prior + share * ndtr(ndtri(prior) + 1 / noise))
    return _by_simulation(prior, noise, share, steps, draws)


def _by_simulation(prior: float, noise: float, share: float, steps: int, draws: int) -> float:
    rng = np.random.default_rng(0)
    without, within = np.zeros(draws), np.zeros(draws)
    for _ in range(steps):
        for evidence, chance in ((without, 0.0), (within, share)):
            seen = noise * rng.standard_normal(draws) + (rng.random(draws) < chance)
            evidence += np.logaddexp(np.log1p(-share), np.log(share) + (2 * seen - 1) / (2 * noise**2))
    allowed = min(1.0, prior + 3 * sqrt(prior * (1 - prior) / draws) + 1 / draws)
    threshold = np.sort(without)[max(0, floor(draws * (1 - allowed)) - 1)]
    power = float((within > threshold).mean())
    bound = power + 3 * sqrt(max(power * (1 - power), 1 / draws) / draws)
    return min(1.0, max(prior, bound))


def best_guess(pixels: Tensor, reach: float, guesses: int = 1, level: float = 0.95) -> float:
    """How often a guess, made without any message, is close enough to an example: κ.

    Args:
        pixels: examples of the same kind that nobody attacks, (n, …).
        reach: largest root mean square error that counts as close enough.
        guesses: how many may be made, as an attack on a batch does of which any one counts; so many times the chance of
            the best.
        level: of the confidence in that chance, which is the upper end of its interval.

    Returns:
        From the share of examples near the best guess, among the examples and the means of their surroundings. The best
        guess of all may be another one: this is an estimate.

    Example:
        >>> round(best_guess(torch.tensor([[0.0], [0.1], [0.9]]), 0.2, level=0.5), 3)  # near two of three
        0.817
    """
    x = pixels.flatten(1).double()
    distance = reach * sqrt(x.shape[1])
    apart = torch.cdist(x, x)
    around = (apart <= 2 * distance).double()  # what one guess is close to cannot be further apart
    means = around @ x / around.sum(1, keepdim=True)
    most = int(max((near <= distance).sum(1).max() for near in (apart, torch.cdist(means, x))))
    return min(1.0, guesses * share_interval(most, len(x), level).high)
