"""An answer read as a gradient: what attacks that know nothing of local steps are made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from seepage.defences.base import NoDefence
from seepage.finding import NotApplicable
from seepage.local import local_update
from seepage.recipe import SGD, Recipe
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["dummy_gradient", "gradients_in", "mean_gradient"]


def gradients_in(view: View) -> float:
    """By how much an update outgrows the mean gradient of its steps: the learning rate for one plain step.

    Raises:
        NotKnown: for an update under a threat model that hides the steps, without which its scale means nothing.
        NotApplicable: for clients whose update is not proportional to their gradients.
    """
    if view.kind == "gradient":
        return 1.0
    optimiser = view.steps.each.optimiser
    if not isinstance(optimiser, SGD):
        raise NotApplicable(
            "expected clients that use SGD, whose update is proportional to their gradients, got "
            f"{type(optimiser).__name__}; attack under a threat model that grants labels"
        )
    plain = SGD(optimiser.lr, optimiser.momentum, nesterov=optimiser.nesterov)
    theta, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    slots = plain.init(theta)
    for t in range(view.steps.number):
        theta, slots = plain.step(t, theta, one, slots)
    return float(-theta)


def mean_gradient(view: View) -> Params:
    """The answer as if it were one mean gradient, (clients, …): exact for a gradient and for one plain step of SGD."""
    scale = gradients_in(view)
    return {name: update / scale for name, update in view.update.items()}


def dummy_gradient(view: View) -> Callable[[Tensor, Tensor, Params, Params], Params]:
    """The gradient of dummy examples, as a function of (x, y, params, buffers) of one client.

    It stands for an update of any length. Where clients are known to use an optimiser whose updates do not point along
    gradients, such as Adam, it is what one step makes of the gradient, at a learning rate of 1. Normalisation layers
    run in the clients' mode where that is known. A known defence is simulated if it acted on a gradient; one that acted
    on an update of unknown scale is not.
    """
    task = view.task
    recipe = Recipe(sends="gradient", batch_norm=view.assumed_recipe.batch_norm)
    if view.kind == "update" and view.knows(Fact.STEPS) and not (optimiser := view.steps.each.optimiser).linear:
        recipe = replace(recipe, optimiser=replace(optimiser.followed, lr=1.0), sends="update")
    defence = view.assumed_defence if view.kind == "gradient" else NoDefence()

    def gradient(x: Tensor, y: Tensor, params: Params, buffers: Params) -> Params:
        return local_update(task, params, recipe.schedule(x, y), recipe, defence, buffers=buffers)

    return gradient
