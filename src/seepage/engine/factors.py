"""What enters each linear layer and what comes back to it: a row's part in the layer's gradient is δ aᵀ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

__all__ = ["linear_factors"]


def linear_factors(
    net: nn.Module, held: dict[str, Tensor], rows: Tensor, loss: Callable[[Tensor], Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each linear layer with one vector per row, what entered it (rows, width) and what came back (rows, units).

    Differentiable with respect to `held` and `rows`.

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
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}

    def total(shifts: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What a layer's output may be moved by tells what comes back to it."""
        entered: dict[str, Tensor] = {}

        def note(name: str) -> Any:
            def hook(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
                if given[0].dim() != 2 or len(given[0]) != len(rows):  # for instance one row per token
                    return out
                entered[name] = given[0]
                return out + shifts[name]

            return hook

        hooks = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
        try:
            return loss(functional_call(net, held, (rows,))), entered
        finally:
            for hook in hooks:
                hook.remove()

    weights = {name: held[f"{name}.weight".removeprefix(".")] for name in layers}
    still = {name: weight.new_zeros(len(rows), layers[name].out_features) for name, weight in weights.items()}
    if not still:
        return {}
    watched = torch.is_grad_enabled() and any(t.requires_grad for t in (rows, *held.values()))
    if watched or torch._C._are_functorch_transforms_active():
        returned, entered = grad(total, has_aux=True)(still)
        return {name: (a, returned[name]) for name, a in entered.items()}
    # A fifth faster, where nobody differentiates what is found: no graph of the way back is kept.
    with torch.enable_grad():
        leaves = {name: zero.requires_grad_() for name, zero in still.items()}
        value, entered = total(leaves)
        deltas = torch.autograd.grad(value, [leaves[name] for name in entered]) if entered else ()
    return {name: (a.detach(), delta) for (name, a), delta in zip(entered.items(), deltas, strict=True)}
