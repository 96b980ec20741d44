"""Mixup: training on blends of two examples and of their labels.

Zhang, Cisse, Dauphin and Lopez-Paz, 2018, "mixup: beyond empirical risk minimization"
(https://arxiv.org/abs/1710.09412); as a defence in Huang, Gupta, Song, Li and Arora, 2021, "Evaluating gradient
inversion attacks and defenses in federated learning" (https://arxiv.org/abs/2112.00059).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from seepage.defences.base import Defence, NoDefence
from seepage.spec import Examples
from seepage.streams import Stream

__all__ = ["Mixup"]


@dataclass(frozen=True)
class Mixup(Defence):
    """Replace each example by λ of itself and 1 − λ of another of the client's, with λ drawn from Beta(α, α).

    Args:
        alpha: α in the paper; 0 mixes nothing.
        classes: number of classes, to write labels as shares of each; not needed for regression.

    Note:
        The paper mixes each batch anew with one λ. Here a client mixes its examples once a round, before it draws
        batches, and each example has a λ of its own. The partner is drawn by shuffling, so that it may be the example
        itself. A loss of one's own has to take shares of classes, (n, classes), for targets.

    Example:
        >>> examples = Examples(torch.eye(4), torch.tensor([0, 1, 1, 0]))
        >>> mixed = Mixup(alpha=1.0, classes=2).on_data(examples, Stream.from_seed(0))
        >>> mixed.y.shape, mixed.y.sum(1)
        (torch.Size([4, 2]), tensor([1., 1., 1., 1.]))
    """

    name: ClassVar[str] = "mixup"
    alpha: float = 1.0
    classes: int | None = None

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"expected `alpha` of at least 0, got {self.alpha}; 0 mixes nothing")
        if self.classes is not None and self.classes < 2:
            raise ValueError(f"expected `classes` of at least 2, got {self.classes}; leave it out for regression")

    @property
    def expected(self) -> Defence:
        """Nothing: an attacker who simulates training on blends looks for the blends."""
        return NoDefence()

    def on_data(self, examples: Examples, rng: Stream | None) -> Examples:
        """λx + (1 − λ)x′, and the same of the targets."""
        if rng is None:
            return examples
        n, targets = len(examples), self._targets(examples)
        partner = torch.randperm(n, generator=(rng / "partner").generator()).to(examples.x.device)
        share = (
            np.random.default_rng((rng / "share").seed).beta(self.alpha, self.alpha, n) if self.alpha else np.ones(n)
        )
        weight = torch.from_numpy(share).to(examples.x)
        return Examples(_blend(examples.x, partner, weight), _blend(targets, partner, weight))

    def _targets(self, examples: Examples) -> Tensor:
        if examples.y.is_floating_point():
            return examples.y
        most = int(examples.y.max()) + 1
        if self.classes is None or self.classes < most:
            raise ValueError(
                f"expected `classes` of at least {most}, as there are labels up to {most - 1}, got {self.classes}; "
                "set it to the number of classes"
            )
        return functional.one_hot(examples.y, self.classes).to(examples.x.dtype)


def _blend(values: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    weight = weight.to(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
    return weight * values + (1 - weight) * values[partner]
