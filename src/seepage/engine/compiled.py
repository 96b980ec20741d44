"""Functions of tensors, traced to plain operations once and compiled.

`torch.compile` fails on programs that hold `jvp` inside of `vmap`, and does not end on programs of many steps. Traced
with `make_fx`, a step of training or its adjoint is a flat list of some hundred operations on all lanes, which inductor
fuses like any other; every step of a simulation is then the same compiled function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from seepage.engine.convolution import for_fusion
from seepage.engine.lanes import Tree, out_of_memory

__all__ = ["Compiler"]


@dataclass(eq=False)
class Compiler:
    """Compiles each function once for each kind of arguments, and remembers it.

    What a function closes over must not change what it computes: two functions handed in under one name are taken for
    the same. Tensors it closes over become constants of the compiled program.

    Args:
        backend: as in `torch.compile`; `"none"` runs the traced program operation by operation.

    Example:
        >>> compiler = Compiler(backend="none")
        >>> compiler("double", lambda x: {"twice": 2 * x}, torch.ones(2))
        {'twice': tensor([2., 2.])}
    """

    backend: str = "inductor"
    _programs: dict[Any, Callable[..., Any]] = field(default_factory=dict, repr=False)

    @torch.no_grad()
    def __call__(self, name: Any, function: Callable[..., Tree], *arguments: Tree) -> Tree:
        """What `function(*arguments)` returns; without a gradient."""
        leaves, spec = pytree.tree_flatten(arguments)
        # Slices of one tensor differ in their strides alone, and need not be compiled one by one.
        leaves = [leaf.contiguous() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        key = (name, spec, tuple(_kind(leaf) for leaf in leaves))
        if key not in self._programs:
            try:
                self._programs[key] = self._compile(function, leaves, spec)
            except Exception as error:
                if out_of_memory(error):
                    raise
                reason = str(error).strip().split("\n")[0]
                warnings.warn(f"{name} could not be compiled ({reason}); going on without", stacklevel=2)
                self._programs[key] = lambda *leaves: function(*pytree.tree_unflatten(list(leaves), spec))
        return self._programs[key](*leaves)

    def _compile(self, function: Callable[..., Tree], leaves: list[Any], spec: pytree.TreeSpec) -> Callable[..., Tree]:
        shape: pytree.TreeSpec | None = None

        def flat(*leaves: Tensor) -> list[Tensor]:
            nonlocal shape
            out, shape = pytree.tree_flatten(function(*pytree.tree_unflatten(list(leaves), spec)))
            return list(out)

        with for_fusion():
            graph: Callable[..., list[Tensor]] = make_fx(flat)(*leaves)
        assert shape is not None
        structure = shape
        if self.backend != "none":
            graph = torch.compile(graph, backend=self.backend, dynamic=False)
            graph(*leaves)  # compiles, and fails here if it must
        return lambda *leaves: pytree.tree_unflatten(graph(*leaves), structure)


def _kind(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
