"""Local training, differentiable over many steps without a graph over the steps.

For a step θ' = θ − η·g(θ, x) and λ' = ∂L/∂θ', the adjoint is λ = λ' − η·Hλ' and ∂L/∂x = −η·∂⟨g, λ'⟩/∂x. Both
fall out of one directional derivative of ∇₍θ,x₎ loss along −ηλ' (Pearlmutter 1994, "Fast exact multiplication by
the Hessian"). So the backward pass keeps θ_t, or every k-th of them, and walks the steps from last to first. Momentum,
Adam and weight decay are a richer step: their own adjoint is elementwise, and autograd gives it.

Everything carries an axis of lanes (clients × restarts) in front. Objectives stay written for one client: under
`vmap`, `Sweep.vmap` folds the mapped axis into the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from seepage.engine.compiled import Compiler
from seepage.engine.lanes import InDims, over_lanes

__all__ = ["Program", "flatten", "slope", "sweep", "unflatten"]

Params = dict[str, Tensor]
Slots = dict[str, tuple[Tensor, ...]]

# For so few steps a graph over all of them fits, and plain double backward is faster. On a CPU, where the sweep saves
# memory and no time, it is chosen as long as the states of the parameters are no larger than this; the graph of a small
# convolutional network is then some 0.4 GB for each lane.
UNROLLED = 8
UNROLLED_ON_CPU = 150_000_000  # bytes


def flatten(params: Params) -> Tensor:
    """All parameters as one vector, in the order of the dictionary.

    Example:
        >>> flatten({"w": torch.ones(2, 2), "b": torch.zeros(1)})
        tensor([1., 1., 1., 1., 0.])
    """
    return torch.cat([p.reshape(-1) for p in params.values()])


def unflatten(vector: Tensor, like: Params) -> Params:
    """The inverse of `flatten`; one `split`, whose backward pass is one `cat`."""
    parts = vector.split([p.numel() for p in like.values()], dim=-1)
    return {
        name: part.reshape((*vector.shape[:-1], *p.shape)) for part, (name, p) in zip(parts, like.items(), strict=True)
    }


@dataclass(frozen=True, eq=False)
class Program:
    """One lane's local training. Parameters stay tensors by name: one vector of all would be a copy at every step.

    Args:
        loss: (θ, buffers, x, y) → (batch loss, buffers afterwards).
        gradient: (θ, buffers, x, y) → (gradient, buffers afterwards); the gradient of `loss`, or what a
            defence makes of it.
        init: a parameter → the optimiser's state of it.
        step: (t, parameter, gradient, state) → (parameter', state').
        batched: whether lanes run through `vmap`; else they run one after another.
        forward_mode: whether `gradient` is the plain gradient of `loss` and its layers have a forward-mode
            derivative, so that the cheaper directional derivative applies.
        linear: whether `step` is affine in the gradient, whose value its adjoint then does not need.
        keep_every: in the sweep, store every k-th state of the parameters and recompute the others; `None`
            sweeps only where a graph over all steps would be large, and keeps every state.
        compiler: compiles or traces the gradient and its adjoint; without one they run as they are written.
        name: under which the compiler keeps them; the same for programs that compute the same.
    """

    loss: Callable[[Params, Params, Tensor, Tensor], tuple[Tensor, Params]]
    gradient: Callable[[Params, Params, Tensor, Tensor], tuple[Params, Params]]
    init: Callable[[Tensor], tuple[Tensor, ...]]
    step: Callable[[Any, Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]
    batched: bool = True
    forward_mode: bool = True
    linear: bool = False
    keep_every: int | None = None
    compiler: Compiler | None = None
    name: Hashable = None

    @property
    def compiled(self) -> bool:
        """Whether operations are fused, which only a sweep makes use of."""
        return self.compiler is not None and self.compiler.backend != "none"

    def lanes(self, part: str, function: Callable[..., Any], in_dims: InDims = 0) -> Callable[..., Any]:
        """`function` for all lanes, compiled where there is a compiler; `part` is what it is called there."""
        whole = over_lanes(function, self.batched, in_dims)
        if self.compiler is None or not self.batched:
            return whole
        return partial(self.compiler, (self.name, part, repr(in_dims)), whole)

    def clock(self, t: int, theta: Params) -> int | Tensor:
        """Step `t` as `step` gets it; as a tensor where there is a compiler, for which a number is a constant."""
        if self.compiler is None:
            return t
        like = next(iter(theta.values()))
        return torch.full((), t, dtype=like.dtype, device=like.device)

    def slots(self, theta: Params) -> Slots:
        """The optimiser's state before the first step."""
        return {name: self.init(p) for name, p in theta.items()}

    def stepped(self, t: Any, theta: Params, gradient: Params, slots: Slots) -> tuple[Params, Slots]:
        """Every parameter and its state after step `t`."""
        after = {name: self.step(t, p, gradient[name], slots[name]) for name, p in theta.items()}
        return {name: p for name, (p, _) in after.items()}, {name: slot for name, (_, slot) in after.items()}

    def advance_one(
        self, t: Any, theta: Params, slots: Slots, buffers: Params, x: Tensor, y: Tensor
    ) -> tuple[Params, Slots, Params]:
        """Step `t` for one lane."""
        gradient, buffers = self.gradient(theta, buffers, x, y)
        return *self.stepped(t, theta, gradient, slots), buffers

    def advance(
        self, t: int, theta: Params, slots: Slots, buffers: Params, x: Tensor, y: Tensor
    ) -> tuple[Params, Slots, Params]:
        """Step `t` for all lanes."""
        of_all = self.lanes("advance", self.advance_one, (None, 0, 0, 0, 0, 0))
        return of_all(self.clock(t, theta), theta, slots, buffers, x, y)  # type: ignore[no-any-return]

    def pull(
        self, t: int, theta: Params, slots: Slots, buffers: Params, x: Tensor, y: Tensor, out: tuple[Params, Slots]
    ) -> tuple[Params, Slots, Tensor, Tensor | None]:
        """Adjoint of step `t` for all lanes: from cotangents after it to those before it, of `x` and of `y`."""
        soft = y.is_floating_point()

        def forward_over_reverse(theta: Params, buffers: Params, x: Tensor, y: Tensor, along: Params) -> Any:
            arguments = (0, 2, 3) if soft else (0, 2)
            both = grad(lambda *a: self.loss(*a)[0], argnums=arguments)
            return jvp(lambda theta: both(theta, buffers, x, y), (theta,), (along,))[1]

        def reverse_over_reverse(theta: Params, buffers: Params, x: Tensor, y: Tensor, along: Params) -> Any:
            if soft:
                return vjp(lambda theta, x, y: self.gradient(theta, buffers, x, y)[0], theta, x, y)[1](along)
            return vjp(lambda theta, x: self.gradient(theta, buffers, x, y)[0], theta, x)[1](along)

        through = forward_over_reverse if self.forward_mode else reverse_over_reverse

        def one(
            t: Any, theta: Params, slots: Slots, buffers: Params, x: Tensor, y: Tensor, out: tuple[Params, Slots]
        ) -> Any:
            gradient = _zeros_like(theta) if self.linear else self.gradient(theta, buffers, x, y)[0]
            back = vjp(lambda *before: self.stepped(t, *before), theta, gradient, slots)[1]
            direct, along, slots_bar = back(out)
            bars = through(theta, buffers, x, y, along)
            return {name: bar + bars[0][name] for name, bar in direct.items()}, slots_bar, *bars[1:]

        of_all = self.lanes("pull", one, (None, 0, 0, 0, 0, 0, 0))
        bar, slots_bar, x_bar, *y_bar = of_all(self.clock(t, theta), theta, slots, buffers, x, y, out)
        return bar, slots_bar, x_bar, y_bar[0] if soft else None


def _zeros_like(tree: Params) -> Params:
    return {name: torch.zeros_like(tensor) for name, tensor in tree.items()}


@dataclass(eq=False)
class _Tape:
    """What the forward pass leaves for the backward pass: the state before step 0, k, 2k and so on."""

    kept: list[tuple[Params, Slots, Params]] = field(default_factory=list)


@dataclass(frozen=True)
class _Names:
    """Of the tensors that a program is given: parameters, buffers, then as many batches of x as of y."""

    params: tuple[str, ...]
    buffers: tuple[str, ...]

    def split(self, tensors: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any], list[Any], list[Any]]:
        """The tensors under their names."""
        first, second = len(self.params), len(self.params) + len(self.buffers)
        batches = list(tensors[second:])
        half = len(batches) // 2
        theta = dict(zip(self.params, tensors[:first], strict=True))
        buffers = dict(zip(self.buffers, tensors[first:second], strict=True))
        return theta, buffers, batches[:half], batches[half:]


def _train(program: Program, names: _Names, tensors: Sequence[Tensor], tape: _Tape | None) -> tuple[Tensor, ...]:
    theta, buffers, xs, ys = names.split(tensors)
    slots = program.slots(theta)
    for t, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if tape is not None and t % (program.keep_every or 1) == 0:
            tape.kept.append((theta, slots, buffers))
        theta, slots, buffers = program.advance(t, theta, slots, buffers, x, y)
    return *theta.values(), *buffers.values()


class Sweep(torch.autograd.Function):
    """Parameters and buffers after all steps; every tensor has its lanes in front."""

    @staticmethod
    def forward(program: Program, names: _Names, tape: _Tape, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Outputs must not be inputs, which untouched buffers would be.
        return tuple(t.clone() for t in _train(program, names, tensors, tape))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.program, ctx.names, ctx.tape, *tensors = inputs
        ctx.mark_non_differentiable(*output[len(ctx.names.params) :])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        program: Program = ctx.program
        tape: _Tape = ctx.tape
        theta, buffers, xs, ys = ctx.names.split(ctx.saved_tensors)
        x_bars: list[Tensor | None] = [None] * len(xs)
        y_bars: list[Tensor | None] = [None] * len(ys)
        bars: list[Tensor | None] = [None] * len(theta)
        given = dict(zip(theta, cotangents[: len(theta)], strict=True))
        if any(bar is not None for bar in given.values()):
            bar = {name: torch.zeros_like(theta[name]) if b is None else b for name, b in given.items()}
            slots_bar = {name: tuple(map(torch.zeros_like, slot)) for name, slot in program.slots(theta).items()}
            every = program.keep_every or 1
            for segment in reversed(range(len(tape.kept))):
                first = segment * every
                states = [tape.kept[segment]]
                for t in range(first, min(first + every, len(xs)) - 1):
                    states.append(program.advance(t, *states[-1], xs[t], ys[t]))
                while states:
                    t = first + len(states) - 1
                    bar, slots_bar, x_bars[t], y_bars[t] = program.pull(
                        t, *states.pop(), xs[t], ys[t], (bar, slots_bar)
                    )
            bars = list(bar.values())
        return None, None, None, *bars, *[None] * len(buffers), *x_bars, *y_bars

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: Program, names: _Names, tape: _Tape, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        def fold(tensor: Tensor, dim: int | None) -> Tensor:
            mapped = (
                tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            )  # (mapped, lanes, …)
            return mapped.flatten(0, 1)

        folded = [fold(tensor, dim) for tensor, dim in zip(tensors, in_dims[3:], strict=True)]
        out = Sweep.apply(program, names, _Tape(), *folded)  # type: ignore[no-untyped-call]
        return tuple(o.unflatten(0, (info.batch_size, -1)) for o in out), (0,) * len(out)


class Slope(torch.autograd.Function):
    """The gradient of one batch and the buffers afterwards; every tensor has its lanes in front, or is shared by all.

    The derivative with respect to the batch is one directional derivative of ∇ₓ loss, so that nothing but the arguments
    is kept between the two passes, and each of them can be compiled.
    """

    @staticmethod
    def forward(program: Program, names: _Names, *tensors: Tensor) -> tuple[Tensor, ...]:
        (theta, buffers, (x,), (y,)), in_dims = _shared_apart(tensors, names)
        gradient, after = program.lanes("gradient", program.gradient, in_dims)(theta, buffers, x, y)
        return *gradient.values(), *(b.clone() for b in after.values())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.program, ctx.names, *tensors = inputs
        ctx.mark_non_differentiable(*output[len(ctx.names.params) :])
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        program: Program = ctx.program
        (theta, buffers, (x,), (y,)), in_dims = _shared_apart(ctx.saved_tensors, ctx.names)
        along = dict(zip(theta, cotangents, strict=False))
        wanted = (2, 3) if y.is_floating_point() else (2,)

        def across(theta: Params, buffers: Params, x: Tensor, y: Tensor, along: Params) -> Any:
            slope = grad(lambda *a: program.loss(*a)[0], argnums=wanted)
            return jvp(lambda theta: slope(theta, buffers, x, y), (theta,), (along,))[1]

        bars = program.lanes("across", across, (*in_dims, 0))(theta, buffers, x, y, along)
        return None, None, *[None] * (len(theta) + len(buffers)), *bars, *[None] * (2 - len(bars))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: Program, names: _Names, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        def fold(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return tensor if len(tensor) == 1 else tensor.repeat(info.batch_size, *[1] * (tensor.dim() - 1))
            return tensor.movedim(dim, 0).flatten(0, 1)

        folded = [fold(tensor, dim) for tensor, dim in zip(tensors, in_dims[2:], strict=True)]
        out = Slope.apply(program, names, *folded)  # type: ignore[no-untyped-call]
        return tuple(o.unflatten(0, (info.batch_size, -1)) for o in out), (0,) * len(out)


def _shared_apart(tensors: Sequence[Tensor], names: _Names) -> tuple[Any, tuple[Any, ...]]:
    """The arguments of a program, and which of them count lanes; what all share loses its axis of one."""
    lanes = max(len(tensor) for tensor in tensors)
    shared = [lanes > 1 and len(tensor) == 1 for tensor in tensors]
    parts = names.split([t[0] if s else t for t, s in zip(tensors, shared, strict=True)])
    theta, buffers, (x,), (y,) = names.split([None if s else 0 for s in shared])
    return parts, (theta, buffers, x, y)


def slope(program: Program, theta: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Params, Params]:
    """The gradient of one batch, and the buffers afterwards, for one lane; differentiable in `x` and in a soft `y`."""
    names = _Names(tuple(theta), tuple(buffers))
    tensors = [tensor[None] for tensor in (*theta.values(), *buffers.values(), x, y)]
    out = [o[0] for o in Slope.apply(program, names, *tensors)]  # type: ignore[no-untyped-call]
    return dict(zip(theta, out, strict=False)), dict(zip(buffers, out[len(theta) :], strict=True))


def sweep(
    program: Program, theta: Params, buffers: Params, xs: Sequence[Tensor], ys: Sequence[Tensor]
) -> tuple[Params, Params]:
    """Parameters and buffers after training on the batches in order, for one lane.

    Differentiable in `theta`, in every batch of `xs`, and in those of `ys` that are floating point; buffers are
    handed on without a gradient (running statistics never act on training: in train mode they are not read, in
    eval mode they do not change).
    """
    states = len(xs) * sum(p.numel() * p.element_size() for p in theta.values())
    on_cpu = all(p.device.type == "cpu" for p in theta.values())
    small = len(xs) <= UNROLLED or (on_cpu and states <= UNROLLED_ON_CPU)
    few = program.keep_every is None and small and not program.compiled
    kept = torch.is_grad_enabled()  # not on the client itself, where there is nothing to keep
    if few if kept else program.compiler is None:  # without an axis of one lane, whose steps would be copied into it
        slots = program.slots(theta)
        for t, (x, y) in enumerate(zip(xs, ys, strict=True)):
            theta, slots, buffers = program.advance_one(t, theta, slots, buffers, x, y)
        return theta, buffers
    names = _Names(tuple(theta), tuple(buffers))
    lane = [tensor[None] for tensor in (*theta.values(), *buffers.values(), *xs, *ys)]
    if kept:
        out = Sweep.apply(program, names, _Tape(), *lane)  # type: ignore[no-untyped-call]
    else:
        out = _train(program, names, lane, None)
    ends = [o[0] for o in out]
    return dict(zip(theta, ends, strict=False)), dict(zip(buffers, ends[len(theta) :], strict=True))
