"""Dummy targets, optimised together with the inputs instead of being read off beforehand (zhu2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.engine.lanes import over_lanes
from seepage.pieces.starts import normal_lanes
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import View

__all__ = ["normal_targets", "pulled_targets", "soft_targets"]


def normal_targets(view: View, starts: int, rng: Stream) -> Tensor:
    """Standard normal dummies: scores of classes, or the regression targets themselves, (clients, starts, count, …)."""
    spec = view.task.spec
    return normal_lanes(view, starts, rng, view.count, spec.targets if spec.classes is None else spec.classes)


def soft_targets(spec: DataSpec, dummies: Tensor) -> Tensor:
    """What the loss compares with: a probability for every class, by softmax; regression targets stay as they are.

    Example:
        >>> import torch
        >>> soft_targets(DataSpec((4,), classes=2), torch.tensor([[0.0, 0.0]]))
        tensor([[0.5000, 0.5000]])
    """
    return dummies if spec.classes is None else dummies.softmax(-1)


def pulled_targets(view: View, x: Tensor, dummies: Tensor) -> Tensor:
    """What the attack says in the end, (clients, count): the class that each dummy pulls up, or its regression target.

    Cross-entropy pulls the prediction p to the target y by p − y. A target between the two, (1 − c)·p + c·y, pulls
    c times as much, so that where a factor is free it explains a gradient as well as y itself; its largest entry may
    then be the prediction's, but what it has more than the prediction is the label's.

    Args:
        view: what the attacker holds.
        x: dummy inputs, (clients, count, …).
        dummies: their targets as optimised, (clients, count, …).
    """
    task, train = view.task, view.assumed_recipe.train
    if task.spec.classes is None:
        return dummies

    def pulled(x: Tensor, dummies: Tensor, params: Params, buffers: Params) -> Tensor:
        prediction = task.forward(params, x, buffers=buffers, train=train)[0].softmax(-1)
        return (soft_targets(task.spec, dummies) - prediction).argmax(-1)

    with torch.no_grad():
        found: Tensor = over_lanes(pulled, task.batched)(x, dummies, view.params, view.buffers)
    return found
