"""Repeating one iteration many times: eagerly, or captured once in a CUDA graph and replayed.

An iteration is a pure function from a tree of tensors to a tree of the same shapes. That is all a capture needs:
the results are copied into the tensors that the iteration reads, and replaying is iterating. One replay is one
launch, where one iteration of an attack on federated averaging makes some twenty thousand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree

from seepage.engine.lanes import Tree, free_memory

__all__ = ["CaptureFailed", "repeat"]

WARM_UP = 3  # lazy initialisation and autotuning must be over before a capture; three is PyTorch's advice

Watch = Callable[[int, Tree], None]


class CaptureFailed(RuntimeError):
    """The iteration could not be captured in a CUDA graph; `__cause__` says why.

    Example:
        >>> issubclass(CaptureFailed, RuntimeError)
        True
    """


def repeat(
    iteration: Callable[[Tree], Tree], state: Tree, times: int, captured: bool = False, watch: Watch | None = None
) -> Tree:
    """Applies an iteration a number of times.

    Args:
        iteration: a pure function of a tree of tensors that returns a tree of the same shapes and dtypes.
        state: the tree to start from; it is not changed.
        times: how often.
        captured: on CUDA, run the first three times eagerly, as the warm-up that a capture wants, and the rest as
            replays of a graph, which is freed before this returns. Elsewhere everything is eager.
        watch: called after each time with its number, from 0, and the state, which it must not keep.

    Returns:
        The last state.

    Raises:
        CaptureFailed: where `captured` is asked for and the iteration does not allow it, for instance because it
            reads a number back from the device.

    Example:
        >>> repeat(lambda x: 2 * x, torch.ones(2), times=10)
        tensor([1024., 1024.])
    """
    device = pytree.tree_leaves(state)[0].device
    if not captured or device.type != "cuda":
        return _eagerly(iteration, state, range(times), watch)
    with torch.cuda.device(device):
        state = _on_the_side(iteration, state, range(min(WARM_UP, times)), watch)
        return state if times <= WARM_UP else _replayed(iteration, state, range(WARM_UP, times), watch)


def _eagerly(iteration: Callable[[Tree], Tree], state: Tree, times: range, watch: Watch | None) -> Tree:
    for time in times:
        state = iteration(state)
        if watch is not None:
            watch(time, state)
    return state


def _on_the_side(iteration: Callable[[Tree], Tree], state: Tree, times: range, watch: Watch | None) -> Tree:
    """Eagerly, on a stream of its own: a capture must not find work of the warm-up on the default stream."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        state = _eagerly(iteration, state, times, watch)
    current.wait_stream(side)
    return state


def _replayed(iteration: Callable[[Tree], Tree], state: Tree, times: range, watch: Watch | None) -> Tree:
    static = pytree.tree_map(torch.clone, state)
    del state
    free_memory()  # what the warm-up left in the cache is of no use to the graph, which has a pool of its own
    graph = _capture(iteration, static)
    try:
        for time in times:
            graph.replay()
            if watch is not None:
                watch(time, static)
        torch.cuda.synchronize()  # a graph must not be reset while it runs
    finally:
        graph.reset()
        del graph
        free_memory()
    return static


def _capture(iteration: Callable[[Tree], Tree], static: Tree) -> torch.cuda.CUDAGraph:
    """A graph whose every replay advances `static` by one iteration."""
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            _overwrite(static, iteration(static))
    except Exception as error:
        torch.cuda.set_stream(current)  # a capture that breaks off can leave its own stream behind as the current one
        reason = str(error).strip().split("\n")[0]
        raise CaptureFailed(f"this iteration cannot be captured in a CUDA graph: {reason}") from error
    return graph


def _overwrite(static: Tree, result: Tree) -> None:
    """Copies a result into the tensors it was computed from."""
    olds, spec = pytree.tree_flatten(static)
    news, new_spec = pytree.tree_flatten(result)
    kinds, new_kinds = ([(tuple(leaf.shape), leaf.dtype) for leaf in leaves] for leaves in (olds, news))
    if spec != new_spec or kinds != new_kinds:
        raise ValueError(f"expected an iteration to keep structure, shapes and dtypes {kinds}, got {new_kinds}")
    # A result may be an input under another name, such as the point that an optimiser remembers as the last one:
    # those are read before any input is overwritten.
    owned = {old.untyped_storage().data_ptr() for old in olds}
    news = [new.clone() if new.untyped_storage().data_ptr() in owned else new for new in news]
    for old, new in zip(olds, news, strict=True):
        old.copy_(new)
