"""What enters a linear layer, computed from one client's gradient without optimisation.

For one example the gradient of a linear layer z = W·x + b is δ·xᵀ with δ = ∂L/∂z = ∇b, from which x follows
(geiping2020, Proposition 3.1, after phong2018). For a batch it is Σ δᵢ·xᵢᵀ, and a unit that only one of the examples
switches on still gives that example away.

Everything here is computed in double precision, whatever the gradient was computed in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from seepage.engine.minimise import Status
from seepage.finding import Finding
from seepage.pieces.linear import Passed, pass_through, rearranged
from seepage.task import Params, Task
from seepage.threat import View

__all__ = [
    "Entered",
    "agreeing_rows",
    "answer",
    "deltas_by_label",
    "input_of_layer",
    "inputs_of_softmax",
    "of_client",
    "unexplained",
    "walk_down",
]


def of_client(params: Params, client: int) -> Params:
    """One client's tensors out of those of all.

    Example:
        >>> of_client({"bias": torch.tensor([[1.0], [2.0]])}, 1)
        {'bias': tensor([2.])}
    """
    return {name: p[client] for name, p in params.items()}


def input_of_layer(weight: Tensor, delta: Tensor) -> Tensor | None:
    """The x that explains the gradient δ·xᵀ of a weight best: x = δᵀG / δᵀδ, exactly the input for one example.

    Args:
        weight: gradient G of the weight, (units, width).
        delta: derivative δ at the layer's output, that is the gradient of its bias, (units,).

    Returns:
        (width,) in double precision; `None` when every derivative is zero, and the input leaves no trace.

    Example:
        >>> delta, x = torch.tensor([0.5, 0.0, -2.0]), torch.tensor([3.0, 1.0])
        >>> input_of_layer(torch.outer(delta, x), delta)
        tensor([3., 1.], dtype=torch.float64)
    """
    largest = float(delta.abs().max()) if delta.numel() else 0.0
    if largest == 0:
        return None
    unit = delta.double() / largest  # squares of what a deep sigmoid network leaves would underflow
    return unit @ (weight.double() / largest) / (unit @ unit)


def walk_down(
    layers: Sequence[Passed], gradient: Params, params: Params, x: Tensor, delta: Tensor
) -> tuple[Tensor, float] | None:
    """From what entered the last of several linear layers to what entered the first (the proof of Proposition 3.1).

    δ of a layer is σ'(z) ⊙ Wᵀδ of the layer above, where σ'(z) follows from the activation's output, which is what
    entered the layer above.

    Args:
        layers: one after another, each but the last with a slope.
        gradient: of one client.
        params: of the same client.
        x: what entered the last layer, (width,).
        delta: derivative at its output, (units,).

    Returns:
        What entered the first layer, (width,), in double precision, and the share of the layers' gradients that inputs
        and derivatives on the way leave unexplained; `None` where a layer passes no derivative on.

    Example:
        >>> from torch import nn
        >>> from seepage.pieces.linear import find_layers
        >>> from seepage.spec import DataSpec
        >>> from seepage.streams import Stream
        >>> net = nn.Sequential(nn.Linear(3, 8, bias=False), nn.Tanh(), nn.Linear(8, 2)).double()
        >>> task, secret = Task(net, DataSpec((3,), classes=2)), torch.tensor([[0.1, 0.7, -0.2]]).double()
        >>> _, layers = find_layers(task, task.params, Stream.from_seed(0))
        >>> seen = task.gradient(task.params, secret, torch.tensor([1]))
        >>> features = input_of_layer(seen["2.weight"], seen["2.bias"])
        >>> x, _ = walk_down(layers, seen, task.params, features, seen["2.bias"])
        >>> bool((x - secret[0]).norm() < 1e-10)
        True
    """
    x, delta = x.double(), delta.double()
    top = gradient[layers[-1].weight].double()
    missed, whole = (top - torch.outer(delta, x)).norm() ** 2, top.norm() ** 2
    for below, above in reversed(list(itertools.pairwise(layers))):
        assert below.slope is not None
        observed = gradient[below.weight].double()
        through = below.slope(x) * (params[above.weight].double().T @ delta)
        known = through.isfinite()  # the rows whose output says how steep the activation was; one is enough
        entered = input_of_layer(observed[known], through[known])
        if entered is None:
            return None
        missed = missed + (observed[known] - torch.outer(through[known], entered)).norm() ** 2
        whole = whole + observed[known].norm() ** 2
        length = entered @ entered
        # The observed gradient says the same without the errors that add up on the way.
        x, delta = entered, observed @ entered / length if length > 0 else through.nan_to_num()
    return x, math.sqrt(float(missed / whole)) if whole > 0 else 0.0


def inputs_of_softmax(
    weight: Tensor, value: Tensor, shift: Tensor | None = None, tolerance: float = 1e-6
) -> list[tuple[Tensor, Tensor]]:
    """All inputs of an unbiased last layer that give this gradient under softmax and cross-entropy.

    The gradient (p − onehot(y))·xᵀ tells x = c·v up to the scale c; but the prediction p depends on c through the
    logits W·x, so that c solves c·(1 − p_y(c)) = −(the y-th entry of the other factor), one equation per label y.

    Args:
        weight: gradient of the weight, (classes, width).
        value: the weight W itself, (classes, width).
        shift: a bias that is not trained, (classes,).
        tolerance: largest relative mismatch of the gradient at which a solution counts.

    Returns:
        Pairs of input (width,) and derivative p − onehot(y), (classes,); more than one where the gradient does not
        tell, as for two classes, where (x, 0) and (−x, 1) give the same.

    Example:
        >>> value, x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]), torch.tensor([0.5, 2.0])
        >>> delta = (value @ x).softmax(0) - torch.tensor([1.0, 0.0, 0.0])
        >>> [(found, _)] = inputs_of_softmax(torch.outer(delta, x), value)
        >>> [round(v, 4) for v in found.tolist()]
        [0.5, 2.0]
    """
    left, scale, right = torch.linalg.svd(weight.double(), full_matrices=False)
    if float(scale[0]) == 0:
        return []
    offset = torch.zeros(len(value), dtype=torch.float64, device=value.device) if shift is None else shift.double()
    found = []
    for sign in (1.0, -1.0):
        u, v = sign * scale[0] * left[:, 0], sign * right[0]
        slope = value.double() @ v  # logits are c·slope + offset
        y = int(u.argmin())
        if float(u[y]) >= 0 or float(u.sum() - u[y]) <= 0:
            continue
        onehot = functional.one_hot(torch.tensor(y), len(u)).to(u)
        for c in _roots(slope - slope[y], offset - offset[y], y, float(-u[y])):
            delta = (c * slope + offset).softmax(0) - onehot
            x = input_of_layer(weight, delta)  # c·v, but zero where the gradient is, as after ReLU
            if x is not None and float((c * delta - u).norm()) <= tolerance * float(scale[0]):
                found.append((x, delta))
    return found


def _roots(slope: Tensor, offset: Tensor, y: int, target: float) -> list[float]:
    """All c > 0 with c·(1 − p_y(c)) = target, bracketed on a grid and found by Newton steps kept in their bracket.

    Args:
        slope: of the logits in c, less that of y, (classes,).
        offset: the logits at c = 0, less that of y, (classes,).
        y: the label.
        target: above zero.
    """
    others = torch.arange(len(slope), device=slope.device) != y
    rates, base = slope[others], offset[others]

    def excess(c: Tensor) -> Tensor:  # 1 − p_y is the sigmoid of the others' log-sum-exp, without cancellation
        return c * torch.logsumexp(c[..., None] * rates + base, -1).sigmoid() - target

    # 1 − p_y is at most 1, so that no solution lies below the target.
    grid = target * torch.logspace(-1e-9, 9, 4000, dtype=torch.float64, device=slope.device)
    above = excess(grid) > 0
    roots = []
    for i in (above[1:] != above[:-1]).nonzero().flatten().tolist():
        low, high, rising = grid[i], grid[i + 1], bool(above[i + 1])
        c = (low + high) / 2
        for _ in range(200):
            with torch.enable_grad():
                at = c.detach().requires_grad_()
                value = excess(at)
                (derivative,) = torch.autograd.grad(value, at)
            value = value.detach()
            low, high = (low, c) if bool(value > 0) == rising else (c, high)
            step = c - value / derivative
            previous, c = c, step if bool(low < step) and bool(step < high) else (low + high) / 2
            if bool((c - previous).abs() <= 1e-15 * c):
                break
        roots.append(float(c))
    return roots


def agreeing_rows(weight: Tensor, bias: Tensor, tolerance: float) -> list[tuple[Tensor, Tensor]]:
    """The inputs that units of a layer point to, G_i / ∇b_i, with the units that agree on each.

    Units that one example alone switches on all point to it; a unit that several switch on points to a mixture of
    them, with weights of its own.

    Args:
        weight: gradient G of the weight, (units, width).
        bias: gradient of the bias, (units,).
        tolerance: relative distance below which two units agree.

    Returns:
        Pairs of units and input (width,), from the most units to the least.

    Example:
        >>> bias, x = torch.tensor([1.0, 2.0, 0.0, 4.0]), torch.tensor([[1.0, 1.0], [1.0, 1.0], [7.0, 7.0], [3.0, 0.0]])
        >>> [(units.tolist(), found.tolist()) for units, found in agreeing_rows(bias[:, None] * x, bias, 1e-6)]
        [([0, 1], [1.0, 1.0]), ([3], [3.0, 0.0])]
    """
    eps = torch.finfo(weight.dtype).eps
    weight, bias = weight.double(), bias.double()
    alive = (bias.abs() > 100 * eps * bias.abs().max()).nonzero().flatten()
    alive = alive[bias[alive].abs().argsort(descending=True)]  # the least rounded first
    pointed = weight[alive] / bias[alive, None]
    near = torch.cdist(pointed, pointed) <= tolerance * pointed.norm(dim=1, keepdim=True)
    left, groups = torch.ones(len(alive), dtype=torch.bool, device=weight.device), []
    for i in range(len(alive)):
        if left[i]:
            members = near[i] & left
            members[i] = True  # where the distance to itself is not finite
            left &= ~members
            units = alive[members].sort().values
            x = input_of_layer(weight[units], bias[units])
            if x is not None and x.isfinite().all():
                groups.append((units, x))
    return sorted(groups, key=lambda group: -len(group[0]))


def deltas_by_label(
    task: Task,
    params: Params,
    x: Tensor,
    weight: str,
    *,
    buffers: Params | None = None,
    train: bool = False,
    rows: int = 4096,
) -> Tensor:
    """The derivative at a linear layer's output that every example would have with every label.

    Args:
        task: a classification.
        params: for one client.
        x: inputs, (n, …).
        weight: the layer's parameter.
        buffers: for one client.
        train: mode of the module.
        rows: most examples in one pass.

    Returns:
        (n, classes, units).

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(2, 3, bias=False), DataSpec((2,), classes=3))
        >>> deltas_by_label(task, task.params, torch.zeros(1, 2), "weight")[0, 1]
        tensor([ 0.3333, -0.6667,  0.3333])
    """
    classes = task.spec.classes
    assert classes is not None
    labels = torch.arange(classes, device=x.device)
    parts = []
    for part in x.split(max(1, rows // classes)):
        passed = pass_through(
            task,
            params,
            part.repeat_interleave(classes, 0),
            labels.repeat(len(part)),
            buffers=buffers,
            train=train,
        )
        (delta,) = (layer.delta for layer in passed if layer.weight == weight)
        parts.append(delta.reshape(len(part), classes, -1))
    return torch.cat(parts)


def unexplained(weight: Tensor, x: Tensor) -> float:
    """The share of a weight's gradient that no δ could make of these inputs: 0 all is explained, 1 nothing is.

    Args:
        weight: gradient of the weight, (units, width).
        x: inputs of the layer, (n, width).

    Example:
        >>> round(unexplained(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]])), 4)
        0.8
    """
    weight = weight.double()
    length = float(weight.norm())
    if length == 0 or len(x) == 0:
        return 1.0
    basis = torch.linalg.qr(x.double().T)[0]
    return float((weight - weight @ basis @ basis.T).norm()) / length


@dataclass(frozen=True, eq=False)
class Entered:
    """What is said about one client: what entered a linear layer for each example that was found.

    Args:
        x: (found, width), at most as many as the client has examples.
        labels: of the same examples, (found,); `None` where they were not looked for.
        objective: how much of what was observed stays unexplained; 1 where nothing was found.
    """

    x: Tensor
    labels: Tensor | None = None
    objective: float = 1.0


def answer(view: View, layer: Passed, places: Tensor | None, entered: Sequence[Entered]) -> Finding:
    """What was found about all clients, as inputs where the layer is fed by them and as features elsewhere.

    Args:
        view: what was attacked.
        layer: the linear layer.
        places: of its numbers in the flat input, as from `places_of_inputs`; `None` for features.
        entered: one per client.

    Returns:
        Places without a guess hold NaN, and the label −1; a client without any has the status `NOT_REDUCED`.
    """
    like = view.update[layer.weight]
    clients, n = len(view.clients), view.count
    x = torch.full((clients, n, like.shape[-1]), math.nan, dtype=like.dtype, device=like.device)
    labels = torch.full((clients, n), -1, device=like.device)
    for i, one in enumerate(entered):
        x[i, : len(one.x)] = one.x.to(like)
        if one.labels is not None:
            labels[i, : len(one.labels)] = one.labels.to(like.device)
    objective = torch.tensor([one.objective for one in entered], dtype=like.dtype, device=like.device)
    known = all(one.labels is not None for one in entered)
    inputs = None
    if places is not None:
        inputs = rearranged(x.flatten(0, 1), places, view.task.spec.shape).unflatten(0, (clients, n))
    return Finding(
        inputs,
        labels if known else None,
        objective,
        torch.tensor([Status.REDUCED if len(one.x) else Status.NOT_REDUCED for one in entered], device=like.device),
        torch.ones_like(objective),
        features=x if places is None else None,
        layer=layer.path if places is None else None,
    )
