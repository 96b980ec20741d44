"""First weights, drawn from a generator that is handed in: each rule is the default of a framework or of a paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["RULES", "Rule", "initialise"]

Layer = nn.Conv2d | nn.Linear
Rule = Callable[[Layer, torch.Generator], None]
Module = TypeVar("Module", bound=nn.Module)

# Standard deviation of a standard normal variable cut off at ±2, by which Flax (and JAX) divide.
TRUNCATED = 0.87962566103423978
# Of BERT and GPT-2, for tokens and positions alike.
EMBEDDING_STD = 0.02


def torch_default(layer: Layer, rng: torch.Generator) -> None:
    """PyTorch's own default: weights and biases from U(−1/√fan_in, 1/√fan_in)."""
    bound = 1 / math.sqrt(_fan_in(layer))
    for parameter in layer.parameters(recurse=False):
        parameter.uniform_(-bound, bound, generator=rng)


def uniform_half(layer: Layer, rng: torch.Generator) -> None:
    """Everything from U(−½, ½), as Zhu et al., 2019 and zhao2023 do it so that sigmoids do not go flat."""
    for parameter in layer.parameters(recurse=False):
        parameter.uniform_(-0.5, 0.5, generator=rng)


def lecun_normal(layer: Layer, rng: torch.Generator) -> None:
    """Flax's default: weights of variance 1/fan_in from a normal cut off at two deviations, biases zero.

    By the inverse of its distribution and not by `nn.init.trunc_normal_`, which since torch 2.12 draws other numbers
    from the same generator: a seed would stand for another network from one machine to the next.
    """
    std = 1 / math.sqrt(_fan_in(layer)) / TRUNCATED
    inside = math.erf(math.sqrt(2))  # of a normal variable, the share within two deviations
    layer.weight.uniform_(-inside, inside, generator=rng).erfinv_().mul_(math.sqrt(2) * std).clamp_(-2 * std, 2 * std)
    _zero(layer.bias)


def kaiming_fan_out(layer: Layer, rng: torch.Generator) -> None:
    """The usual choice for ResNets: convolutions from N(0, 2/fan_out), linear layers as PyTorch does by default."""
    if isinstance(layer, nn.Linear):
        torch_default(layer, rng)
    else:
        fan_out = layer.out_channels // layer.groups * math.prod(layer.kernel_size)
        layer.weight.normal_(0.0, math.sqrt(2 / fan_out), generator=rng)
        _zero(layer.bias)


RULES: dict[str, Rule] = {
    "torch": torch_default,
    "uniform-half": uniform_half,
    "lecun-normal": lecun_normal,
    "kaiming": kaiming_fan_out,
}


@torch.no_grad()
def initialise(module: Module, rule: Rule, rng: torch.Generator) -> Module:
    """Sets every parameter and buffer of `module` in place, layer by layer.

    Normalisation layers become the identity: weight one, bias zero, running mean zero, running variance one. Embeddings
    are drawn as those of BERT, and an LSTM as PyTorch does by default.

    Raises:
        TypeError: for a layer with parameters that no rule covers, which would be left with whatever is in memory.

    Example:
        >>> layer = initialise(nn.Linear(100, 2), torch_default, torch.Generator().manual_seed(0))
        >>> bool(layer.weight.abs().max() <= 0.1)
        True
    """
    for name, layer in module.named_modules():
        if isinstance(layer, Layer):
            rule(layer, rng)
        elif isinstance(layer, nn.Embedding):
            layer.weight.normal_(0.0, EMBEDDING_STD, generator=rng)
        elif isinstance(layer, nn.LSTM):
            bound = 1 / math.sqrt(layer.hidden_size)
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=rng)
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            layer.reset_parameters()  # ones, zeros and running statistics; draws nothing
        elif next(layer.parameters(recurse=False), None) is not None:
            raise TypeError(
                "expected layers of convolution, linear, LSTM, embedding or normalisation, "
                f"got {type(layer)} at {name!r}"
            )
    return module


def _fan_in(layer: Layer) -> int:
    return layer.weight[0].numel()


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        bias.zero_()
