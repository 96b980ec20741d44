"""The model that somebody with a client's records would train alone, from a model that everybody was sent."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.engine.precision import arithmetic
from seepage.local import local_update
from seepage.recipe import Adam, Recipe
from seepage.task import Params, Task

__all__ = ["EPOCHS", "LR", "train_alone"]

EPOCHS = 200
LR = 1e-3
"""Full-batch steps of Adam. A network has no one optimum: what a client would have trained alone is this."""


def train_alone(
    task: Task, params: Params, x: Tensor, y: Tensor, *, buffers: Params | None = None, train: bool = False
) -> Params:
    """Parameters after training on one client's records alone.

    Args:
        task: the module and its loss.
        params: where training begins: the first global model that was seen.
        x: records, (n, …).
        y: labels, (n,).
        buffers: of the global model.
        train: mode of the module.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(1, 1), DataSpec((1,)))
        >>> zeros = {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}
        >>> alone = train_alone(task, zeros, torch.ones(2, 1), torch.ones(2))
        >>> round(float(alone["weight"]), 2)
        0.18
    """
    recipe = Recipe(Adam(LR), epochs=EPOCHS, batch_norm="train" if train else "eval")
    with torch.no_grad(), arithmetic("fp32"):
        update = local_update(task, params, recipe.schedule(x, y), recipe, buffers=buffers)
    return {name: p - update[name] for name, p in params.items()}
