"""Everything that can be reached from an object."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.capture import Secret
from seepage.streams import Stream

# What code is made of leads to everything that was ever imported, and belongs to nobody.
CODE = (types.ModuleType, type, types.CodeType, types.FrameType, types.BuiltinFunctionType)


def reachable(start: object) -> Iterator[object]:
    """Every object on a path from `start` through attributes, containers, closures and autograd graphs."""
    seen: dict[int, object] = {}  # holds the objects too, lest an address be used twice
    front = [start]
    while front:
        here = front.pop()
        if id(here) in seen or isinstance(here, CODE):
            continue
        seen[id(here)] = here
        yield here
        front += _next(here)


def _next(here: object) -> list[Any]:
    if isinstance(here, types.FunctionType):  # without its globals
        return [here.__closure__, here.__defaults__, here.__kwdefaults__, here.__dict__]
    found: list[Any] = list(gc.get_referents(here))
    found.append(getattr(here, "__dict__", None))
    if isinstance(here, np.ndarray) and here.dtype != object:
        found.append(torch.from_numpy(here))
    if isinstance(here, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(here):
        found.append(torch._C._functorch.get_unwrapped(here))
    elif isinstance(here, Tensor):
        found += [here.grad_fn, here.grad if here.is_leaf else None, here._base]
    if isinstance(here, torch.autograd.graph.Node):
        found += [function for function, _ in here.next_functions]
        found += [getattr(here, name) for name in dir(here) if name.startswith("_saved")]
    return found


def memory_of(tensors: Iterable[Tensor]) -> set[int]:
    """Where tensors keep their numbers."""
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel()}


def assert_no_path_to(secrets: Iterable[Secret], start: object) -> None:
    """Nothing reachable from `start` is a secret, shares its memory, repeats an input, or could replay a client."""
    secrets = list(secrets)
    own = {id(secret) for secret in secrets} | {id(secret.examples) for secret in secrets}
    memory = memory_of(t for secret in secrets for t in (secret.examples.x, secret.examples.y))
    rows = [row for secret in secrets for row in secret.examples.x.reshape(len(secret.examples), -1)]
    for thing in reachable(start):
        assert id(thing) not in own, f"{type(thing).__name__} of the client"
        assert not isinstance(thing, Secret | Stream | torch.Generator), f"a {type(thing).__name__}"
        if isinstance(thing, Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(thing):
            assert thing.untyped_storage().data_ptr() not in memory, f"memory of the client in {tuple(thing.shape)}"
            assert not any(_holds(thing, row) for row in rows), f"an input of the client in {tuple(thing.shape)}"


def _holds(tensor: Tensor, row: Tensor) -> bool:
    if tensor.dtype != row.dtype or tensor.numel() == 0 or tensor.numel() % row.numel():
        return False
    return bool((tensor.detach().reshape(-1, row.numel()) == row).all(1).any())
