"""The linear layers of a module, as examples pass through them.

Found by watching a forward pass rather than by the names or types of modules: every call of
`torch.nn.functional.linear` with a trained weight, what came before it, and what its output went through on the way
to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = ["Passed", "Slope", "find_layers", "pass_through", "places_of_inputs", "probe", "rearranged", "works_alone"]

Slope = Callable[[Tensor], Tensor]
"""An activation's derivative as a function of its *output*; NaN where the output does not tell."""


@dataclass(frozen=True, eq=False)
class Passed:
    """Examples on their way through one linear layer, z = W·x + b.

    Args:
        weight: name of the parameter.
        bias: name of the parameter; `None` where there is none, or none that is trained.
        x: what went in, one row per example, (n, width).
        z: what came out, (n, units).
        delta: the derivative of each example's own loss with respect to `z`, (n, units).
        slope: the derivative of the activation between `z` and the next linear layer's input; `None` where something
            else lies between, or nothing follows.
    """

    weight: str
    bias: str | None
    x: Tensor
    z: Tensor
    delta: Tensor
    slope: Slope | None = None

    @property
    def path(self) -> str:
        """The layer's path in the module."""
        return self.weight.rpartition(".")[0]

    @property
    def sparse(self) -> bool:
        """Whether some units get exactly no derivative, as ReLU does to those that it switches off."""
        return bool((self.delta == 0).any())


def _identity(out: Tensor) -> Tensor:
    return torch.ones_like(out)


def _relu(*_: Any, **__: Any) -> Slope:
    return lambda out: (out > 0).to(out.dtype)


def _leaky_relu(negative_slope: float = 0.01, *_: Any, **__: Any) -> Slope:
    if negative_slope < 0:  # the output's sign no longer tells the input's
        return lambda out: torch.full_like(out, math.nan)
    return lambda out: torch.where(out > 0, torch.ones_like(out), negative_slope)


def _sigmoid(*_: Any, **__: Any) -> Slope:
    return lambda out: out * (1 - out)


def _tanh(*_: Any, **__: Any) -> Slope:
    return lambda out: (1 - out) * (1 + out)


def _elu(alpha: float = 1.0, *_: Any, **__: Any) -> Slope:
    return lambda out: torch.where(out > 0, torch.ones_like(out), out + alpha)


def _softplus(beta: float = 1.0, *_: Any, **__: Any) -> Slope:
    return lambda out: -torch.expm1(-beta * out)


def _gelu(approximate: str = "none", *_: Any, **__: Any) -> Slope:
    def slope(out: Tensor) -> Tensor:
        # An output below zero has two inputs, one on each side of the valley; above, the input lies in [out, out + 0.2]
        # and is found by bisection.
        low, high = out.clamp(min=0), out.clamp(min=0) + 0.2
        for _ in range(60):
            middle = (low + high) / 2
            above = functional.gelu(middle, approximate=approximate) > out
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        with torch.enable_grad():
            z = ((low + high) / 2).detach().requires_grad_()
            (derivative,) = torch.autograd.grad(functional.gelu(z, approximate=approximate).sum(), z)
        return torch.where(out > 0, derivative, math.nan)

    return slope


def _under_all_names(table: dict[str, Any]) -> dict[Any, Any]:
    """The same entries under each function object by which torch knows the operation."""
    homes = (torch, functional, Tensor)
    spellings = {name: (name, f"{name}_") for name in table}
    return {
        getattr(home, spelling): entry
        for name, entry in table.items()
        for spelling in spellings[name]
        for home in homes
        if hasattr(home, spelling)
    }


_ACTIVATIONS = _under_all_names(
    {
        "relu": _relu,
        "leaky_relu": _leaky_relu,
        "sigmoid": _sigmoid,
        "tanh": _tanh,
        "elu": _elu,
        "softplus": _softplus,
        "gelu": _gelu,
    }
)
_RESHAPES = _under_all_names(
    dict.fromkeys(("flatten", "reshape", "view", "squeeze", "unsqueeze", "unflatten", "contiguous", "clone"))
)


class _Watcher(TorchFunctionMode):
    """Notes every linear layer with a named weight that a forward pass goes through."""

    def __init__(self, params: Params, n: int) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in params.items()}
        self.n = n
        self.passed: list[Passed] = []
        self.links: dict[int, tuple[int, Slope]] = {}  # from a layer to the next one and what lies between
        self.uses: dict[str, int] = {}
        self._from: dict[int, tuple[int, Slope | None]] = {}  # which layer a tensor comes from, and through what
        self._kept: list[Tensor] = []  # an address must not be used twice while it is remembered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = args[0] if args else (kwargs or {}).get("input")
        if func is functional.linear:
            return self._linear(out, *args, **(kwargs or {}))
        if isinstance(given, Tensor) and isinstance(out, Tensor) and id(given) in self._from:
            layer, slope = self._from[id(given)]
            if func in _RESHAPES:
                self._remember(out, layer, slope)
            elif func in _ACTIVATIONS and slope is None:
                options = {key: value for key, value in (kwargs or {}).items() if key != "input"}
                self._remember(out, layer, _ACTIVATIONS[func](*args[1:], **options))
            elif out is given:  # changed in place by something else
                del self._from[id(given)]
        return out

    def _remember(self, tensor: Tensor, layer: int, slope: Slope | None) -> None:
        self._from[id(tensor)] = layer, slope
        self._kept.append(tensor)

    def _linear(self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name = self.names.get(id(weight))
        if name is None:
            return out
        self.uses[name] = self.uses.get(name, 0) + 1
        if input.shape[0] != self.n or input.numel() != self.n * weight.shape[1]:  # for instance one row per token
            return out
        here = len(self.passed)
        if id(input) in self._from:
            before, slope = self._from[id(input)]
            self.links[before] = here, slope or _identity
        x, z = input.detach().reshape(self.n, -1), out.reshape(self.n, -1)
        self.passed.append(Passed(name, self.names.get(id(bias)), x.clone(), z, torch.empty(0)))
        onward = z.clone().reshape(out.shape)  # what happens to it in place must not happen to what was noted
        self._remember(onward, here, None)
        return onward


def pass_through(
    task: Task, params: Params, x: Tensor, y: Tensor, *, buffers: Params | None = None, train: bool = False
) -> list[Passed]:
    """Every linear layer that the examples pass, in order: those with a trained weight, used once, a row per example.

    Args:
        task: the module and its loss.
        params: for one client.
        x: inputs, (n, …).
        y: targets, (n, …).
        buffers: for one client.
        train: mode of the module.

    Note:
        `slope` is what the operations between two layers say, and is not checked here: see `find_layers`.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), DataSpec((2,), classes=3))
        >>> [passed.path for passed in pass_through(task, task.params, torch.ones(5, 2), torch.zeros(5).long())]
        ['0', '2']
    """
    watcher = _Watcher(params, len(x))
    with torch.enable_grad():
        with watcher:
            out = task.forward(params, x.detach().clone().requires_grad_(), buffers=buffers, train=train)[0]
        loss = task.mean_loss(out, y) * len(x)
        found = [passed.z for passed in watcher.passed]
        deltas = torch.autograd.grad(loss, found, allow_unused=True) if found else ()
    complete = []
    for i, (passed, delta) in enumerate(zip(watcher.passed, deltas, strict=True)):
        follower, slope = watcher.links.get(i, (None, None))
        complete.append(
            replace(
                passed,
                z=passed.z.detach(),
                delta=torch.zeros_like(passed.z) if delta is None else delta,
                slope=slope if follower == i + 1 else None,
            )
        )
    return [passed for passed in complete if watcher.uses[passed.weight] == 1]


def probe(task: Task, n: int, rng: Stream) -> tuple[Tensor, Tensor]:
    """Made-up examples, no two of whose numbers are the same, and targets for them."""
    like = next(iter(task.params.values()))
    size, generator = math.prod(task.spec.shape), rng.generator()
    spaced = torch.linspace(-math.sqrt(3), math.sqrt(3), n * size, dtype=torch.float64)  # of variance 1
    x = spaced[torch.randperm(n * size, generator=generator)].reshape(n, *task.spec.shape)
    if task.spec.classes is None:
        y = torch.randn(n, task.spec.targets, generator=generator, dtype=torch.float64).to(like)
    else:
        y = torch.randint(task.spec.classes, (n,), generator=generator).to(like.device)
    return x.to(like), y


def find_layers(
    task: Task, params: Params, rng: Stream, *, buffers: Params | None = None, train: bool = False
) -> tuple[Tensor, list[Passed]]:
    """Made-up examples, and the linear layers that they pass; each `slope` is checked against the true derivative.

    Where the module does more than the watched operations say, as with a connection that skips a layer, the derivative
    at z does not follow from that at the next layer, and the slope is dropped.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), DataSpec((2,), classes=3))
        >>> _, (first, last) = find_layers(task, task.params, Stream.from_seed(0))
        >>> first.slope is not None, last.slope is not None
        (True, False)
    """
    x, y = probe(task, 4, rng)
    layers = pass_through(task, params, x, y, buffers=buffers, train=train)
    checked = []
    for i, here in enumerate(layers):
        right, after = False, layers[i + 1] if i + 1 < len(layers) else None
        if here.slope is not None and after is not None and after.x.shape[1] == here.z.shape[1]:
            expected = here.slope(after.x) * (after.delta @ params[after.weight])
            known = expected.isfinite()
            right = bool((expected - here.delta)[known].norm() <= 1e-3 * here.delta.norm())
        checked.append(here if right else replace(here, slope=None))
    return x, checked


def places_of_inputs(x: Tensor, entering: Tensor) -> Tensor | None:
    """Where each number that enters a layer stands in the flat input, if the layer is fed by a mere rearrangement.

    Args:
        x: inputs without equal numbers, as from `probe`, (n, …).
        entering: what they became at the layer, (n, width).

    Returns:
        Places (width,), or `None` when the layer sees something else than the input's own numbers.

    Example:
        >>> places_of_inputs(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 1.0, 2.0]]))
        tensor([2, 0, 1])
        >>> places_of_inputs(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 1.0, 2.5]])) is None
        True
    """
    flat = x.reshape(len(x), -1)
    if entering.shape != flat.shape:
        return None
    places = torch.empty_like(entering[0], dtype=torch.long)
    places[entering[0].argsort()] = flat[0].argsort()
    return places if entering.equal(flat[:, places]) else None


def rearranged(entering: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inputs from what enters a layer that is fed by them: `places_of_inputs` undone.

    Args:
        entering: (n, width).
        places: as from `places_of_inputs`, (width,).
        shape: of one input.

    Example:
        >>> rearranged(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([2, 0, 1]), (3, 1)).flatten()
        tensor([1., 2., 3.])
    """
    return entering[:, places.argsort()].reshape(len(entering), *shape)


def works_alone(task: Task, params: Params, rng: Stream, *, buffers: Params | None = None, train: bool = False) -> bool:
    """Whether an example's way through the module is the same in any company, unlike with train-mode BatchNorm."""
    x, _ = probe(task, 2, rng)
    try:
        with torch.no_grad():
            together, alone = (
                torch.cat([task.forward(params, part, buffers=buffers, train=train)[0] for part in x.split(size)])
                for size in (2, 1)
            )
    except (RuntimeError, ValueError):
        return False
    return bool((together - alone).norm() <= 1e-3 * together.norm())
