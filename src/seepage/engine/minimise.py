"""The one loop: minimises an objective for all clients and restarts at once.

The objective is written for one lane, that is one client and one restart. Here lanes are batched, cut into chunks
that fit into memory, watched for their best value, and frozen where they stop being finite.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from seepage.engine.bookmarks import Bookmark, current_bookmarks
from seepage.engine.film import current_film
from seepage.engine.graphs import CaptureFailed, repeat
from seepage.engine.interrupts import heeding_interrupts
from seepage.engine.lanes import Randomness, Tree, free_memory, out_of_memory, over_lanes
from seepage.engine.optimisers import Optimiser
from seepage.engine.precision import Precision, arithmetic
from seepage.engine.progress import current_watcher

__all__ = ["GraphMode", "Solution", "Status", "best_start", "minimise"]

GraphMode: TypeAlias = Literal["auto", "always", "never"]
"""Capture CUDA graphs where possible, or raise where it is not, or do not try."""


class Status(IntEnum):
    """How a lane ended.

    Example:
        >>> Status(1).name, Status(1).sentence
        ('NOT_REDUCED', 'No later value was lower than the first one.')
    """

    sentence: str

    # The default is for type checkers, which take `Status(1)` for a call of this.
    def __new__(cls, code: int, sentence: str = "") -> Status:
        """A code that knows what it means."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member

    REDUCED = 0, "The objective was reduced."
    NOT_REDUCED = 1, "No later value was lower than the first one."
    DIVERGED = 2, "The value or its gradient stopped being finite; the best candidate before that was kept."
    NEVER_FINITE = 3, "The value was not finite at the start, which was kept."


@dataclass(frozen=True, eq=False)
class Solution:
    """What `minimise` found, with axes (clients, starts), or (clients,) after `best_start`.

    Args:
        x: the candidate with the lowest value seen in each lane.
        value: that value; NaN where no value was finite.
        first_value: the value at the start.
        status: a `Status` per lane.
        steps: updates made; value and gradient are computed once more.

    Example:
        >>> from seepage.engine.optimisers import sgd
        >>> found = minimise(lambda x: (x**2).sum(), torch.ones(1, 1, 2), optimiser=sgd(0.5), steps=1)
        >>> found.value, found.first_value, Status(int(found.status)).name
        (tensor([[0.]]), tensor([[2.]]), 'REDUCED')
    """

    x: Tree
    value: Tensor
    first_value: Tensor
    status: Tensor
    steps: int


def best_start(solution: Solution) -> Solution:
    """Keeps for each client the restart with the lowest value, the first of equals; NaN counts as the highest.

    Example:
        >>> from seepage.engine.optimisers import sgd
        >>> start = torch.tensor([[[3.0], [2.0]], [[float("nan")], [4.0]]])  # (clients, starts, 1)
        >>> found = minimise(lambda x: (x**2).sum(), start, optimiser=sgd(0.25), steps=1)
        >>> best_start(found).x
        tensor([[1.],
                [2.]])
    """
    if solution.value.ndim != 2:
        raise ValueError(
            f"expected a solution with axes (clients, starts), got values of shape {tuple(solution.value.shape)}; "
            "call best_start once"
        )
    chosen = torch.nan_to_num(solution.value, nan=torch.inf).argmin(1)  # (clients,)
    clients = torch.arange(len(chosen), device=chosen.device)

    def pick(leaf: Tensor) -> Tensor:
        return leaf[clients, chosen]

    return replace(
        solution,
        x=pytree.tree_map(pick, solution.x),
        value=pick(solution.value),
        first_value=pick(solution.first_value),
        status=pick(solution.status),
    )


LANES_ON_CPU = 10
"""More lanes at once fill no idle cores but the caches: a hundred cost 2.6 times as much per lane as ten."""

NUMBERS_ON_CPU = 80_000
"""Likewise of all candidates at once, after which what a network makes of them goes: `benchmarks/lanes.py`."""


def _fitting(flat: Tree, lanes: int) -> int:
    leaves = pytree.tree_leaves(flat)
    if leaves[0].device.type != "cpu":
        return lanes
    of_one: int = sum(leaf[0].numel() for leaf in leaves)
    return max(1, min(LANES_ON_CPU, NUMBERS_ON_CPU // max(1, of_one)))


def minimise(
    objective: Callable[..., Tensor],
    start: Tree,
    given: tuple[Tree, ...] = (),
    *,
    optimiser: Optimiser,
    steps: int,
    project: Callable[[Tree], Tree] | None = None,
    chunk: int | None = None,
    batched: bool = True,
    randomness: Randomness = "error",
    progress: Callable[[int, int, float], None] | None = None,
    progress_every: int = 20,
    graph: GraphMode = "auto",
    precision: Precision = "fp32",
    clocked: bool = False,
) -> Solution:
    """Minimises an objective from every start of every client.

    Args:
        objective: `objective(candidate, *given)` of one client and one restart, a scalar; with `clocked`,
            `objective(candidate, *given, updates)`.
        start: tensor, or dict, tuple or named tuple of tensors, (clients, starts, ...). The first value is taken
            there as it is: project it first if the start itself must lie in the set.
        given: per-client tensors, trees of (clients, ...); a lane sees those of its client. What is the same for all
            clients should be `expand`ed along the client axis: it is then not batched, which is faster.
        optimiser: what makes a step of a gradient.
        steps: number of updates; each lane is evaluated once more after the last.
        project: applied to the candidates of all lanes after each step; must work element by element, such as a
            clamp to a box.
        chunk: lanes per program; by default all on a GPU, and a few at a time on a CPU. Halved when memory runs out.
        batched: all lanes of a chunk in one program, or one after the other for what `torch.vmap` cannot batch.
        randomness: what random operations in the objective do, as in `torch.vmap`.
        progress: called with the step, `steps` and the mean of the best values of the chunk so far; whoever is
            `watching` when absent.
        progress_every: steps between two calls of `progress`; each makes the host wait for the device.
        graph: on CUDA, capture the iteration in a graph: "auto" goes on without one, and warns, where that fails,
            "always" raises, "never" does not try.
        precision: of products on a GPU.
        clocked: tell the objective how many updates were made, as a tensor without axes. As values of different
            moments do not compare, the last finite candidate of each lane is then kept instead of the best.

    Returns:
        The best candidate of each lane with its value and status.

    Note:
        Lanes do not see each other, so results do not depend on the chunk, apart from the rounding of kernels
        that sum in another order for another number of lanes.

    Example:
        >>> from seepage.engine.optimisers import adam
        >>> target = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # two clients
        >>> def objective(x, target):
        ...     return ((x - target) ** 2).sum()
        >>> found = minimise(objective, torch.zeros(2, 5, 2), (target,), optimiser=adam(0.1), steps=300)
        >>> found.x.shape, bool((found.value < 1e-6).all())
        (torch.Size([2, 5, 2]), True)
    """
    clients, starts = _check_start(start)
    _check_given(given, clients)
    _check_options(steps, chunk, progress_every, graph)
    progress = progress or current_watcher()
    lanes = clients * starts
    flat = pytree.tree_map(lambda leaf: leaf.detach().reshape(lanes, *leaf.shape[2:]), start)

    film = current_film()
    if film is not None:
        film.begin(flat, clients, starts, steps)

    bookmarks = current_bookmarks()
    search = "" if bookmarks is None else bookmarks.search()

    def watch(time: int, state: _State, begin: int, before: int, mark: Bookmark | None) -> None:
        step = before + time
        if mark is not None and step < steps:
            mark.keep(state, step + 1)
        if film is not None:
            film.take(step, begin, state.best)
        if progress is not None and step > 0 and (step % progress_every == 0 or step == steps):
            finite = state.value[torch.isfinite(state.value)]
            progress(step, steps, float(finite.mean()))

    def solve(begin: int, end: int, captured: bool) -> _State:
        x = pytree.tree_map(lambda leaf: leaf[begin:end], flat)
        own = _of_lanes(given, starts, begin, end)
        evaluate = _evaluation(objective, own, _axes(given), batched, randomness, clocked)
        iteration = _iteration(evaluate, optimiser, project, clocked)
        state, before = _begin(x, optimiser), 0
        mark = None if bookmarks is None else Bookmark(bookmarks, search, (begin, end), steps)
        if mark is not None:
            state, before = mark.read(state)
        if film is not None and before > 0:
            film.go_on(before)
        look = partial(watch, begin=begin, before=before, mark=mark)
        # The last iteration is there for its evaluation: the update it makes is not looked at.
        with arithmetic(precision):
            last: _State = repeat(iteration, state, steps + 1 - before, captured, look)
        return last._replace(x=(), optimiser=(), updates=())

    done: list[_State] = []
    begin, size, captured = 0, min(chunk or _fitting(flat, lanes), lanes), graph != "never"
    while begin < lanes:
        end = min(begin + size, lanes)
        try:
            with heeding_interrupts():
                done.append(solve(begin, end, captured))
            begin = end
            continue
        except Exception as error:
            if out_of_memory(error):
                size = _halved(end - begin, error)
            elif isinstance(error, CaptureFailed) and graph == "auto":
                captured = False
                warnings.warn(f"{error}; going on without a graph", stacklevel=2)
            else:
                raise
        free_memory()  # only here, after the handler, are the error and the frames that it kept alive gone

    whole: _State = pytree.tree_map(lambda *parts: _with_starts(torch.cat(parts), starts), *done)
    return Solution(
        x=whole.best,
        value=torch.where(torch.isfinite(whole.value), whole.value, torch.nan),
        first_value=whole.first,
        status=_status(whole),
        steps=steps,
    )


def _with_starts(leaf: Tensor, starts: int) -> Tensor:
    return leaf.reshape(-1, starts, *leaf.shape[1:])  # (clients, starts, ...)


class _State(NamedTuple):
    """What one iteration hands to the next: the whole of it, so that an iteration is a pure function."""

    x: Tree  # (lanes, ...), where the next evaluation is made
    optimiser: Any
    best: Tree  # (lanes, ...)
    value: Tensor  # (lanes,), of the best
    first: Tensor  # (lanes,), the value at the start
    fresh: Tensor  # (lanes,), whether the lane was never evaluated
    alive: Tensor  # (lanes,), whether the lane was finite so far
    updates: Tree  # a tensor without axes: made so far


def _begin(x: Tree, optimiser: Optimiser) -> _State:
    leaves = pytree.tree_leaves(x)
    dtype = torch.float32  # values are compared in at least this
    for leaf in leaves:
        dtype = torch.promote_types(dtype, leaf.dtype)
    never = torch.full((len(leaves[0]),), torch.inf, dtype=dtype, device=leaves[0].device)
    true = torch.ones_like(never, dtype=torch.bool)
    updates = torch.zeros((), dtype=dtype, device=never.device)
    return _State(x, optimiser.init(x), best=x, value=never, first=never, fresh=true, alive=true, updates=updates)


def _evaluation(
    objective: Callable[..., Tensor],
    given: tuple[Tree, ...],
    axes: tuple[Tree, ...],
    batched: bool,
    randomness: Randomness,
    clocked: bool,
) -> Callable[[Tree, Tensor], tuple[Tensor, Tree]]:
    """The values and gradients of all lanes as a function of their candidates, and of the updates made so far."""
    of_lanes = over_lanes(objective, batched, (0, *axes, None) if clocked else (0, *axes), randomness)

    def evaluate(x: Tree, updates: Tensor) -> tuple[Tensor, Tree]:
        leaves, spec = pytree.tree_flatten(x)
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        # The gradient is taken outside `vmap`: objectives may hold an `autograd.Function` with a rule for `vmap`
        # and none for `torch.func.grad`. The sum keeps lanes apart, as no value depends on another lane.
        with torch.enable_grad():
            values = of_lanes(pytree.tree_unflatten(leaves, spec), *given, *((updates,) if clocked else ()))
            if not isinstance(values, Tensor) or values.shape != leaves[0].shape[:1]:
                got = f"shape {tuple(values.shape[1:])}" if isinstance(values, Tensor) else type(values).__name__
                raise ValueError(
                    f"expected the objective to return a scalar tensor for one lane, got {got}; sum or average it"
                )
            if not values.requires_grad:
                raise ValueError(
                    "expected an objective that can be differentiated with respect to the candidate, got a constant; "
                    "remove a `detach` or a rounding between the two"
                )
            grads = torch.autograd.grad(values.sum(), leaves, allow_unused=True, materialize_grads=True)
        return values.detach(), pytree.tree_unflatten(grads, spec)

    return evaluate


def _iteration(
    evaluate: Callable[[Tree, Tensor], tuple[Tensor, Tree]],
    optimiser: Optimiser,
    project: Callable[[Tree], Tree] | None,
    clocked: bool,
) -> Callable[[_State], _State]:
    """Evaluate, keep the best (or the last), step, project; lanes that are no longer finite stay where they are."""

    @torch.no_grad()
    def iteration(state: _State) -> _State:
        value, grad = evaluate(state.x, state.updates)
        value = value.to(state.value.dtype)
        alive = state.alive & torch.isfinite(value)
        better = alive if clocked else alive & (value < state.value)
        for leaf in pytree.tree_leaves(grad):
            alive = alive & torch.isfinite(leaf).reshape(len(leaf), -1).all(1)
        x, memory = optimiser.update(state.x, value, grad, state.optimiser)
        if project is not None:
            x = _projected(project, x)
        return _State(
            x=_where(alive, x, state.x),
            optimiser=memory,
            best=_where(better, state.x, state.best),
            value=torch.where(better, value, state.value),
            first=torch.where(state.fresh, value, state.first),
            fresh=torch.zeros_like(state.fresh),
            alive=alive,
            updates=state.updates + 1,
        )

    return iteration


def _projected(project: Callable[[Tree], Tree], x: Tree) -> Tree:
    projected = project(x)
    (leaves, spec), (new_leaves, new_spec) = pytree.tree_flatten(x), pytree.tree_flatten(projected)
    kinds, new_kinds = ([(tuple(leaf.shape), leaf.dtype) for leaf in part] for part in (leaves, new_leaves))
    if spec != new_spec or kinds != new_kinds:
        raise ValueError(
            f"expected `project` to keep the structure, shapes and dtypes of the candidates, {kinds}, got {new_kinds}; "
            "return a tree like the one that came in"
        )
    return projected


def _where(lanes: Tensor, yes: Tree, no: Tree) -> Tree:
    return pytree.tree_map(lambda y, n: torch.where(lanes.reshape(-1, *[1] * (n.ndim - 1)), y, n), yes, no)


def _of_lanes(given: tuple[Tree, ...], starts: int, begin: int, end: int) -> tuple[Tree, ...]:
    """The entries of each lane's client; what all clients share is there once, without a lane axis."""

    def pick(leaf: Tensor) -> Tensor:
        if _shared(leaf):
            return leaf[0]
        if starts == 1:
            return leaf[begin:end]  # no copy
        return leaf[torch.arange(begin, end, device=leaf.device) // starts]

    picked: tuple[Tree, ...] = pytree.tree_map(pick, given)
    return picked


def _shared(leaf: Tensor) -> bool:
    """Whether all clients have the same numbers, not only equal ones: one client, or an expanded axis.

    A global model that all clients received need not be batched: a convolution with one weight for all lanes is a
    plain convolution, while weights per lane make it a grouped one.
    """
    return leaf.shape[0] == 1 or leaf.stride(0) == 0


def _axes(given: tuple[Tree, ...]) -> tuple[Tree, ...]:
    axes: tuple[Tree, ...] = pytree.tree_map(lambda leaf: None if _shared(leaf) else 0, given)
    return axes


def _status(state: _State) -> Tensor:
    reduced = torch.where(state.value < state.first, int(Status.REDUCED), int(Status.NOT_REDUCED))
    ended = torch.where(state.alive, reduced, int(Status.DIVERGED))
    return torch.where(torch.isfinite(state.value), ended, int(Status.NEVER_FINITE))


def _halved(lanes: int, error: Exception) -> int:
    if lanes == 1:
        raise torch.OutOfMemoryError(
            "expected room for at least one lane, got out of memory with a single one; "
            "use fewer examples per client, a smaller model, fewer simulated steps or a larger device"
        ) from error
    return (lanes + 1) // 2


def _check_start(start: Tree) -> tuple[int, int]:
    leaves = pytree.tree_leaves(start)
    if not leaves:
        raise ValueError("expected `start` to hold at least one tensor, got none")
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            got = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TypeError(
                f"expected every leaf of `start` to be a floating-point tensor, got {got}; "
                "pass what is not optimised in `given`"
            )
    axes = {tuple(leaf.shape[:2]) for leaf in leaves}
    shapes = [tuple(leaf.shape) for leaf in leaves]
    if len(axes) != 1 or len(min(axes)) < 2 or 0 in min(axes):
        raise ValueError(
            f"expected every leaf of `start` to begin with the same axes (clients, starts), got shapes {shapes}; "
            "add the axis of starts with `unsqueeze(1)` where there is one start"
        )
    clients, starts = axes.pop()
    return clients, starts


def _check_given(given: tuple[Tree, ...], clients: int) -> None:
    if not isinstance(given, tuple):
        raise TypeError(
            f"expected `given` to be a tuple of trees, got {type(given).__name__}; write `(value,)` for one"
        )
    for position, tree in enumerate(given):
        for leaf in pytree.tree_leaves(tree):
            if not isinstance(leaf, Tensor):
                raise TypeError(
                    f"expected `given[{position}]` to hold tensors alone, got {type(leaf).__name__}; "
                    "let the objective close over what is the same for every client"
                )
            if leaf.shape[:1] != (clients,):
                raise ValueError(
                    f"expected `given[{position}]` to begin with the axis of the {clients} clients of `start`, "
                    f"got shape {tuple(leaf.shape)}"
                )


def _check_options(steps: int, chunk: int | None, progress_every: int, graph: str) -> None:
    if steps < 0:
        raise ValueError(f"expected `steps` of at least 0, got {steps}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"expected `chunk` of at least 1 lane, or None for all lanes, got {chunk}")
    if progress_every < 1:
        raise ValueError(f"expected `progress_every` of at least 1, got {progress_every}")
    if graph not in get_args(GraphMode):
        raise ValueError(f"expected `graph` to be one of {get_args(GraphMode)}, got {graph!r}")
