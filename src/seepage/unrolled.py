"""The slow, obvious twin of the adjoint sweep: plain double backward through every step.

It builds one autograd graph over all local steps, as most published code does. Tests hold the sweep to it, and
benchmarks measure against it.
"""

from __future__ import annotations

import torch

from seepage.recipe import Recipe, Schedule
from seepage.task import Params, Task

__all__ = ["unrolled_update"]


def unrolled_update(task: Task, params: Params, schedule: Schedule, recipe: Recipe) -> Params:
    """What `local_update` gives for one client without a defence, by `torch.autograd` alone."""
    before = {name: p if p.requires_grad else p.detach().requires_grad_() for name, p in params.items()}
    now, buffers = dict(before), task.buffers
    slots = {name: recipe.optimiser.init(p) for name, p in now.items()}
    for t, (x, y) in enumerate(zip(schedule.x, schedule.y, strict=True)):
        out, buffers = task.forward(now, x, buffers=buffers, train=recipe.train)
        gradients = torch.autograd.grad(task.mean_loss(out, y), list(now.values()), create_graph=True)
        if recipe.sends == "gradient":
            return dict(zip(now, gradients, strict=True))
        for name, gradient in zip(list(now), gradients, strict=True):
            now[name], slots[name] = recipe.optimiser.step(t, now[name], gradient, slots[name])
    return {name: before[name] - now[name] for name in now}
