"""Functions of tensors, traced to plain operations once and compiled.

`torch.compile` fails on programs that hold `jvp` inside of `vmap`, and does not end on programs of many steps. Traced
with `make_fx`, a step of training or its adjoint is a flat list of some hundred operations on all lanes, which inductor
fuses like any other; every step of a simulation is then the same compiled function.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from seepage.engine.fused import FUSED, is_short
from seepage.engine.interrupts import heeding_interrupts
from seepage.engine.lanes import Tree, out_of_memory

__all__ = ["Compiler"]

aten = torch.ops.aten

# Of each backend. Rows that inductor pads for alignment are copied once more for each product that wants them without.
OPTIONS: dict[str, dict[str, Any]] = {"inductor": {"comprehensive_padding": False}}


@dataclass(eq=False)
class Compiler:
    """Compiles each function once for each kind of arguments, and remembers it.

    A function that cannot be traced, simplified or compiled runs as it is written, with one warning for all of them.

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
    _warned: bool = field(default=False, repr=False)

    @torch.no_grad()
    def __call__(self, name: Any, function: Callable[..., Tree], *arguments: Tree) -> Tree:
        """What `function(*arguments)` returns; without a gradient."""
        leaves, spec = pytree.tree_flatten(arguments)
        # Slices of one tensor differ in their strides alone, and need not be compiled one by one.
        leaves = [leaf.contiguous() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        key = (name, spec, tuple(_kind(leaf) for leaf in leaves))
        if key not in self._programs:
            try:
                with heeding_interrupts():
                    self._programs[key] = self._compile(function, leaves, spec)
            except Exception as error:
                if out_of_memory(error):
                    raise
                if not self._warned:
                    self._warned = True  # the others of a program fail for the same reason
                    reason = str(error).strip().split("\n")[0] or type(error).__name__
                    what = "traced" if self.backend == "none" else "compiled"
                    warnings.warn(f"{name} could not be {what} ({reason}); going on without, slower", stacklevel=2)
                self._programs[key] = lambda *leaves: function(*pytree.tree_unflatten(list(leaves), spec))
        return self._programs[key](*leaves)

    def _compile(self, function: Callable[..., Tree], leaves: list[Any], spec: pytree.TreeSpec) -> Callable[..., Tree]:
        shape: pytree.TreeSpec | None = None

        def flat(*leaves: Tensor) -> list[Tensor]:
            nonlocal shape
            out, shape = pytree.tree_flatten(function(*pytree.tree_unflatten(list(leaves), spec)))
            return list(out)

        graph = make_fx(flat)(*leaves)
        graph.graph = _simplified(graph.graph, in_place=self.backend == "none")
        graph.recompile()
        program: Callable[..., list[Tensor]] = graph
        assert shape is not None
        structure = shape
        expected = program(*leaves)  # fails here if it must
        if self.backend != "none":
            _share_operands(graph.graph)
            graph.recompile()
            traced, graph = graph, make_fx(graph, decomposition_table=FUSED)(*leaves)
            program = torch.compile(graph, backend=self.backend, dynamic=False, options=OPTIONS.get(self.backend))
            _compare(program(*leaves), expected, lambda: traced(*map(_rounded, leaves)))
        return lambda *leaves: pytree.tree_unflatten(program(*leaves), structure)


def _compare(found: list[Tensor], expected: list[Tensor], nearby: Callable[[], list[Tensor]]) -> None:
    """Whether a compiler made of a program what it is, up to more rounding than products in TF32 have.

    Where rounding switches a rectifier on or off, single numbers are off by more. Then all of an output together may be
    off by as much as rounded arguments move it.

    Args:
        found: what the compiled program gives.
        expected: what the program gives.
        nearby: the program on arguments that are rounded; only called where it is needed.
    """
    places = [i for i, b in enumerate(expected) if isinstance(b, Tensor) and b.is_floating_point() and b.numel()]
    largest = max((float(expected[i].abs().max()) for i in places), default=0.0)
    moved: list[Tensor] | None = None
    for i in places:
        a, b = found[i], expected[i]
        off = float((a - b).abs().max())
        if off <= 0.1 * float(b.abs().max()) + 1e-6 * largest:
            continue
        moved = moved or nearby()
        if not float((a - b).norm()) <= 2 * float((moved[i] - b).norm()):  # nor where it is no number
            raise RuntimeError(f"compiled, its output {i} is off by {off:.3g}")


def _rounded(leaf: Any) -> Any:
    """With seven bits behind the point, fewer than TF32 has: what is close to a kink comes to lie on its other side."""
    return leaf.bfloat16().to(leaf.dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _simplified(graph: fx.Graph, in_place: bool = True) -> fx.Graph:
    """The same program without what is not used, and without what is computed twice.

    A directional derivative computes its function as well, wanted or not, and each derivative of a convolution cuts the
    same patches out of the same images again.

    Args:
        graph: the program.
        in_place: add a product of matrices to what it is added to in place. A compiler does without: it fuses the sum
            with what comes after it, and out of place such a product begins with a copy.
    """
    for node in list(graph.nodes):
        if node.target in (aten.alias.default, aten.detach.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif (
            node.target is aten._efficientzerotensor.default
        ):  # which has no memory, where compiled programs look for it
            node.target = aten.zeros.default
        elif _overwrites_its_own(node):  # what is computed before a change in place is taken for other than after it
            packet = getattr(aten, node.target._schema.name.removeprefix("aten::")[:-1])
            node.target = getattr(packet, node.target._overloadname)
    from torch._functorch.compile_utils import fx_graph_cse  # here, as it brings sympy, which takes a third of a second

    graph = fx_graph_cse(graph)
    graph.eliminate_dead_code()  # before sums are merged, as a term that somebody else uses must stay
    _scale_products(graph)
    _merge_sums(graph, in_place)
    graph.eliminate_dead_code()
    return graph


VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.expand.default,
}

LINEAR = VIEWS - {aten.expand.default} | {
    aten.clone.default,
    aten.col2im.default,
    aten.sum.dim_IntList,
    aten.mul.Scalar,
    aten.neg.default,
}


def _scale_products(graph: fx.Graph) -> None:
    """(s·A)·B becomes s·(A·B) where products are smaller than A, which may be a layer's weights."""
    factors = (aten.mul.Scalar, aten.mul.Tensor)
    for scaled in [n for n in graph.nodes if n.target in factors and isinstance(n.args[1], int | float)]:
        products = _products_with(scaled)
        if not products or sum(_size(product) for product in products) >= _size(scaled):
            continue
        for product in products:
            users = list(product.users)
            with graph.inserting_after(product):
                outer = graph.call_function(aten.mul.Scalar, (product, scaled.args[1]))
            outer.meta["val"] = product.meta["val"]
            for user in users:
                user.replace_input_with(product, outer)
        scaled.replace_all_uses_with(scaled.args[0])
        graph.erase_node(scaled)


def _products_with(node: fx.Node) -> list[fx.Node]:
    """The products of matrices in which a tensor ends, if it ends in nothing else, and in each of them once."""
    products: list[fx.Node] = []
    for user in node.users:
        if user.target in VIEWS:
            found = _products_with(user)
        else:
            squares = len(user.all_input_nodes) == 1
            found = [user] if user.target is aten.bmm.default and not squares else []
        if not found:
            return []
        products += found
    return products if len(set(products)) == len(products) else []


def _merge_sums(graph: fx.Graph, in_place: bool) -> None:
    """f(a) + f(b) becomes f(a + b) where f is linear, and two products of matrices become one.

    Such sums come from the product rule; what they are made of is as large as patches or a layer's weights. A sum of
    products is a product of longer rows and columns, which is cheaper where these are the smaller part; elsewhere a
    product is added where another one lies.
    """
    waiting = [node for node in graph.nodes if node.target is aten.add.Tensor]
    while waiting:
        total = waiting.pop()
        if total.kwargs or len(total.args) != 2 or not all(isinstance(term, fx.Node) for term in total.args):
            continue
        first, second = total.args
        alike = first.target is second.target and first.args[1:] == second.args[1:] and first.kwargs == second.kwargs
        if first.target is aten.zeros_like.default and _shape(second) == _shape(total):
            total.replace_all_uses_with(second)
            continue
        if first is second or len(first.users) > 1 or len(second.users) > 1:
            continue
        if alike and first.target in LINEAR and _shape(first.args[0]) == _shape(second.args[0]):
            with graph.inserting_before(total):
                inner = graph.call_function(aten.add.Tensor, (first.args[0], second.args[0]))
                inner.meta["val"] = first.args[0].meta["val"]
                outer = graph.call_function(first.target, (inner, *first.args[1:]), first.kwargs)
            waiting.append(inner)
        elif not (first.target is second.target is aten.bmm.default and _shape(first) == _shape(second)):
            continue
        elif not in_place and all(is_short(*_sides(product)) for product in (first, second)):
            continue  # they become sums
        elif _size(total) >= _operands(first) + _operands(second):
            with graph.inserting_before(total):
                longer = [_joined(graph, first.args[i], second.args[i], dim) for i, dim in ((0, 2), (1, 1))]
                outer = graph.call_function(aten.bmm.default, tuple(longer))
        elif in_place:
            with graph.inserting_before(total):
                outer = graph.call_function(aten.baddbmm_.default, (first, *second.args))
        else:
            continue
        outer.meta["val"] = total.meta["val"]
        total.replace_all_uses_with(outer)
        waiting += [user for user in outer.users if user.target is aten.add.Tensor and user not in waiting]
        for node in (total, second, first):
            if not node.users:
                graph.erase_node(node)


def _share_operands(graph: fx.Graph) -> None:
    """A·W and B·W become one product where W, which may be a layer's weights, is larger than the rest: read once."""
    while (found := _with_one_operand(graph)) is not None:
        _join(graph, *found)


def _with_one_operand(graph: fx.Graph) -> tuple[fx.Node, fx.Node, int] | None:
    """Two products that do not need each other, in their order, and on which side their common operand is."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    alike: dict[tuple[fx.Node, int], list[fx.Node]] = {}
    for node, side in itertools.product(graph.nodes, (0, 1)):
        if node.target is aten.bmm.default:
            alike.setdefault((node.args[side], side), []).append(node)
    for (operand, side), products in alike.items():
        for first, second in itertools.combinations(products, 2):
            rest = sum(map(_size, (first, second, _operand(first, 1 - side), _operand(second, 1 - side))))
            if rest < _size(operand) and not _needs(second, first, order):
                return first, second, side
    return None


def _needs(node: fx.Node, other: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether a node is computed from another one."""
    waiting, seen = [node], {node}
    while waiting:
        for need in waiting.pop().all_input_nodes:
            if need is other:
                return True
            if need not in seen and order[need] > order[other]:
                seen.add(need)
                waiting.append(need)
    return False


def _join(graph: fx.Graph, first: fx.Node, second: fx.Node, side: int) -> None:
    """Two products with one operand in common, as two parts of one product that stands where the second stood."""
    dim, ends = 2 - side, [0]
    with graph.inserting_before(second):
        rest = _joined(graph, _operand(first, 1 - side), _operand(second, 1 - side), dim)
        both = graph.call_function(aten.bmm.default, (rest, first.args[1]) if side else (first.args[0], rest))
        late = []
        for product in (first, second):
            ends.append(ends[-1] + product.meta["val"].shape[dim])
            piece = graph.call_function(aten.slice.Tensor, (both, dim, *ends[-2:]))
            piece.meta["val"] = product.meta["val"]
            # As the product was, for those who look at it with other axes; a compiler copies nothing.
            part = graph.call_function(aten.clone.default, (piece,), {"memory_format": torch.contiguous_format})
            part.meta["val"] = product.meta["val"]
            product.replace_all_uses_with(part)
            graph.erase_node(product)
            late.append(part)
    shape = [*late[0].meta["val"].shape]
    shape[dim] = ends[-1]
    both.meta["val"] = torch.empty(shape, device="meta")
    last, begins = late[-1], late[0]
    for node in itertools.takewhile(lambda node: node is not begins, list(graph.nodes)):
        if any(need in late for need in node.all_input_nodes):  # what is made of the first product comes after both now
            last.append(node)
            last = node
            late.append(node)


def _shape(node: Any) -> tuple[int, ...] | None:
    return tuple(node.meta["val"].shape) if isinstance(node, fx.Node) and "val" in node.meta else None


def _joined(graph: fx.Graph, first: fx.Node, second: fx.Node, dim: int) -> fx.Node:
    both = graph.call_function(aten.cat.default, ([first, second], dim))
    shape = [*first.meta["val"].shape]
    shape[dim] += second.meta["val"].shape[dim]
    both.meta["val"] = torch.empty(shape, device="meta")  # tensors of two traces do not mix
    return both


def _size(node: fx.Node) -> int:
    return int(node.meta["val"].numel())


def _sides(product: fx.Node) -> tuple[int, int, int]:
    """Rows, columns and rows between the matrices, and columns."""
    _, rows, between = _operand(product, 0).meta["val"].shape
    return rows, between, product.meta["val"].shape[2]


def _operand(product: fx.Node, side: int) -> fx.Node:
    operand = product.args[side]
    assert isinstance(operand, fx.Node)
    return operand


def _operands(product: fx.Node) -> int:
    return sum(_size(operand) for operand in product.all_input_nodes)


def _overwrites_its_own(node: fx.Node) -> bool:
    """Whether a node changes in place what nobody else looks at."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.name.endswith("_"):
        return False
    (changed, *_) = node.all_input_nodes
    fresh = isinstance(changed.target, torch._ops.OpOverload) and changed.target._schema.returns[0].alias_info is None
    return fresh and list(changed.users) == [node]


def _kind(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
