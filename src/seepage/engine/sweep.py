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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from seepage.engine.compiled import Compiler
from seepage.engine.lanes import InDims, over_lanes

__all__ = ["Program", "flatten", "slope", "sweep", "unflatten"]

Params = dict[str, Tensor]
Slots = tuple[Tensor, ...]

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
    """One lane's local training as functions of flat vectors.

    Args:
        loss: (θ, buffers, x, y) → (batch loss, buffers afterwards).
        gradient: (θ, buffers, x, y) → (gradient, buffers afterwards); the gradient of `loss`, or what a
            defence makes of it.
        init: θ → the optimiser's state.
        step: (t, θ, gradient, state) → (θ', state').
        batched: whether lanes run through `vmap`; else they run one after another.
        forward_mode: whether `gradient` is the plain gradient of `loss` and its layers have a forward-mode
            derivative, so that the cheaper directional derivative applies.
        linear: whether `step` is affine in the gradient, whose value its adjoint then does not need.
        keep_every: in the sweep, store every k-th state of the parameters and recompute the others; `None`
            sweeps only where a graph over all steps would be large, and keeps every state.
        compiler: compiles or traces the gradient and its adjoint; without one they run as they are written.
        name: under which the compiler keeps them; the same for programs that compute the same.
    """

    loss: Callable[[Tensor, Params, Tensor, Tensor], tuple[Tensor, Params]]
    gradient: Callable[[Tensor, Params, Tensor, Tensor], tuple[Tensor, Params]]
    init: Callable[[Tensor], Slots]
    step: Callable[[Any, Tensor, Tensor, Slots], tuple[Tensor, Slots]]
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

    def clock(self, t: int, theta: Tensor) -> int | Tensor:
        """Step `t` as `step` gets it; as a tensor where there is a compiler, for which a number is a constant."""
        return t if self.compiler is None else torch.full((), t, dtype=theta.dtype, device=theta.device)

    def advance(
        self, t: int, theta: Tensor, slots: Slots, buffers: Params, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Slots, Params]:
        """Step `t` for all lanes."""

        def one(t: Any, theta: Tensor, slots: Slots, buffers: Params, x: Tensor, y: Tensor) -> Any:
            gradient, buffers = self.gradient(theta, buffers, x, y)
            return *self.step(t, theta, gradient, slots), buffers

        of_all = self.lanes("advance", one, (None, 0, 0, 0, 0, 0))
        return of_all(self.clock(t, theta), theta, slots, buffers, x, y)  # type: ignore[no-any-return]

    def pull(
        self, t: int, theta: Tensor, slots: Slots, buffers: Params, x: Tensor, y: Tensor, out: tuple[Tensor, Slots]
    ) -> tuple[Tensor, Slots, Tensor, Tensor | None]:
        """Adjoint of step `t` for all lanes: from cotangents after it to those before it, of `x` and of `y`."""
        soft = y.is_floating_point()

        def forward_over_reverse(theta: Tensor, buffers: Params, x: Tensor, y: Tensor, along: Tensor) -> Any:
            arguments = (0, 2, 3) if soft else (0, 2)
            both = grad(lambda *a: self.loss(*a)[0], argnums=arguments)
            return jvp(lambda theta: both(theta, buffers, x, y), (theta,), (along,))[1]

        def reverse_over_reverse(theta: Tensor, buffers: Params, x: Tensor, y: Tensor, along: Tensor) -> Any:
            if soft:
                return vjp(lambda theta, x, y: self.gradient(theta, buffers, x, y)[0], theta, x, y)[1](along)
            return vjp(lambda theta, x: self.gradient(theta, buffers, x, y)[0], theta, x)[1](along)

        through = forward_over_reverse if self.forward_mode else reverse_over_reverse

        def one(
            t: Any, theta: Tensor, slots: Slots, buffers: Params, x: Tensor, y: Tensor, out: tuple[Tensor, Slots]
        ) -> Any:
            gradient = torch.zeros_like(theta) if self.linear else self.gradient(theta, buffers, x, y)[0]
            back = vjp(lambda theta, gradient, slots: self.step(t, theta, gradient, slots), theta, gradient, slots)[1]
            direct, along, slots_bar = back(out)
            bars = through(theta, buffers, x, y, along)
            return direct + bars[0], slots_bar, *bars[1:]

        of_all = self.lanes("pull", one, (None, 0, 0, 0, 0, 0, 0))
        bar, slots_bar, x_bar, *y_bar = of_all(self.clock(t, theta), theta, slots, buffers, x, y, out)
        return bar, slots_bar, x_bar, y_bar[0] if soft else None


@dataclass(eq=False)
class _Tape:
    """What the forward pass leaves for the backward pass: the state before step 0, k, 2k and so on."""

    kept: list[tuple[Tensor, Slots, Params]] = field(default_factory=list)


def _split(tensors: Sequence[Tensor], names: tuple[str, ...]) -> tuple[Tensor, Params, list[Tensor], list[Tensor]]:
    theta, rest = tensors[0], list(tensors[1:])
    buffers = dict(zip(names, rest[: len(names)], strict=True))
    batches = rest[len(names) :]
    return theta, buffers, batches[: len(batches) // 2], batches[len(batches) // 2 :]


def _train(program: Program, names: tuple[str, ...], tensors: Sequence[Tensor], tape: _Tape | None) -> Slots:
    theta, buffers, xs, ys = _split(tensors, names)
    slots = program.init(theta)
    for t, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if tape is not None and t % (program.keep_every or 1) == 0:
            tape.kept.append((theta, slots, buffers))
        theta, slots, buffers = program.advance(t, theta, slots, buffers, x, y)
    return theta, *buffers.values()


class Sweep(torch.autograd.Function):
    """Parameters and buffers after all steps; every tensor has its lanes in front."""

    @staticmethod
    def forward(program: Program, names: tuple[str, ...], tape: _Tape, *tensors: Tensor) -> Slots:
        # Outputs must not be inputs, which untouched buffers would be.
        return tuple(t.clone() for t in _train(program, names, tensors, tape))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Slots) -> None:
        ctx.program, ctx.names, ctx.tape, *tensors = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        program: Program = ctx.program
        tape: _Tape = ctx.tape
        theta, buffers, xs, ys = _split(ctx.saved_tensors, ctx.names)
        x_bars: list[Tensor | None] = [None] * len(xs)
        y_bars: list[Tensor | None] = [None] * len(ys)
        bar = cotangents[0]
        if bar is not None:
            slots_bar = tuple(torch.zeros_like(slot) for slot in program.init(theta))
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
        return None, None, None, bar, *[None] * len(buffers), *x_bars, *y_bars

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: Program, names: tuple[str, ...], tape: _Tape, *tensors: Tensor
    ) -> tuple[Slots, tuple[int, ...]]:
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
    def forward(program: Program, names: tuple[str, ...], *tensors: Tensor) -> Slots:
        (theta, buffers, (x,), (y,)), in_dims = _shared_apart(tensors, names)
        gradient, after = program.lanes("gradient", program.gradient, in_dims)(theta, buffers, x, y)
        return gradient, *(b.clone() for b in after.values())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Slots) -> None:
        ctx.program, ctx.names, *tensors = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, along: Tensor, *_: Tensor) -> tuple[Any, ...]:
        program: Program = ctx.program
        (theta, buffers, (x,), (y,)), in_dims = _shared_apart(ctx.saved_tensors, ctx.names)
        wanted = (2, 3) if y.is_floating_point() else (2,)

        def across(theta: Tensor, buffers: Params, x: Tensor, y: Tensor, along: Tensor) -> Any:
            slope = grad(lambda *a: program.loss(*a)[0], argnums=wanted)
            return jvp(lambda theta: slope(theta, buffers, x, y), (theta,), (along,))[1]

        bars = program.lanes("across", across, (*in_dims, 0))(theta, buffers, x, y, along)
        return None, None, None, *[None] * len(buffers), *bars, *[None] * (2 - len(bars))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: Program, names: tuple[str, ...], *tensors: Tensor
    ) -> tuple[Slots, tuple[int, ...]]:
        def fold(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return tensor if len(tensor) == 1 else tensor.repeat(info.batch_size, *[1] * (tensor.dim() - 1))
            return tensor.movedim(dim, 0).flatten(0, 1)

        folded = [fold(tensor, dim) for tensor, dim in zip(tensors, in_dims[2:], strict=True)]
        out = Slope.apply(program, names, *folded)  # type: ignore[no-untyped-call]
        return tuple(o.unflatten(0, (info.batch_size, -1)) for o in out), (0,) * len(out)


def _shared_apart(tensors: Sequence[Tensor], names: tuple[str, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The arguments of a program, and which of them count lanes; what all share loses its axis of one."""
    lanes = max(len(tensor) for tensor in tensors)
    shared = [lanes > 1 and len(tensor) == 1 for tensor in tensors]
    parts = _split([t[0] if s else t for t, s in zip(tensors, shared, strict=True)], names)
    axes = [None if s else 0 for s in shared]
    return parts, (axes[0], dict(zip(names, axes[1:-2], strict=True)), axes[-2], axes[-1])


def slope(program: Program, theta: Tensor, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
    """The gradient of one batch, and the buffers afterwards, for one lane; differentiable in `x` and in a soft `y`."""
    names = tuple(buffers)
    tensors = [tensor[None] for tensor in (theta, *buffers.values(), x, y)]
    out = Slope.apply(program, names, *tensors)  # type: ignore[no-untyped-call]
    return out[0][0], dict(zip(names, [o[0] for o in out[1:]], strict=True))


def sweep(
    program: Program, theta: Tensor, buffers: Params, xs: Sequence[Tensor], ys: Sequence[Tensor]
) -> tuple[Tensor, Params]:
    """Parameters (one flat vector) and buffers after training on the batches in order, for one lane.

    Differentiable in `theta`, in every batch of `xs`, and in those of `ys` that are floating point; buffers are
    handed on without a gradient (running statistics never act on training: in train mode they are not read, in
    eval mode they do not change).
    """
    names = tuple(buffers)
    tensors = [theta, *buffers.values(), *xs, *ys]
    lane = [tensor[None] for tensor in tensors]
    states = len(xs) * theta.numel() * theta.element_size()
    small = len(xs) <= UNROLLED or (theta.device.type == "cpu" and states <= UNROLLED_ON_CPU)
    few = program.keep_every is None and small and not program.compiled
    if not torch.is_grad_enabled():  # as on the client itself, there is nothing to keep
        out = _train(program, names, lane, None)
    elif few:
        out = _train(
            replace(program, compiler=None), names, lane, None
        )  # traced programs have no gradient of their own
    else:
        out = Sweep.apply(program, names, _Tape(), *lane)  # type: ignore[no-untyped-call]
    return out[0][0], dict(zip(names, [o[0] for o in out[1:]], strict=True))
