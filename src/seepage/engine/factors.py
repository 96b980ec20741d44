"""What enters each linear layer and what comes back to it: a row's part in the layer's gradient is δ aᵀ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["linear_factors"]


def linear_factors(
    net: nn.Module, held: dict[str, Tensor], rows: Tensor, loss: Callable[[Tensor], Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each linear layer with one vector per row, what entered it (rows, width) and what came back (rows, units).

    Args:
        net: the module.
        held: its parameters and buffers.
        rows: its input.
        loss: of its output; the sum of the rows' own losses.

    Example:
        >>> net = nn.Linear(2, 1, bias=False)
        >>> held = {"weight": torch.ones(1, 2)}
        >>> linear_factors(net, held, torch.tensor([[1.0, 2.0]]), lambda out: 3 * out.sum())
        {'': (tensor([[1., 2.]]), tensor([[3.]]))}
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
            if given[0].shape[0] == len(rows) and out.dim() == 2:  # else for instance one row per token
                seen[name] = given[0].detach(), out

        return hook

    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            out = functional_call(net, held, (rows.detach().requires_grad_(),))
            if not seen:
                return {}
            returned = torch.autograd.grad(loss(out), [z for _, z in seen.values()])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: (a, delta) for (name, (a, _)), delta in zip(seen.items(), returned, strict=True)}
