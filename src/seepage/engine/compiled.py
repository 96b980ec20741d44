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
from torch import Tensor, fx
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from seepage.engine.lanes import Tree, out_of_memory

__all__ = ["Compiler"]


@dataclass(eq=False)
class Compiler:
    """Compiles each function once for each kind of arguments, and remembers it.

    What a function closes over must not change what it computes: two functions handed in under one name are taken for
    the same. Tensors it closes over become constants of the compiled program.

    Args:
        backend: as in `torch.compile`; `"none"` runs the traced program operation by operation, without those that
            compute what is not used or known already.

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
                if self.backend != "none":
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

        graph = make_fx(flat)(*leaves)
        graph.graph = _simplified(graph.graph)
        graph.recompile()
        program: Callable[..., list[Tensor]] = graph
        assert shape is not None
        structure = shape
        if self.backend != "none":
            program = torch.compile(program, backend=self.backend, dynamic=False)
            program(*leaves)  # compiles, and fails here if it must
        return lambda *leaves: pytree.tree_unflatten(program(*leaves), structure)


def _simplified(graph: fx.Graph) -> fx.Graph:
    """The same program without what is not used, and without what is computed twice.

    A directional derivative computes its function as well, wanted or not, and each derivative of a convolution cuts the
    same patches out of the same images again.
    """
    for node in list(graph.nodes):
        if node.target in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif _overwrites_its_own(node):  # what is computed before a change in place is taken for other than after it
            packet = getattr(torch.ops.aten, node.target._schema.name.removeprefix("aten::")[:-1])
            node.target = getattr(packet, node.target._overloadname)
    graph = fx_graph_cse(graph)
    graph.eliminate_dead_code()
    return graph


def _overwrites_its_own(node: fx.Node) -> bool:
    """Whether a node changes in place what nobody else looks at."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.name.endswith("_"):
        return False
    (changed, *_) = node.all_input_nodes
    fresh = isinstance(changed.target, torch._ops.OpOverload) and changed.target._schema.returns[0].alias_info is None
    return fresh and list(changed.users) == [node]


def _kind(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
