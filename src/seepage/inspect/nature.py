"""What an update says about how it was made, before any attack and without the client's data.

Everything here is read off the messages: which layers moved, BatchNorm's counters, zeros, repeated values, ranks and
sizes. What is certain is said as such; the rest is a bound or a likeness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.capture import Exchange
from seepage.recipe import SGD, Recipe
from seepage.task import Params, Task

__all__ = ["Nature", "infer", "length_of", "mostly_adaptive"]

FEW = 256
"""Most distinct values of a tensor that counts as quantised."""

LARGE = 200
"""Entries from which on the values of a tensor are looked at as a sample."""

SPARSE = 0.2
"""Share of scattered zeros from which on an update counts as sparse."""

ALIKE = 1e-4
"""Relative distance up to which two lengths count as the same."""

LEVEL = 1.35
"""Root mean square of a tensor's entries in units of their median, up to which gradients count as divided by their own
sizes. Up to twenty steps of Adam leave 0.8 to 1.3, a hundred up to 1.6; plain steps leave 1.55 to 5, noise 1.48."""

EVEN = 8
"""How far the largest entries of two tensors may lie apart in such an update."""


@dataclass(frozen=True)
class Nature:
    """How an update was made, as far as it shows.

    Args:
        length: Euclidean, of the whole update.
        ulps: median size of the update in units of what rounding of the weights leaves; infinite for what was not
            rounded to weights.
        steps: how many local steps there were, where BatchNorm counted them; one where a gradient was sent.
        fewest_steps: how many there were at least.
        examples: how many the client says it has.
        fewest_examples: how many there are at least, from the rank of the first linear layer.
        counted_rank: whether that rank is less than the layer allows, so that it is a count rather than a limit.
        frozen: parameters that did not change at all.
        train_mode: whether BatchNorm normalised by batches; `None` where that does not show.
        dead: share of hidden units without any gradient.
        zeros: share of zeros between entries that are not zero, apart from whole rows and columns.
        levels: most distinct values in one tensor, where they are few; else `None`.
        signed: whether all entries of a tensor have the same size.
        half: the 16-bit type that all sent numbers fit into, if there is one.
        noise: standard deviation of noise that covers the update, or that its smallest directions hold; 0 where none
            shows.
        noisy: whether noise is all that shows.
        clipped: the length that it was clipped to, as far as that shows.
        momentum: whether steps were longer than the recipe's learning rate explains; `None` where that does not show.
        adaptive: whether all entries are of one order of magnitude in all tensors, as after steps of Adam, which
            divides gradients by their own sizes. Its first step is `signed` as well.
        largest: size of the largest entry: of an adaptive optimiser, the learning rates of all steps together.
    """

    length: float
    ulps: float = math.inf
    steps: int | None = None
    fewest_steps: int = 1
    examples: int | None = None
    fewest_examples: int = 0
    counted_rank: bool = False
    frozen: tuple[str, ...] = ()
    train_mode: bool | None = None
    dead: float = 0.0
    zeros: float = 0.0
    levels: int | None = None
    signed: bool = False
    half: str | None = None
    noise: float = 0.0
    noisy: bool = False
    clipped: float | None = None
    momentum: bool | None = None
    adaptive: bool = False
    largest: float = 0.0

    @property
    def sparse(self) -> bool:
        """Whether entries were left out."""
        return self.zeros >= SPARSE


def infer(
    sent: Exchange, exchange: Exchange, task: Task, recipe: Recipe | None = None, lengths: Sequence[float] = ()
) -> Nature:
    """Look at one update.

    Args:
        sent: as it was captured.
        exchange: the same after `arrange`.
        task: the module.
        recipe: how the client trains, if that was told.
        lengths: of the updates of the other clients of the same round.

    Example:
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(3, 2), DataSpec((3,), classes=2))
        >>> update = {"weight": torch.full((2, 3), 0.1), "bias": torch.zeros(2)}
        >>> one = Exchange(0, task.params, update, "update", {})
        >>> infer(one, one, task).frozen
        ('bias',)
    """
    update = exchange.update
    rounding = _rounding(sent, exchange)
    length = length_of(update)
    steps = _counted_steps(exchange)
    levels = [_levels(update[name], rounding[name]) for name in update]
    few = [count for count in levels if count is not None]
    fewest, counted = _rank(exchange, task, rounding)
    quantised = bool(few) and 2 * len(few) >= sum(int(u.count_nonzero()) >= LARGE for u in update.values())
    samples = [name for name, u in update.items() if u.dim() > 1 and int(u.count_nonzero()) >= LARGE // 2]
    signed = bool(samples) and all(_one_size(update[name], rounding[name]) for name in samples)
    zeros = _scattered_zeros(update, rounding)
    noise, noisy = _noise(update)
    changed = zeros >= SPARSE or quantised or signed
    adaptive = not noise and zeros < SPARSE and (signed or not quantised) and _adaptive(update)
    if not noise and not changed and not adaptive:
        noise = _noise_below(exchange, task, rounding, recipe)
    # Ranks of gradients are gone where they were changed entry by entry.
    bent = bool(noise) or changed or adaptive or (recipe is not None and not recipe.optimiser.linear)
    fewest_steps, momentum = _pace(exchange, task, recipe, steps)
    return Nature(
        length,
        _ulps(update, rounding, exchange.kind),
        steps,
        max(fewest_steps, steps or 1),
        exchange.examples,
        0 if bent else fewest,
        counted and not bent,
        tuple(name for name, u in update.items() if not u.any()),
        _train_mode(exchange, task),
        _dead_units(update, task),
        zeros,
        max(few) if quantised else None,
        signed,
        _half(sent),
        noise,
        noisy,
        _clipped(length, lengths),
        momentum,
        adaptive,
        max(map(_largest, update.values()), default=0.0),
    )


def _rounding(sent: Exchange, exchange: Exchange) -> dict[str, float]:
    """What the last bit of each tensor is worth: differences of weights are rounded as these are."""
    kinds = [t.dtype for t in sent.answer.values() if t.is_floating_point()]
    eps = max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float32).eps)
    whole = exchange.before if exchange.kind == "weights" else exchange.update
    return {name: eps * _largest(whole[name]) for name in exchange.update}


def _ulps(update: Params, rounding: dict[str, float], kind: str) -> float:
    sizes = [float(u.abs().median()) / rounding[name] for name, u in update.items() if u.any() and rounding[name] > 0]
    return median(sizes) if sizes and kind == "weights" else math.inf


def _counted_steps(exchange: Exchange) -> int | None:
    """BatchNorm counts its batches in train mode; a gradient is one step by its nature."""
    if exchange.kind == "gradient":
        return 1
    if exchange.buffers_after is None:
        return None
    counts = [
        int(after) - int(exchange.buffers_before[name])
        for name, after in exchange.buffers_after.items()
        if name.endswith("num_batches_tracked") and name in exchange.buffers_before
    ]
    return counts[0] if counts and counts[0] > 0 and len(set(counts)) == 1 else None


def _train_mode(exchange: Exchange, task: Task) -> bool | None:
    layers = [name for name, layer in task.module.named_modules() if isinstance(layer, _BatchNorm)]
    after, before = exchange.buffers_after, exchange.buffers_before
    if not layers or after is None:
        return None
    means = [f"{name}.running_mean" for name in layers]
    seen = [name for name in means if name in after and name in before]
    return any(not torch.equal(after[name], before[name]) for name in seen) if seen else None


def _dead_units(update: Params, task: Task) -> float:
    """Rows of hidden layers whose weights did not move; those of a frozen layer do not count."""
    dead, units = 0, 0
    for name, layer in task.module.named_modules():
        key = f"{name}.weight" if name else "weight"
        if name != task.head and isinstance(layer, nn.Linear | nn.Conv2d) and key in update and update[key].any():
            moved = update[key].flatten(1).any(1)
            dead, units = dead + int((~moved).sum()), units + len(moved)
    return dead / units if units else 0.0


def _scattered_zeros(update: Params, rounding: dict[str, float]) -> float:
    """Zeros where row and column have other entries: neither dead units nor black pixels explain them."""
    zeros, entries = 0, 0
    for name, u in update.items():
        if u.dim() < 2 or not u.any():
            continue
        matrix = u.flatten(1)
        inside = matrix[matrix.any(1)][:, matrix.any(0)]
        entries += inside.numel()
        smallest = float(inside.abs()[inside != 0].quantile(0.01)) if inside.numel() < 10_000_000 else math.inf
        # Entries that go down to the last bit say that the zeros were rounded, not chosen.
        if smallest > 4 * rounding[name]:
            zeros += int((inside == 0).sum())
    return zeros / entries if entries else 0.0


def _levels(u: Tensor, rounding: float) -> int | None:
    """Distinct values of a tensor, where they are few and well apart."""
    values = u.flatten()[u.flatten() != 0].double()
    if len(values) < LARGE // 2:
        return None
    gaps = values.sort().values.diff()
    tolerance = 4 * rounding
    count = 1 + int((gaps > tolerance).sum())
    spread = float(values.max() - values.min()) or 2 * float(values.abs().max())
    apart = spread > 20 * count * tolerance
    return count if count <= min(FEW, len(values) // 4) and apart else None


def _one_size(u: Tensor, rounding: float) -> bool:
    """Nine of ten entries: the first step of Adam, which is a sign, is shorter where the gradient is all but zero."""
    sizes = u[u != 0].abs().double()
    usual = sizes.median()
    return float(((sizes - usual).abs() <= 8 * rounding + 1e-3 * usual).double().mean()) >= 0.9


def _adaptive(update: Params) -> bool:
    """Entries of one size but for a few times, within tensors and between them."""
    sizes = [u[u != 0].abs().double() for u in update.values() if int(u.count_nonzero()) >= LARGE // 2]
    if len(sizes) < 2:
        return False
    largest = [float(of.max()) for of in sizes]
    level = median(float(of.square().mean().sqrt() / of.median()) for of in sizes)
    return level <= LEVEL and max(largest) <= EVEN * min(largest)


def _half(sent: Exchange) -> str | None:
    numbers = [t for t in sent.answer.values() if t.is_floating_point() and t.any()]
    for kind in (torch.float16, torch.bfloat16):
        if numbers and all(torch.equal(t, t.to(kind).to(t.dtype)) for t in numbers):
            return str(kind).removeprefix("torch.")
    return None


def _noise(update: Params) -> tuple[float, bool]:
    """Whether every large tensor looks like a sample of one and the same normal distribution, and its spread."""
    spreads = []
    for u in update.values():
        if u.numel() >= LARGE and u.any():
            if not _bell(u):
                return 0.0, False
            spreads.append(float(u.double().std()))
    if len(spreads) < 2 or max(spreads) > 1.3 * min(spreads):
        return 0.0, False
    return median(spreads), True


def _bell(u: Tensor) -> bool:
    """Whether the tails of a sample are those of a normal distribution."""
    values = u.flatten().double()
    values = values - values.mean()
    tails = float((values**4).mean() / values.var() ** 2) - 3
    return abs(tails) <= 0.3 + 4 * math.sqrt(24 / len(values))


def _first_linear(task: Task, update: Params) -> tuple[str, Tensor] | None:
    """The weight of the first layer of the module, if that is linear: its gradient is made of the inputs alone."""
    for name, layer in task.module.named_modules():
        if isinstance(layer, nn.Linear) and f"{name}.weight" in update:
            return f"{name}.weight", update[f"{name}.weight"]
        if next(layer.children(), None) is None and next(layer.parameters(), None) is not None:
            return None
    return None


def _rank(exchange: Exchange, task: Task, rounding: dict[str, float]) -> tuple[int, bool]:
    """The rank of the first linear layer's update: at most the number of examples, however many steps there were."""
    first = _first_linear(task, exchange.update)
    if first is None or not first[1].any():
        return 0, False
    name, weight = first
    values = torch.linalg.svdvals(weight.double())
    floor = max(4 * rounding[name] * math.sqrt(max(weight.shape)), 1e-6 * float(values[0]))
    rank = int((values > floor).sum())
    return rank, rank < len(values)


def _noise_below(exchange: Exchange, task: Task, rounding: dict[str, float], recipe: Recipe | None) -> float:
    """Noise under a signal: what is left in directions that the client's examples cannot fill."""
    if exchange.examples is None:
        return 0.0
    first = _first_linear(task, exchange.update)
    # A later layer is filled by every step anew; the first one by the examples alone.
    filled = {} if first is None else {first[0]: exchange.examples}
    if recipe is not None:
        steps = recipe.steps(exchange.examples)
        layers = [f"{n}.weight" for n, layer in task.module.named_modules() if isinstance(layer, nn.Linear)]
        filled = {**{name: exchange.examples * steps for name in layers if name in exchange.update}, **filled}
    for name, most in filled.items():
        weight = exchange.update[name]
        rows, columns = weight.shape
        if weight.dim() != 2 or most >= min(rows, columns) - 1 or not weight.any():
            continue
        left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
        rest = (left[:, most:] * values[most:]) @ right[most:]
        noise = float(values[most:].norm()) / math.sqrt((rows - most) * (columns - most))
        # Noise fills every direction. Many steps of Adam may, too; their rest has long tails, and none in dead units.
        filled_up = float(values[-1]) > 4 * rounding[name] * math.sqrt(max(rows, columns))
        if filled_up and noise > 8 * rounding[name] and _bell(rest) and not (weight == 0).all(1).any():
            return noise
    return 0.0


def _pace(exchange: Exchange, task: Task, recipe: Recipe | None, steps: int | None) -> tuple[int, bool | None]:
    """Fewest steps, and whether they were longer than told.

    The gradient of a bias before softmax is the mean of (probabilities − label), whose absolute sum is at most 2.
    """
    bias = None if task.head is None else exchange.update.get(f"{task.head}.bias")
    plain = recipe is not None and isinstance(recipe.optimiser, SGD) and recipe.sends != "gradient"
    if bias is None or not plain or recipe is None or not isinstance(recipe.optimiser, SGD):
        return 1, None
    fewest = math.ceil(float(bias.double().abs().sum()) / (2 * recipe.optimiser.lr) - 1e-3)
    if recipe.optimiser.momentum:
        return 1, True
    known = steps if steps is not None else recipe.steps(exchange.examples) if exchange.examples else None
    return max(1, fewest) if known is None else 1, None if known is None else fewest > known


def _clipped(length: float, others: Sequence[float]) -> float | None:
    """The length itself, where several clients share it or where it is a round number."""
    if length == 0:
        return None
    rounded = float(f"{length:.1e}")
    if abs(rounded - length) <= ALIKE / 5 * length:
        return rounded
    same = [other for other in others if abs(other - length) <= ALIKE * length]
    return length if len(same) >= 2 else None


def mostly_adaptive(natures: Sequence[Nature]) -> bool:
    """Whether most clients' updates look like those of an adaptive optimiser; a single one may by chance."""
    return 2 * sum(nature.adaptive for nature in natures) > len(natures)


def length_of(update: Params) -> float:
    """Of all tensors together, Euclidean."""
    return math.sqrt(math.fsum(float((u.double() ** 2).sum()) for u in update.values()))


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
