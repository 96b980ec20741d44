"""Local training: the client runs it, and the attacker simulates the client with the same code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from seepage.defences.base import Defence, NoDefence
from seepage.engine.compiled import Compiler
from seepage.engine.factors import linear_factors
from seepage.engine.precision import arithmetic
from seepage.engine.sweep import Program, flatten, slope, sweep, unflatten
from seepage.recipe import Recipe, Schedule
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = [
    "Answer",
    "answer",
    "answer_together",
    "better_together",
    "local_update",
    "trains_together",
    "updates_together",
]

NONE = NoDefence()
NUMBERS_AT_ONCE = 2**26  # parameters of all clients in one program: 256 MB, some times over

# (θ, buffers, x, y) → (loss or gradient of the batch, buffers afterwards)
BatchLoss = Callable[[Params, Params, Tensor, Tensor], tuple[Tensor, Params]]
BatchGradient = Callable[[Params, Params, Tensor, Tensor], tuple[Params, Params]]


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
    held = task.buffers if buffers is None else buffers
    defence = defence.at_client(task, recipe, params, held, examples, rng / "defence")
    orders = recipe.orders(len(examples), rng / "orders")
    schedule = recipe.schedule(examples.x, examples.y, orders)
    with torch.no_grad(), arithmetic("fp32"):
        update, after = _train(task, params, schedule, recipe, defence, rng, buffers, None)
    return Answer(update, after, len(examples), orders)


def answer_together(
    task: Task,
    params: Params,
    clients: Sequence[Examples],
    recipe: Recipe,
    rngs: Sequence[Stream],
    *,
    buffers: Params | None = None,
) -> list[Answer]:
    """As `answer` for each client without a defence, clients of one size in one program, as far as memory allows.

    Only the last digits differ: products of many matrices are added up in another order than that of one.

    Raises:
        ValueError: when the module cannot run for many clients at once, or draws random numbers as it trains.
    """
    if not trains_together(task):
        raise ValueError(
            "expected a module that batches over clients and draws no dropout masks, got another; "
            "let its clients train one by one"
        )
    orders = [recipe.orders(len(c), rng / "orders") for c, rng in zip(clients, rngs, strict=True)]
    schedules = [recipe.schedule(c.x, c.y, order) for c, order in zip(clients, orders, strict=True)]
    starts = [(params, task.buffers if buffers is None else buffers)] * len(clients)
    trained = updates_together(task, starts, schedules, recipe)
    return [Answer(u, held, len(c), o) for (u, held), c, o in zip(trained, clients, orders, strict=True)]


def updates_together(
    task: Task, starts: Sequence[tuple[Params, Params]], schedules: Sequence[Schedule], recipe: Recipe
) -> list[tuple[Params, Params]]:
    """As `local_update` for each client without a defence, and its buffers afterwards; nothing to differentiate.

    Args:
        task: one that `trains_together`.
        starts: parameters and buffers that each client begins with.
        schedules: the batches of each; those with batches of the same sizes train in one program.
        recipe: optimiser, and what is sent.
    """
    shapes = [tuple(len(x) for x in schedule.x) for schedule in schedules]
    alike = {shape: [i for i, other in enumerate(shapes) if other == shape] for shape in shapes}
    at_once = max(1, NUMBERS_AT_ONCE // sum(p.numel() for p in starts[0][0].values()))
    done: dict[int, tuple[Params, Params]] = {}
    for which in (same[i : i + at_once] for same in alike.values() for i in range(0, len(same), at_once)):
        xs = [torch.stack(step) for step in zip(*(schedules[i].x for i in which), strict=True)]
        ys = [torch.stack(step) for step in zip(*(schedules[i].y for i in which), strict=True)]
        params, buffers = ({n: torch.stack([starts[i][k][n] for i in which]) for n in starts[0][k]} for k in (0, 1))
        with torch.no_grad(), arithmetic("fp32"):
            trained = _train_together(task, params, xs, ys, recipe, buffers)
        for lane, i in enumerate(which):
            update, held = ({name: t[lane] for name, t in tree.items()} for tree in trained)
            done[i] = update, held
    return [done[i] for i in range(len(schedules))]


def trains_together(task: Task) -> bool:
    """Whether many clients can train in one program: the module batches, and draws no dropout masks."""
    return task.batched and not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in task.module.modules())


def better_together(task: Task, params: Params) -> bool:
    """Whether clients train in one program without being told to: on a GPU, where one alone leaves most of it idle."""
    return any(p.is_cuda for p in params.values()) and trains_together(task)


def _train_together(
    task: Task, params: Params, xs: Sequence[Tensor], ys: Sequence[Tensor], recipe: Recipe, buffers: Params
) -> tuple[Params, Params]:
    """As `_train` for clients without a defence, (clients, …) in every tensor, and nothing to differentiate later.

    That allows autograd outside of `vmap`, which keeps no graph of the backward pass as `grad` inside of it does.
    """

    def loss(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        out, after = task.forward(params, x, buffers=buffers, train=recipe.train)
        return task.mean_loss(out, y), after

    def gradient(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Params, Params]:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        with torch.enable_grad():
            losses, after = vmap(loss)(leaves, buffers, x, y)
            # No loss depends on another client.
            slopes = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        return dict(zip(params, slopes, strict=True)), {name: b.detach() for name, b in after.items()}

    theta, held = params, buffers
    if recipe.sends == "gradient":
        return gradient(theta, held, xs[0], ys[0])
    before, slots = theta, {name: recipe.optimiser.init(p) for name, p in theta.items()}
    for t, (x, y) in enumerate(zip(xs, ys, strict=True)):
        slopes, held = gradient(theta, held, x, y)
        stepped = {name: recipe.optimiser.step(t, p, slopes[name], slots[name]) for name, p in theta.items()}
        theta, slots = {n: p for n, (p, _) in stepped.items()}, {n: slot for n, (_, slot) in stepped.items()}
    return {name: p - theta[name] for name, p in before.items()}, held


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

    def loss(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        out, after = task.forward(params, x, buffers=buffers, train=recipe.train, rng=masks)
        return task.mean_loss(out, y), after

    plain = not (defence.per_example or defence.per_step)
    if plain:
        gradient = _gradient(loss)
    else:
        period = len(schedule) // recipe.epochs if defence.repeats else None
        scaled = _scaled_mean(task, params, defence)
        gradient = _defended_gradient(loss, defence, rng, period, scaled, _looks_at_rows_alone(task))
    program = Program(
        loss,
        gradient,
        recipe.optimiser.init,
        recipe.optimiser.step,
        batched=rng is None and task.batched,
        forward_mode=plain and task.forward_mode,
        linear=recipe.optimiser.linear,
        keep_every=keep_every,
        compiler=_compiler(task, params, compiled) if rng is None and task.batched else None,
        name=(recipe.train, recipe.optimiser, defence),
    )
    if recipe.sends != "gradient":
        end, after = sweep(program, params, buffers, schedule.x, schedule.y)
        update = {name: p - end[name] for name, p in params.items()}
    elif compiled and program.compiler is not None and program.forward_mode:
        update, after = slope(program, params, buffers, schedule.x[0], schedule.y[0])
    else:
        update, after = gradient(params, buffers, schedule.x[0], schedule.y[0])
    update = defence.on_update(update, rng and rng / "update")
    # An attacker's guess that the answer is one gradient has no weights in it.
    if defence.changes_weights and recipe.sends != "gradient":
        weights = {name: p - update[name] for name, p in params.items()}
        weights = defence.on_weights(weights, rng and rng / "weights")
        update = {name: p - weights[name] for name, p in params.items()}
    return update, after


def _gradient(loss: BatchLoss) -> BatchGradient:
    """What `torch.func.grad` gives; outside of its transformations by autograd itself, which wraps no tensors."""
    transformed = grad(loss, has_aux=True)

    def gradient(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Params, Params]:
        if torch._C._are_functorch_transforms_active():
            return transformed(params, buffers, x, y)  # type: ignore[no-any-return]
        # Whether the gradient is differentiated once more, which somebody must have asked for.
        inputs = (*params.values(), *buffers.values(), x, y)
        again = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        with torch.enable_grad():
            own = {name: p if again and p.requires_grad else p.detach().requires_grad_() for name, p in params.items()}
            value, after = loss(own, buffers, x, y)
            slopes = torch.autograd.grad(value, list(own.values()), create_graph=again, materialize_grads=True)
        return dict(zip(params, slopes, strict=True)), after if again else {n: b.detach() for n, b in after.items()}

    return gradient


def _compiler(task: Task, params: Params, compiled: bool) -> Compiler | None:
    if compiled:
        return task.compiler
    # On a CPU, what it saves does not pay for the second that it takes.
    return task.tracer if any(p.is_cuda for p in params.values()) else None


def _defended_gradient(
    loss: BatchLoss,
    defence: Defence,
    rng: Stream | None,
    period: int | None,
    scaled: BatchGradient | None,
    rows_alone: bool,
) -> BatchGradient:
    """The gradient of a batch as the defence lets the optimiser see it; after `period` steps its noise repeats.

    `scaled`, where it is possible, is the mean of the examples' scaled gradients without most of them. Where a batch's
    gradient is the mean of its examples', noise that does not depend on them is added to it as a mean, too.
    """
    count = 0
    plain = _gradient(loss)
    remembered: dict[int, Tensor] = {}  # noise that is added again in the next epoch

    def gradient(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Params, Params]:
        nonlocal count
        count = count % period + 1 if period else count + 1  # a client's noise differs from step to step
        step = None if rng is None else rng / "step" / count
        if scaled is not None:
            tensors, after = scaled(params, buffers, x, y)
            vector = flatten(tensors)
        elif step is not None and rows_alone and defence.only_adds_to_examples:
            tensors, after = plain(params, buffers, x, y)
            vector = flatten(tensors)
            noise = remembered[count] if count in remembered else _mean_noise(defence, step, len(x), vector)
            if period and period * noise.numel() <= NUMBERS_AT_ONCE:
                remembered[count] = noise
            vector = vector + noise
        elif defence.per_example:
            vector, after = _per_example(loss, defence, step, params, buffers, x, y), buffers
        else:
            tensors, after = plain(params, buffers, x, y)
            vector = flatten(tensors)
        return unflatten(defence.on_gradient(vector, step), params), after

    return gradient


def _mean_noise(defence: Defence, rng: Stream, examples: int, like: Tensor) -> Tensor:
    """What a defence that only adds adds to the mean of so many gradients."""
    total = torch.zeros_like(like)
    for i in range(examples):
        total += defence.on_example_gradient(torch.zeros_like(like), rng / i)
    return total / examples


# Layers in which no row looks at another.
ROW_BY_ROW = (
    nn.Sequential, nn.Flatten, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Softplus,
)  # fmt: skip


def _scaled_mean(task: Task, params: Params, defence: Defence) -> BatchGradient | None:
    """Each example's gradient scaled as the defence says, and their mean, without the gradients of linear layers.

    Goodfellow, 2015, "Efficient per-example gradient computations" (https://arxiv.org/abs/1510.01799): a row's part in
    a linear layer's gradient is δ aᵀ, whose norm is ‖δ‖·‖a‖. Such layers hold most of a network's parameters, and then
    cost as much as without a defence; of all other layers the gradient of every example is held.
    """
    if not _looks_at_rows_alone(task):
        return None
    if not defence.per_example or defence.example_scales({name: p.new_ones(1) for name, p in params.items()}) is None:
        return None

    def gradient(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Params, Params]:
        entered = linear_factors(task.net, {**buffers, **params}, x, lambda out: task.mean_loss(out, y) * len(x))
        factors = {f"{name}.weight".removeprefix("."): pair for name, pair in entered.items()}
        factors |= {f"{name}.bias".removeprefix("."): (a.new_ones(len(a), 1), d) for name, (a, d) in entered.items()}
        others = {name: p for name, p in params.items() if name not in factors}

        def one(x: Tensor, y: Tensor) -> Params:
            def loss(some: Params) -> Tensor:
                return task.mean_loss(task.forward({**params, **some}, x[None], buffers=buffers)[0], y[None])

            slopes: Params = grad(loss)(others)
            return slopes

        single = vmap(one)(x, y) if others else {}
        squares = {name: single[name].flatten(1).square().sum(1) for name in others}
        squares |= {name: a.square().sum(1) * d.square().sum(1) for name, (a, d) in factors.items() if name in params}
        scales = defence.example_scales({name: squares[name] for name in params})
        assert scales is not None

        def mean(name: str) -> Tensor:
            scale = scales[name][:, None] / len(x)
            if name in others:
                return (scale * single[name].flatten(1)).sum(0)
            a, d = factors[name]
            return (scale * d).T @ a

        return {name: mean(name).reshape(p.shape) for name, p in params.items()}, buffers

    return gradient


def _looks_at_rows_alone(task: Task) -> bool:
    """Whether the gradient of a batch is the mean of those of its examples, each alone."""
    layers = [layer for _, layer in task.module.named_modules(remove_duplicate=False)]
    once = len({id(layer) for layer in layers}) == len(layers)
    return once and not callable(task.loss) and all(type(layer) in ROW_BY_ROW for layer in layers)


def _per_example(
    loss: BatchLoss, defence: Defence, rng: Stream | None, params: Params, buffers: Params, x: Tensor, y: Tensor
) -> Tensor:
    def one(x: Tensor, y: Tensor) -> Tensor:
        return flatten(grad(loss, has_aux=True)(params, buffers, x[None], y[None])[0])

    vectors = vmap(one, randomness="different")(x, y)  # each example has dropout masks of its own
    rngs = [None if rng is None else rng / i for i in range(len(x))]
    return torch.stack([defence.on_example_gradient(v, r) for v, r in zip(vectors, rngs, strict=True)]).mean(0)
