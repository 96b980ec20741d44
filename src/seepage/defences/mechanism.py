"""What a differentially private defence does to one example, in the three numbers that its guarantees follow from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mechanism"]


@dataclass(frozen=True)
class Mechanism:
    """Gaussian noise on sums that one example, or one client, can move by a bounded length, several times over.

    Args:
        noise: deviation of the noise over that length, σ in Abadi et al., 2016 (https://arxiv.org/abs/1607.00133).
        share: chance that an example takes part in a step.
        steps: how many.
    """

    noise: float
    share: float = 1.0
    steps: int = 1
