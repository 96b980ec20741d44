"""PRECODE: a variational bottleneck in the network.

Scheliga, Mäder and Seeland, 2022, "PRECODE: a generic model extension to prevent deep gradient leakage"
(https://arxiv.org/abs/2108.04725); as a defence in Yue et al., 2023, "Gradient obfuscation gives a false sense of
security in federated learning" (https://arxiv.org/abs/2206.04055), section 5.1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from seepage.defences.base import Defence
from seepage.engine.twins import Drawing
from seepage.recipe import Recipe
from seepage.streams import Stream

__all__ = ["Bottleneck", "Precode"]

MOST_STEPS = 8  # up to which a simulation of local training has a gradient by its buffers


@dataclass(frozen=True)
class Precode(Defence):
    """Put a variational block in front of the last linear layer, of which every member of the federation knows.

    What enters that layer is encoded to the mean and deviation of a few normal numbers, drawn, and decoded. The draw
    changes with every step and reaches the gradients of all layers before it.

    Args:
        size: K, how many numbers.
        beta: weight of their Kullback–Leibler divergence from standard normal ones in the loss.

    Note:
        An attacker has the module with its block and does not know the draw. Yue2023 attacks "the variational block
        without modifying the pipeline" and does not say whether its attacker knew the draw. A simulation without it
        decodes the means: an untrained block draws with a deviation near 1, far above them, and gradients are then far
        from the simulated ones. But the draw is only a few more unknowns, of which the gradient of the decoder tells
        much: `hidden` lets an attack search for it beside the images.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> [name for name, _ in Precode(size=2).on_module(net, Stream.from_seed(0))[1].named_children()]
        ['encode', 'decode', 'last']
    """

    name: ClassVar[str] = "precode"

    size: int = 256
    beta: float = 1e-3

    def __post_init__(self) -> None:
        if self.size < 1 or self.beta < 0:
            raise ValueError(f"expected `size` of at least 1 and `beta` of at least 0, got {self.size} and {self.beta}")

    def hidden(self, module: nn.Module, recipe: Recipe, count: int) -> dict[str, tuple[int, ...]]:
        """The draws of every step; nothing where there are many, or batches of which nobody knows the members."""
        steps = recipe.steps(count)
        if steps > MOST_STEPS or steps > recipe.epochs:
            return {}
        blocks = [path for path, layer in module.named_modules() if isinstance(layer, Bottleneck)]
        return {f"{path}.draws": (steps, count, self.size) for path in blocks}

    def on_module(self, module: nn.Module, rng: Stream) -> nn.Module:
        """A copy of the module with the block in it."""
        linear = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        if not linear or not linear[-1]:
            raise ValueError(
                "the defence 'precode' goes in front of the last linear layer inside of a network, "
                f"got {type(module).__name__}, which has none; use another defence"
            )
        extended = copy.deepcopy(module)
        path, _, name = linear[-1].rpartition(".")
        parent, last = extended.get_submodule(path), extended.get_submodule(linear[-1])
        assert isinstance(last, nn.Linear)
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(rng.seed)
            block = Bottleneck(last, self.size, self.beta)
        setattr(parent, name, block.to(last.weight))
        return extended


class Bottleneck(Drawing):
    """A last layer with a variational block in front of it.

    In training a class is added whose probability is 1 − exp(−β·KL), so that the cross-entropy of any other class grows
    by β·KL: a term of the loss that needs no other way to it, and has every derivative.

    Args:
        last: gives class scores.
        size: numbers in the block.
        beta: weight of the divergence.
    """

    def __init__(self, last: nn.Linear, size: int, beta: float) -> None:
        super().__init__()
        self.beta = beta
        self.encode = nn.Linear(last.in_features, 2 * size)
        self.decode = nn.Linear(size, last.in_features)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Class scores; means alone are decoded where there is neither a stream nor a guess, or no training."""
        mean, log_variance = self.encode(x).chunk(2, -1)
        code, draws = (
            mean,
            getattr(self, "draws", None),
        )  # put there by `functional_call`, where it is among the buffers
        if self.training and draws is not None:
            code = mean + (log_variance / 2).exp() * draws[0]
            self.fresh = {"draws": draws.roll(-1, 0)}  # the next step's comes first
        elif self.training and self.rng is not None:
            draw = torch.randn(mean.shape, generator=self.rng, dtype=torch.float64).to(mean)
            code = mean + (log_variance / 2).exp() * draw
        scores: Tensor = self.last(self.decode(code))
        if not self.training or not self.beta:
            return scores
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1, keepdim=True)
        more = (self.beta * divergence).clamp(min=torch.finfo(scores.dtype).tiny).expm1().log()
        return torch.cat([scores, scores.logsumexp(-1, keepdim=True) + more], -1)
