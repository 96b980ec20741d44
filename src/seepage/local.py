"""Local training: the client runs it, and the attacker simulates the client with the same code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from seepage.defences.base import Defence, NoDefence
from seepage.engine.compiled import Compiler
from seepage.engine.precision import arithmetic
from seepage.engine.sweep import Program, flatten, slope, sweep, unflatten
from seepage.recipe import Recipe, Schedule
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = ["Answer", "answer", "local_update"]

NONE = NoDefence()

# (θ, buffers, x, y) → (loss or gradient of the batch, buffers afterwards)
BatchFunction = Callable[[Tensor, Params, Tensor, Tensor], tuple[Tensor, Params]]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client has after local training.

    Args:
        update: parameters before − after, or the gradient, as the defence lets it out.
        buffers: the module's buffers afterwards.
        examples: how many examples were trained on.
        orders: in which order each epoch visited them, (epochs, n); the client's own knowledge.
    """

    update: Params
    buffers: Params
    examples: int
    orders: Tensor | None = None


def local_update(
    task: Task,
    params: Params,
    schedule: Schedule,
    recipe: Recipe,
    defence: Defence = NONE,
    rng: Stream | None = None,
    *,
    buffers: Params | None = None,
    keep_every: int | None = None,
    compiled: bool = False,
) -> Params:
    """The update (parameters before − after) or gradient that training on `schedule` gives.

    Differentiable with respect to `params` and every batch of `schedule`; to be mapped over clients with `vmap`.

    Args:
        task: module and loss.
        params: the global model's parameters.
        schedule: the batches in order.
        recipe: optimiser, and what is sent.
        defence: what the client does differently.
        rng: the client's stream for dropout and noise; without it (the attacker) both are left out.
        buffers: the module's buffers before training; the task's own when absent.
        keep_every: keep every k-th state of the parameters for the backward pass, to save memory; `None` lets the
            number of steps decide.
        compiled: compile the gradient of a step and its adjoint, which takes a minute and pays for many iterations on a
            GPU; differentiable with respect to the batches alone.

    Example:
        >>> from torch import nn
        >>> from seepage.recipe import SGD
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(2, 1, bias=False), DataSpec((2,)))
        >>> recipe = Recipe(SGD(lr=0.1), epochs=3)
        >>> x = torch.ones(4, 2, requires_grad=True)
        >>> update = local_update(task, {"weight": torch.zeros(1, 2)}, recipe.schedule(x, torch.ones(4)), recipe)
        >>> update["weight"].detach()
        tensor([[-0.3920, -0.3920]])
    """
    return _train(task, params, schedule, recipe, defence, rng, buffers, keep_every, compiled)[0]


def answer(
    task: Task,
    params: Params,
    examples: Examples,
    recipe: Recipe,
    defence: Defence,
    rng: Stream,
    *,
    buffers: Params | None = None,
) -> Answer:
    """A whole client: defend the data, draw the batch orders, train, defend what is sent.

    Raises:
        ValueError: when the defence works on weights and the client sends none.
    """
    if defence.changes_weights and recipe.sends == "gradient":
        raise ValueError(
            f"the defence {defence.name!r} changes the weights that a client sends, and this one sends a gradient: "
            "expected sends = 'weights' or 'update' in the recipe, or a defence of gradients"
        )
    examples = defence.on_data(examples, rng / "data")
    orders = recipe.orders(len(examples), rng / "orders")
    schedule = recipe.schedule(examples.x, examples.y, orders)
    with torch.no_grad(), arithmetic("fp32"):
        update, after = _train(task, params, schedule, recipe, defence, rng, buffers, None)
    return Answer(update, after, len(examples), orders)


def _train(
    task: Task,
    params: Params,
    schedule: Schedule,
    recipe: Recipe,
    defence: Defence,
    rng: Stream | None,
    buffers: Params | None,
    keep_every: int | None,
    compiled: bool = False,
) -> tuple[Params, Params]:
    defence = defence.fitted(params)
    masks = None if rng is None else (rng / "dropout").generator()
    buffers = task.buffers if buffers is None else buffers

    def batch_loss(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        out, after = task.forward(params, x, buffers=buffers, train=recipe.train, rng=masks)
        return task.mean_loss(out, y), after

    def loss(theta: Tensor, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        return batch_loss(unflatten(theta, params), buffers, x, y)

    gradient = _defended_gradient(loss, defence, rng, len(schedule) // recipe.epochs if defence.repeats else None)
    start = flatten(params)
    plain = not (defence.per_example or defence.per_step)
    program = Program(
        loss,
        gradient,
        recipe.optimiser.init,
        recipe.optimiser.step,
        batched=rng is None and task.batched,
        forward_mode=plain and task.forward_mode,
        linear=recipe.optimiser.linear,
        keep_every=keep_every,
        compiler=_compiler(task, start, compiled) if rng is None and task.batched else None,
        name=(recipe.train, recipe.optimiser, defence),
    )
    if recipe.sends != "gradient":
        end, after = sweep(program, start, buffers, schedule.x, schedule.y)
        vector = start - end
        update = unflatten(vector, params)
    elif compiled and program.compiler is not None and program.forward_mode:
        vector, after = slope(program, start, buffers, schedule.x[0], schedule.y[0])
        update = unflatten(vector, params)
    elif plain:  # tensor by tensor: a vector of all, and its derivative, would be copies
        update, after = grad(batch_loss, has_aux=True)(params, buffers, schedule.x[0], schedule.y[0])
    else:
        vector, after = gradient(start, buffers, schedule.x[0], schedule.y[0])
        update = unflatten(vector, params)
    update = defence.on_update(update, rng and rng / "update")
    # An attacker's guess that the answer is one gradient has no weights in it.
    if defence.changes_weights and recipe.sends != "gradient":
        weights = {name: p - update[name] for name, p in params.items()}
        weights = defence.on_weights(weights, rng and rng / "weights")
        update = {name: p - weights[name] for name, p in params.items()}
    return update, after


def _compiler(task: Task, theta: Tensor, compiled: bool) -> Compiler | None:
    if compiled:
        return task.compiler
    return task.tracer if theta.is_cuda else None  # on a CPU, what it saves does not pay for the second that it takes


def _defended_gradient(
    loss: BatchFunction, defence: Defence, rng: Stream | None, period: int | None = None
) -> BatchFunction:
    """The gradient of a batch as the defence lets the optimiser see it; after `period` steps its noise repeats."""
    count = 0

    def gradient(theta: Tensor, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        nonlocal count
        count = count % period + 1 if period else count + 1  # a client's noise differs from step to step
        step = None if rng is None else rng / "step" / count
        if defence.per_example:
            vector, after = _per_example(loss, defence, step, theta, buffers, x, y)
        else:
            vector, after = grad(loss, has_aux=True)(theta, buffers, x, y)
        return defence.on_gradient(vector, step), after

    return gradient


def _per_example(
    loss: BatchFunction, defence: Defence, rng: Stream | None, theta: Tensor, buffers: Params, x: Tensor, y: Tensor
) -> tuple[Tensor, Params]:
    def one(x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        return grad(loss, has_aux=True)(theta, buffers, x[None], y[None])  # type: ignore[no-any-return]

    vectors, _ = vmap(one, randomness="different")(x, y)  # each example has dropout masks of its own
    rngs = [None if rng is None else rng / i for i in range(len(x))]
    defended = torch.stack([defence.on_example_gradient(v, r) for v, r in zip(vectors, rngs, strict=True)])
    return defended.mean(0), buffers
