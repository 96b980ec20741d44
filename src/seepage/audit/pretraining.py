"""A global model that has learnt something before the federation begins.

Attacks behave differently on trained networks (geiping2020, section 5), so an experiment says how its network was
trained, on examples that no client holds.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from seepage.audit.experiment import Pretraining
from seepage.engine.precision import arithmetic
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = ["Trained", "pretrain"]


@dataclass(frozen=True, eq=False)
class Trained:
    """Parameters and buffers by name."""

    params: Params
    buffers: Params


def pretrain(task: Task, examples: Examples, how: Pretraining, rng: Stream) -> Trained:
    """Train a copy of the task's module in the usual way.

    Args:
        task: module and loss; they stay as they are.
        examples: of no client, on the device to train on.
        how: epochs, learning rate and so on.
        rng: for the order of examples and their augmentation.
    """
    module = copy.deepcopy(task.module).to(examples.x.device).train()
    steps = how.epochs * math.ceil(len(examples) / how.batch_size)
    optimiser = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad],
        how.lr,
        momentum=0.9,
        weight_decay=how.weight_decay,
        nesterov=True,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    with arithmetic("tf32"), torch.enable_grad():
        for epoch in range(how.epochs):
            draw = (rng / "epoch" / epoch).generator()
            order = torch.randperm(len(examples), generator=draw).to(examples.x.device)
            for batch in order.split(how.batch_size):
                if len(batch) == 1 and len(examples) > 1:
                    continue  # a batch of one has no statistics to normalise by
                x = examples.x[batch]
                if how.augment and task.spec.is_image:
                    x = augmented(x, draw)
                loss = task.mean_loss(module(x), examples.y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    state = {name: value.detach().clone() for name, value in [*module.named_parameters(), *module.named_buffers()]}
    return Trained({name: state[name] for name in task.params}, {name: state[name] for name in task.buffers})


def augmented(x: Tensor, draw: torch.Generator) -> Tensor:
    """Images mirrored with probability one half, and shifted by up to an eighth of their size.

    Example:
        >>> augmented(torch.zeros(2, 3, 16, 16), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 16, 16])
    """
    n, _, height, width = x.shape
    mirrored = torch.rand(n, generator=draw).to(x.device) < 0.5
    x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    down, across = height // 8, width // 8
    padded = functional.pad(x, (across, across, down, down), mode="reflect")
    top = torch.randint(2 * down + 1, (n,), generator=draw).to(x.device)
    left = torch.randint(2 * across + 1, (n,), generator=draw).to(x.device)
    rows = top[:, None] + torch.arange(height, device=x.device)  # (n, height)
    columns = left[:, None] + torch.arange(width, device=x.device)
    images = torch.arange(n, device=x.device)[:, None, None]
    return padded.movedim(1, -1)[images, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
