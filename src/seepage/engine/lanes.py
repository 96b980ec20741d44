"""One function for one lane, run over many: batched by `vmap`, or in a loop that gives the same numbers.

A lane is one client with one restart. Functions are written for one lane; the lane axis is added here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["InDims", "Randomness", "Tree", "free_memory", "out_of_memory", "over_lanes"]

Tree: TypeAlias = Any
"""A tensor, or a dict, tuple or named tuple of trees."""

InDims: TypeAlias = int | tuple[Any, ...]
"""As in `torch.vmap`: one axis for every argument, or per argument an axis, `None`, or a tree of them."""

Randomness: TypeAlias = Literal["error", "same", "different"]
"""As in `torch.vmap`: refuse random operations, or draw the same or different numbers in every lane."""


def over_lanes(
    function: Callable[..., Tree], batched: bool, in_dims: InDims = 0, randomness: Randomness = "error"
) -> Callable[..., Tree]:
    """Adds a leading lane axis to a function that was written for one lane.

    Args:
        function: takes trees of tensors of one lane, returns a tree of tensors of one lane.
        batched: one program for all lanes (`torch.vmap`), or one lane after the other. The loop is for what
            `vmap` cannot batch, a GRU for instance; it returns the same numbers.
        in_dims: which axis of which argument counts the lanes, as in `torch.vmap`.
        randomness: what random operations do, as in `torch.vmap`. The loop cannot notice a random operation, so
            there "error" does what "different" does.

    Returns:
        A function of the same arguments with the lane axis added, whose outputs have the lane axis first.

    Example:
        >>> rows = torch.arange(6.0).reshape(2, 3)
        >>> over_lanes(torch.sum, batched=True)(rows)
        tensor([ 3., 12.])
        >>> over_lanes(lambda x, y: {"dot": x @ y}, batched=False, in_dims=(0, None))(rows, torch.ones(3))
        {'dot': tensor([ 3., 12.])}
    """

    def together(*arguments: Tree) -> Tree:
        leaves, axes, _ = _leaves_and_axes(arguments, in_dims)
        # A mapped convolution is a grouped one, which costs a CPU time and brings a lane that is alone nothing.
        if _lane_count(leaves, axes) == 1 and not any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves):
            return looped(*arguments)
        return torch.vmap(function, in_dims=in_dims, randomness=randomness)(*arguments)

    def looped(*arguments: Tree) -> Tree:
        leaves, axes, spec = _leaves_and_axes(arguments, in_dims)
        lanes = _lane_count(leaves, axes)
        devices = {leaf.device.index for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_cuda}
        outputs = []
        for lane in range(lanes):
            # Every lane but the last gives its random numbers back, so that all draw the same ones.
            rewind = randomness == "same" and lane < lanes - 1
            with torch.random.fork_rng(devices=devices, enabled=rewind):
                outputs.append(function(*pytree.tree_unflatten(_select(leaves, axes, lane), spec)))
        for leaf in pytree.tree_leaves(outputs[0]):
            if not isinstance(leaf, Tensor):
                raise TypeError(
                    f"expected the function over lanes to return tensors, got a {type(leaf).__name__}; "
                    "return a tensor, or a dict, tuple or named tuple of tensors"
                )
        return pytree.tree_map(lambda *parts: torch.stack(parts), outputs[0], *outputs[1:])

    return together if batched else looped


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory ran out, that is, that too many lanes ran at once.

    PyTorch has a class for this on CUDA alone: the CPU allocator and the CUDA libraries raise a bare
    `RuntimeError`, and a failed graph capture hides the error behind a second one, so texts and causes count too.

    Example:
        >>> out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
        True
        >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
        True
        >>> out_of_memory(RuntimeError("size mismatch"))
        False
    """
    signs = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_memory() -> None:
    """Gives memory back that nothing points to any more, so that the next try finds it.

    Example:
        >>> free_memory()
    """
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use


def _leaves_and_axes(
    arguments: tuple[Tree, ...], in_dims: InDims
) -> tuple[list[Any], list[int | None], pytree.TreeSpec]:
    leaves, spec = pytree.tree_flatten(arguments)
    axes = pytree._broadcast_to_and_flatten(in_dims, spec)
    if axes is None:
        raise ValueError(
            f"expected `in_dims` of the same structure as the {len(arguments)} arguments, got {in_dims}; "
            "give one axis for all, or a tuple with one entry per argument"
        )
    return leaves, axes, spec


def _lane_count(leaves: list[Any], axes: list[int | None]) -> int:
    sizes = {leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"expected one number of lanes, at least 1, along `in_dims`, got {sorted(sizes)}; "
            "check the leading axis of every argument"
        )
    return int(sizes.pop())


def _select(leaves: list[Any], axes: list[int | None], lane: int) -> list[Any]:
    return [leaf if axis is None else leaf.select(axis, lane) for leaf, axis in zip(leaves, axes, strict=True)]
