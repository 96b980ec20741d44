"""Fed-CDP: at each local step, each example's gradient is clipped and noised.

Wei, Liu, Wu, Su and Iyengar, 2021, "Gradient-leakage resilient federated learning" (https://arxiv.org/abs/2107.01154);
measured in Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a false sense of security in federated
learning" (https://arxiv.org/abs/2206.04055), eqs. (17) and (18).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.defences.base import Defence, Params
from seepage.defences.clip import clip_factor, clipped
from seepage.defences.mechanism import Mechanism
from seepage.recipe import Recipe
from seepage.streams import Stream

__all__ = ["FedCdp"]


@dataclass(frozen=True)
class FedCdp(Defence):
    """At every local step, clip each example's gradient layer by layer and add Gaussian noise, before their mean.

    Args:
        norm: C in eq. (17), the largest norm of a layer's gradient.
        std: σ in eq. (18); the noise has deviation σC.
        snr: in decibels, gives the noise by the clipped gradient of each layer instead of by `std`: its variance is the
            mean square of that gradient over 10^(snr/10).
        layers: numbers of parameters of the layers, in the order of the module's parameters; found out when a client
            trains, one for each tensor, where left empty.

    Note:
        The text of yue2023 has C = 4: `as_paper`. Its released code has C = 2, which is `as_code`; it measures a layer
        by its variance instead of its mean square, and neither clips nor noises the first example of a batch, which is
        not done here.
        Yue2023 gives ε from 108 to 1 for an `snr` from −20 to 0 dB: the wrong way round, as more noise has less of it.

    Example:
        >>> FedCdp(norm=1.0, std=0.0, layers=(2, 1)).on_example_gradient(torch.tensor([3.0, 4.0, 0.5]), None)
        tensor([0.6000, 0.8000, 0.5000])
        >>> FedCdp(norm=1.0, snr=-10.0).expected
        FedCdp(norm=1.0, std=0.0, snr=None, layers=())
    """

    name: ClassVar[str] = "fed-cdp"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"norm": 4.0, "snr": 0.0},
        "as_code": {"norm": 2.0, "snr": 0.0},
    }
    per_example: ClassVar[bool] = True

    norm: float = 4.0
    std: float = 0.01
    snr: float | None = None
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"expected `norm` above 0, got {self.norm}; a large one clips nothing")
        if self.std < 0:
            raise ValueError(f"expected `std` of at least 0, got {self.std}; 0 adds no noise")
        if any(size < 1 for size in self.layers):
            raise ValueError(
                f"expected every one of `layers` to be at least 1, got {self.layers}; they count parameters"
            )

    @property
    def expected(self) -> Defence:
        """The clipping alone."""
        return replace(self, std=0.0, snr=None)

    def fitted(self, params: Params) -> Defence:
        """With the sizes of the model's tensors, unless layers were named."""
        return self if self.layers else replace(self, layers=tuple(p.numel() for p in params.values()))

    def example_scales(self, squares: Params) -> Params | None:
        """One for each tensor, where layers are tensors and no noise is added."""
        if self.snr is not None or self.std or len(self.layers) != len(squares):
            return None
        return {name: clip_factor(square, self.norm) for name, square in squares.items()}

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """Clipped, eq. (17), and noised, eq. (18)."""
        parts = gradient.split(list(self._sizes(gradient)))
        signal = [clipped(part, self.norm) for part in parts]
        if rng is None or (self.snr is None and not self.std):
            return torch.cat(signal)
        noise = rng.noise(gradient).split(list(self._sizes(gradient)))
        return torch.cat([s + self._deviation(s) * n for s, n in zip(signal, noise, strict=True)])

    def mechanism(self, recipe: Recipe, examples: int, rounds: int = 1) -> Mechanism | None:
        """With `std`: an example moves a sum over m of them by C√L for L layers, and their noises add up to σC√m.

        None with `snr`, whose noise follows the gradients that it is to hide, and before the layers are known.
        """
        if self.snr is not None or not self.std or not self.layers:
            return None
        batch = min(recipe.batch_size or examples, examples)
        smallest = examples % batch or batch
        noise = self.std * sqrt(smallest / len(self.layers))
        return Mechanism(noise, batch / examples, rounds * recipe.steps(examples))

    def _sizes(self, gradient: Tensor) -> tuple[int, ...]:
        layers = self.layers or (len(gradient),)
        if sum(layers) != len(gradient):
            raise ValueError(
                f"expected `layers` to sum to the {len(gradient)} parameters of the model, got {sum(layers)}; "
                "set it to tuple(p.numel() for p in task.params.values())"
            )
        return layers

    def _deviation(self, signal: Tensor) -> Tensor | float:
        if self.snr is None:
            return self.std * self.norm
        return (signal**2).mean().sqrt() * 10 ** (-self.snr / 20)
