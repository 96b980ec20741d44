"""What truly enters a layer of the module, for attacks that find that instead of the inputs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.spec import Examples
from seepage.task import Params, Task

__all__ = ["true_features"]


def true_features(
    task: Task, params: Params, buffers: Params, examples: Examples, layer: str, *, train: bool
) -> Tensor:
    """The inputs of one layer when the examples pass through the module together.

    Args:
        task: whose module.
        params: the global model's.
        buffers: the global model's.
        examples: the client's.
        layer: its path in the module, as in `module.named_modules()`.
        train: whether normalisation layers use the statistics of these examples; dropout is left out, since its masks
            are gone.

    Returns:
        (examples, width); where a layer is applied at several places of an example, (examples × places, width).

    Example:
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 3)), DataSpec((1, 2, 2), classes=3))
        >>> examples = Examples(torch.tensor([[[[1.0, -2.0], [3.0, -4.0]]]]), torch.tensor([0]))
        >>> true_features(task, task.params, task.buffers, examples, "2", train=False)
        tensor([[1., 0., 3., 0.]])
    """
    module = copy.deepcopy(task.module).train(train)
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    seen: list[Tensor] = []
    hook = module.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    state = {
        name: tensor.clone() for name, tensor in {**buffers, **params}.items()
    }  # running statistics are written to
    with torch.no_grad():
        functional_call(module, state, (examples.x,))
    hook.remove()
    if len(seen) != 1:
        raise ValueError(f"expected the module to pass through layer {layer!r} once, got {len(seen)} times")
    return seen[0].reshape(-1, seen[0].shape[-1])
