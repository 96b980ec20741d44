"""Optimisers for many lanes at once: pure functions of tensors, with the lane axis first everywhere.

An optimiser is a pair of functions. `init` makes the state; `update` takes the point, its value and gradient, and
returns the next point and state. Counters and learning-rate factors are tensors on the device of the point and
nothing is read back, so a whole iteration can be captured in a CUDA graph. Wrappers compose:
`drops(signed(adam(0.1)), steps=4800)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from seepage.engine.lanes import Tree
from seepage.engine.precision import arithmetic

__all__ = [
    "Optimiser",
    "Scale",
    "Schedule",
    "adam",
    "cosine",
    "drops",
    "exponential",
    "interrupted",
    "lbfgs",
    "sgd",
    "signed",
]

Scale: TypeAlias = Tensor | float
"""What the learning rate is multiplied with: a number, or a scalar tensor on the device of the point."""


class Optimiser(Protocol):
    """What `minimise` asks of an optimiser.

    Trees are tensors, or dicts, tuples or named tuples of tensors, each with the lane axis first. Lanes never
    see each other. States are trees of tensors whose shapes, dtypes and devices never change.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]])  # two lanes
        >>> def step(optimiser: Optimiser) -> Tensor:
        ...     return optimiser.update(x, (x**2).sum(1), 2 * x, optimiser.init(x))[0]
        >>> step(sgd(0.5))
        tensor([[0.],
                [0.]])
    """

    def init(self, x: Tree) -> Any:
        """The state before the first update."""

    def update(self, x: Tree, value: Tensor, grad: Tree, state: Any, scale: Scale = 1.0) -> tuple[Tree, Any]:
        """The next point and state.

        Args:
            x: the point, (lanes, ...).
            value: the objective there, (lanes,).
            grad: the gradient there, a tree like `x`.
            state: from `init` or the last `update`.
            scale: multiplies the learning rate; this is how schedules reach through wrappers.
        """


class AdamState(NamedTuple):
    """What Adam remembers."""

    updates: Tensor  # (), made so far
    mean: Tree
    square: Tree


@final
@dataclass(frozen=True)
class adam:
    """Kingma and Ba, 2015, Adam: a method for stochastic optimization (https://arxiv.org/abs/1412.6980).

    Args:
        lr: learning rate, alpha in algorithm 1.
        betas: decay of the two running means, beta_1 and beta_2.
        eps: added to the root of the second mean, as in `torch.optim.Adam`.

    Example:
        >>> x = torch.tensor([[1.0], [-3.0]])
        >>> adam(0.1).update(x, (x**2).sum(1), 2 * x, adam(0.1).init(x))[0]
        tensor([[ 0.9000],
                [-2.9000]])
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check("lr", self.lr, self.lr > 0, "a number above 0")
        _check(
            "betas", self.betas, len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "two numbers in [0, 1)"
        )
        _check("eps", self.eps, self.eps >= 0, "a number of at least 0")

    def init(self, x: Tree) -> AdamState:
        """The state before the first update."""
        return AdamState(_clock(x), pytree.tree_map(torch.zeros_like, x), pytree.tree_map(torch.zeros_like, x))

    def update(
        self, x: Tree, value: Tensor, grad: Tree, state: AdamState, scale: Scale = 1.0
    ) -> tuple[Tree, AdamState]:
        """The next point and state."""
        beta_1, beta_2 = self.betas
        count = state.updates + 1
        mean = pytree.tree_map(lambda m, g: torch.lerp(m, g, 1 - beta_1), state.mean, grad)
        square = pytree.tree_map(lambda v, g: torch.addcmul(v * beta_2, g, g, value=1 - beta_2), state.square, grad)
        rate = self.lr * scale / (1 - beta_1**count)
        root = torch.sqrt(1 - beta_2**count)
        x = pytree.tree_map(lambda p, m, v: p - rate * m / (v.sqrt() / root + self.eps), x, mean, square)
        return x, AdamState(count, mean, square)


class SgdState(NamedTuple):
    """What gradient descent with momentum remembers."""

    velocity: Tree


@final
@dataclass(frozen=True)
class sgd:
    """Gradient descent, with heavy-ball momentum as in `torch.optim.SGD`.

    Args:
        lr: learning rate.
        momentum: how much of the last velocity is kept.

    Example:
        >>> x = torch.tensor([[1.0], [-3.0]])
        >>> sgd(0.25).update(x, (x**2).sum(1), 2 * x, sgd(0.25).init(x))[0]
        tensor([[ 0.5000],
                [-1.5000]])
    """

    lr: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check("lr", self.lr, self.lr > 0, "a number above 0")
        _check("momentum", self.momentum, 0 <= self.momentum < 1, "a number in [0, 1)")

    def init(self, x: Tree) -> SgdState:
        """The state before the first update."""
        return SgdState(pytree.tree_map(torch.zeros_like, x))

    def update(self, x: Tree, value: Tensor, grad: Tree, state: SgdState, scale: Scale = 1.0) -> tuple[Tree, SgdState]:
        """The next point and state."""
        velocity = pytree.tree_map(lambda v, g: self.momentum * v + g, state.velocity, grad)
        rate = self.lr * scale
        return pytree.tree_map(lambda p, v: p - rate * v, x, velocity), SgdState(velocity)


@final
@dataclass(frozen=True)
class signed:
    """Hands the sign of the gradient to the inner optimiser, as Geiping et al., 2020, do with Adam.

    Args:
        inner: the optimiser that sees the signs.

    Example:
        >>> x = torch.tensor([[1.0], [-3.0]])
        >>> step = signed(sgd(0.25))
        >>> step.update(x, (x**2).sum(1), 2 * x, step.init(x))[0]
        tensor([[ 0.7500],
                [-2.7500]])
    """

    inner: Optimiser

    def init(self, x: Tree) -> Any:
        """The state of the inner optimiser."""
        return self.inner.init(x)

    def update(self, x: Tree, value: Tensor, grad: Tree, state: Any, scale: Scale = 1.0) -> tuple[Tree, Any]:
        """The next point and state."""
        return self.inner.update(x, value, pytree.tree_map(torch.sign, grad), state, scale)


class ScheduleState(NamedTuple):
    """What a schedule remembers: how many updates were made, and what the inner optimiser remembers."""

    updates: Tensor  # (), made so far
    inner: Any


class Schedule(ABC):
    """An optimiser whose learning rate changes with the number of updates.

    Example:
        >>> x, slow = torch.tensor([[8.0]]), exponential(sgd(1.0), rate=0.5, every=1)
        >>> state = slow.init(x)
        >>> for _ in range(3):
        ...     x, state = slow.update(x, x[:, 0], torch.ones(1, 1), state)
        >>> x  # 8 - 1 - 1/2 - 1/4
        tensor([[6.2500]])
    """

    inner: Optimiser

    @abstractmethod
    def factor_at(self, count: Tensor) -> Tensor:
        """What the learning rate is multiplied with after `count` updates."""

    def init(self, x: Tree) -> ScheduleState:
        """The state before the first update."""
        return ScheduleState(_clock(x), self.inner.init(x))

    def update(
        self, x: Tree, value: Tensor, grad: Tree, state: ScheduleState, scale: Scale = 1.0
    ) -> tuple[Tree, ScheduleState]:
        """The next point and state."""
        x, inner = self.inner.update(x, value, grad, state.inner, scale * self.factor_at(state.updates))
        return x, ScheduleState(state.updates + 1, inner)


@final
@dataclass(frozen=True)
class drops(Schedule):
    """Multiplies the learning rate by `factor` at each milestone.

    The defaults are the milestones of Geiping et al., 2020.

    Args:
        inner: the optimiser whose learning rate is scaled.
        steps: length of the run.
        at: milestones as fractions of the run.
        factor: of the learning rate after a milestone to the one before.

    Example:
        >>> schedule = drops(adam(0.1), steps=8)
        >>> [round(float(schedule.factor_at(torch.tensor(float(t)))), 4) for t in range(8)]
        [1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01, 0.001]
    """

    inner: Optimiser
    steps: int
    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check("steps", self.steps, self.steps >= 1, "a whole number of at least 1")
        _check("at", self.at, all(0 <= a <= 1 for a in self.at), "fractions of the run, in [0, 1]")
        _check("factor", self.factor, self.factor > 0, "a number above 0")

    def factor_at(self, count: Tensor) -> Tensor:
        """What the learning rate is multiplied with after `count` updates."""
        passed = torch.zeros_like(count)
        for fraction in self.at:
            # The small number is for products such as 0.29 * 100 = 28.999999999999996.
            passed = passed + (count >= math.floor(fraction * self.steps + 1e-9))
        return self.factor**passed


@final
@dataclass(frozen=True)
class exponential(Schedule):
    """Multiplies the learning rate by `rate ** (t / every)` after t updates.

    Args:
        inner: the optimiser whose learning rate is scaled.
        rate: the factor over `every` updates.
        every: number of updates.

    Example:
        >>> schedule = exponential(adam(0.1), rate=0.25, every=2)
        >>> [float(schedule.factor_at(torch.tensor(float(t)))) for t in range(4)]
        [1.0, 0.5, 0.25, 0.125]
    """

    inner: Optimiser
    rate: float
    every: float

    def __post_init__(self) -> None:
        _check("rate", self.rate, self.rate > 0, "a number above 0")
        _check("every", self.every, self.every > 0, "a number above 0")

    def factor_at(self, count: Tensor) -> Tensor:
        """What the learning rate is multiplied with after `count` updates."""
        return self.rate ** (count / self.every)


@final
@dataclass(frozen=True)
class cosine(Schedule):
    """Half a cosine from the full learning rate down to `final` times it, and level after that.

    Args:
        inner: the optimiser whose learning rate is scaled.
        steps: number of updates of the descent.
        final: fraction of the learning rate that is left at the end.

    Example:
        >>> schedule = cosine(adam(0.1), steps=4)
        >>> [round(float(schedule.factor_at(torch.tensor(float(t)))), 4) for t in range(6)]
        [1.0, 0.8536, 0.5, 0.1464, 0.0, 0.0]
    """

    inner: Optimiser
    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check("steps", self.steps, self.steps >= 1, "a whole number of at least 1")
        _check("final", self.final, self.final >= 0, "a number of at least 0")

    def factor_at(self, count: Tensor) -> Tensor:
        """What the learning rate is multiplied with after `count` updates."""
        along = torch.clamp(count / self.steps, max=1.0)
        return self.final + (1 - self.final) * (1 + torch.cos(math.pi * along)) / 2


@final
@dataclass(frozen=True)
class interrupted:
    """Lets a function change the point after every `every` updates of the inner optimiser.

    Args:
        inner: the optimiser.
        change: from candidates to candidates of the same shape, (lanes, ...); in a CUDA graph it is computed in every
            iteration and thrown away in most.
        every: number of updates between two changes.

    Example:
        >>> step, x = interrupted(sgd(0.25), torch.zeros_like, every=2), torch.ones(1, 1)
        >>> state = step.init(x)
        >>> for _ in range(2):
        ...     x, state = step.update(x, x[:, 0], torch.ones(1, 1), state)
        >>> x
        tensor([[0.]])
    """

    inner: Optimiser
    change: Callable[[Tree], Tree]
    every: int

    def __post_init__(self) -> None:
        _check("every", self.every, self.every >= 1, "a whole number of at least 1")

    def init(self, x: Tree) -> ScheduleState:
        """The state before the first update."""
        return ScheduleState(_clock(x), self.inner.init(x))

    def update(
        self, x: Tree, value: Tensor, grad: Tree, state: ScheduleState, scale: Scale = 1.0
    ) -> tuple[Tree, ScheduleState]:
        """The next point and state."""
        x, inner = self.inner.update(x, value, grad, state.inner, scale)
        count = state.updates + 1
        now = torch.remainder(count, self.every) == 0
        x = pytree.tree_map(lambda new, old: torch.where(now, new, old), self.change(x), x)
        return x, ScheduleState(count, inner)


class LbfgsState(NamedTuple):
    """What L-BFGS remembers. Empty places of the history are zeros, which change nothing."""

    base: Tensor  # (lanes, d), the last point that was accepted
    value: Tensor  # (lanes,), the objective there
    grad: Tensor  # (lanes, d), the gradient there
    direction: Tensor  # (lanes, d)
    length: Tensor  # (lanes,), of the step along the direction
    halvings: Tensor  # (lanes,), of that length so far; -1 before the first point
    moves: Tensor  # (lanes, history, d), s_i, oldest first
    bends: Tensor  # (lanes, history, d), y_i
    inverses: Tensor  # (lanes, history), rho_i = 1 / (y_i . s_i)
    curvature: Tensor  # (lanes,), gamma = (y . s) / (y . y) of the newest pair


@final
@dataclass(frozen=True)
class lbfgs:
    """L-BFGS (Nocedal and Wright, 2006, Numerical optimization, section 7.2), one evaluation per update.

    Without a line search this is `torch.optim.LBFGS` with `line_search_fn=None` and tolerances of 0, iterate for
    iterate: `steps` updates here are `steps` of its inner iterations. With "backtracking" every update either
    accepts the point it is given (Armijo's rule) and turns to a new direction, or halves the step and tries
    again from the last accepted point; each lane does so for itself while all lanes are evaluated together.

    Args:
        lr: length of the first try along each direction; the very first one is also cut to 1 / |g|_1.
        history: pairs kept per lane. Two tensors of (lanes, history, d) are held, so lower it where d is large.
        line_search: None or "backtracking".

    Note:
        Steps are measured from point to point, so a projection between updates is allowed for, but quasi-Newton
        directions know nothing of the box: with one, the search is a heuristic.

    Example:
        >>> x, curvature = torch.tensor([[1.0, 1.0], [5.0, -1.0]]), torch.tensor([1.0, 4.0])
        >>> optimiser = lbfgs()
        >>> state = optimiser.init(x)
        >>> for _ in range(12):
        ...     x, state = optimiser.update(x, (curvature * x**2).sum(1) / 2, curvature * x, state)
        >>> bool((x.abs() < 1e-5).all())
        True
    """

    lr: float = 1.0
    history: int = 100
    line_search: Literal["backtracking"] | None = None

    def __post_init__(self) -> None:
        _check("lr", self.lr, self.lr > 0, "a number above 0")
        _check("history", self.history, self.history >= 1, "a whole number of at least 1")
        _check("line_search", self.line_search, self.line_search in (None, "backtracking"), "None or 'backtracking'")

    def init(self, x: Tree) -> LbfgsState:
        """The state before the first update."""
        zero = torch.zeros_like(_flatten(x))  # (lanes, d)
        lanes, width = zero.shape
        moves = zero.new_zeros(lanes, self.history, width)
        one = zero.new_ones(lanes)
        return LbfgsState(
            base=zero,
            value=torch.zeros_like(one),
            grad=zero.clone(),
            direction=zero.clone(),
            length=torch.zeros_like(one),
            halvings=-one,
            moves=moves,
            bends=moves.clone(),
            inverses=zero.new_zeros(lanes, self.history),
            curvature=one,
        )

    def update(
        self, x: Tree, value: Tensor, grad: Tree, state: LbfgsState, scale: Scale = 1.0
    ) -> tuple[Tree, LbfgsState]:
        """The next point and state."""
        here, slope, value = _flatten(x), _flatten(grad), value.to(state.value.dtype)
        first = state.halvings < 0
        searching = self.line_search is not None
        move = here - state.base
        fell = value <= state.value + _ARMIJO * torch.clamp(_dot(state.grad, move), max=0)
        accepted = (first | fell) if searching else torch.ones_like(first)

        known = self._learn(state, accepted & ~first, move, slope - state.grad)
        # What a rejected point taught is dropped, and the search goes on from where it was.
        base = _choose(accepted, here, state.base)
        value = torch.where(accepted, value, state.value)
        slope = _choose(accepted, slope, state.grad)
        direction = _choose(accepted, _newton_direction(known, slope), state.direction)
        halvings = torch.where(accepted, 0, state.halvings + 1)

        uphill = _dot(slope, direction) > 0
        fresh = first
        if searching:
            # A direction that leads nowhere: forget the history and go down the gradient.
            lost = uphill | (halvings > _HALVINGS)
            known = _forget(known, lost)
            direction = _choose(lost, -slope, direction)
            halvings = torch.where(lost, 0, halvings)
            fresh = first | lost
        short = torch.clamp(1 / slope.abs().sum(1), max=1)
        full = torch.where(fresh, short, 1) * (self.lr * scale)
        length = torch.where(halvings == 0, full, state.length / 2)
        if not searching:
            length = torch.where(uphill, 0, length)  # `torch.optim.LBFGS` stops here

        point = base + length[:, None] * direction
        state = known._replace(
            base=base, value=value, grad=slope, direction=direction, length=length, halvings=halvings
        )
        return _unflatten(point, x), state

    def _learn(self, state: LbfgsState, new: Tensor, move: Tensor, bend: Tensor) -> LbfgsState:
        """Adds a pair to the history of the lanes in `new` where its curvature is positive."""
        product = _dot(bend, move)
        new = new & (product > 1e-10)  # the threshold of `torch.optim.LBFGS`
        return state._replace(
            moves=_choose(new, torch.cat((state.moves[:, 1:], move[:, None]), 1), state.moves),
            bends=_choose(new, torch.cat((state.bends[:, 1:], bend[:, None]), 1), state.bends),
            inverses=_choose(new, torch.cat((state.inverses[:, 1:], 1 / product[:, None]), 1), state.inverses),
            curvature=torch.where(new, product / _dot(bend, bend), state.curvature),
        )


_ARMIJO = 1e-4  # c_1 of Nocedal and Wright, section 3.1
_HALVINGS = 20  # of one step, before its direction is given up


def _newton_direction(state: LbfgsState, slope: Tensor) -> Tensor:
    """- H g from the compact form of H (Byrd, Nocedal and Schnabel, 1994, theorem 2.2).

    The usual two loops over the history are the same numbers, by 800 small operations instead of a dozen; products are
    never rounded to TF32, because curvature is a difference of near neighbours.
    """
    moves, bends, gamma = state.moves, state.bends, state.curvature[:, None]
    with arithmetic("fp32"):
        products = moves @ bends.mT  # (lanes, history, history), s_i . y_j
        empty = (state.inverses == 0).to(products.dtype)
        upper = products.triu() + torch.diag_embed(empty)  # R; an empty place must not make it singular
        diagonal = products.diagonal(dim1=1, dim2=2)  # D
        along_moves, along_bends = (moves @ slope[:, :, None])[..., 0], (bends @ slope[:, :, None])[..., 0]
        first = _solve(upper, along_moves)
        back = (bends.mT @ first[:, :, None])[..., 0]  # Y u
        inner = diagonal * first + gamma * ((bends @ back[:, :, None])[..., 0] - along_bends)
        second = _solve(upper.mT, inner, upper=False)
        return gamma * (back - slope) - (moves.mT @ second[:, :, None])[..., 0]


def _solve(triangle: Tensor, right: Tensor, upper: bool = True) -> Tensor:
    """Of lanes of triangular systems; the half types have no solver of their own."""
    exact = torch.promote_types(right.dtype, torch.float32)
    solution: Tensor = torch.linalg.solve_triangular(triangle.to(exact), right[:, :, None].to(exact), upper=upper)
    return solution[..., 0].to(right.dtype)


def _forget(state: LbfgsState, lanes: Tensor) -> LbfgsState:
    return state._replace(
        moves=_choose(lanes, 0, state.moves),
        bends=_choose(lanes, 0, state.bends),
        inverses=_choose(lanes, 0, state.inverses),
        curvature=torch.where(lanes, 1, state.curvature),
    )


def _choose(lanes: Tensor, yes: Tensor | float, no: Tensor) -> Tensor:
    """`torch.where` with one decision per lane."""
    return torch.where(lanes.reshape(-1, *[1] * (no.ndim - 1)), yes, no)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1)  # (lanes,)


def _flatten(x: Tree) -> Tensor:
    return torch.cat([leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None] for leaf in pytree.tree_leaves(x)], 1)


def _unflatten(flat: Tensor, like: Tree) -> Tree:
    leaves, spec = pytree.tree_flatten(like)
    parts = torch.split(flat, [leaf[0].numel() for leaf in leaves], 1)
    shaped = [part.reshape(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return pytree.tree_unflatten(shaped, spec)


def _clock(x: Tree) -> Tensor:
    """Zero updates. In float64, and without axes so that it never raises the dtype of what it multiplies."""
    return torch.zeros((), dtype=torch.float64, device=pytree.tree_leaves(x)[0].device)


def _check(name: str, got: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected `{name}` to be {expected}, got {got!r}")
