"""Which tensors of an update an attack looks at."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["layer_weights", "masked", "parse_layers", "tensor_mask"]

Params = dict[str, Tensor]


def parse_layers(which: str) -> tuple[str, int]:
    """`"top10"` as `("top", 10)`; `"all"` as `("all", 0)`.

    Example:
        >>> parse_layers("first4")
        ('first', 4)
    """
    found = re.fullmatch(r"(all|(top|first|last)([1-9]\d*))", which) if isinstance(which, str) else None
    if found is None:
        raise ValueError(f"expected `layers` to be 'all', or 'top', 'first' or 'last' with a number, got {which!r}")
    return (found[2] or "all", int(found[3] or 0))


def tensor_mask(update: Params, which: str) -> Params:
    """One for every tensor that is looked at and zero for the others, per client.

    Args:
        update: (clients, …).
        which: `"all"`; `"top10"`, the ten tensors of largest norm; `"first10"` or `"last10"` in the module's order.

    Example:
        >>> tensor_mask({"a": torch.ones(1, 4), "b": torch.zeros(1, 4)}, "top1")
        {'a': tensor([1.]), 'b': tensor([0.])}
    """
    kind, number = parse_layers(which)
    names = list(update)
    like = update[names[0]]
    chosen = like.new_ones(len(like), len(names))  # (clients, tensors)
    if kind == "top":
        norms = torch.stack([u.reshape(len(u), -1).norm(dim=1) for u in update.values()], 1)
        best = norms.topk(min(number, len(names)), dim=1).indices
        chosen = torch.zeros_like(chosen).scatter(1, best, 1.0)
    elif kind == "first":
        chosen[:, number:] = 0
    elif kind == "last":
        chosen[:, : max(0, len(names) - number)] = 0
    return {name: chosen[:, i] for i, name in enumerate(names)}


def masked(update: Params, mask: Params) -> Params:
    """One client's update with the tensors outside of `mask` set to zero."""
    return {name: mask[name] * u for name, u in update.items()}


def layer_weights(names: Iterable[str], decay: float) -> dict[str, float]:
    """e^(−decay·l) for all tensors of the l-th layer, l = 0, 1, … (dimitrov2022).

    Args:
        names: of the tensors in the module's order; what stands before the last dot is the layer.
        decay: 0 weighs all layers alike.

    Example:
        >>> layer_weights(["conv.weight", "conv.bias", "linear.weight"], 1.0)
        {'conv.weight': 1.0, 'conv.bias': 1.0, 'linear.weight': 0.36787944117144233}
    """
    layers: dict[str, int] = {}
    return {name: math.exp(-decay * layers.setdefault(name.rpartition(".")[0], len(layers))) for name in names}
