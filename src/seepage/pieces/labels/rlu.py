"""RLU.

Chen and Vikalo, 2024, "Recovering labels from local updates in federated learning"
(https://arxiv.org/abs/2405.00955).

The expected update of the output layer is linear in the label counts, with the model's confidence in wrong classes as
coefficients; local training is simulated to follow that confidence over the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.engine.sweep import flatten, unflatten
from seepage.pieces.labels.guess import LabelGuess, guess_from
from seepage.pieces.labels.head import Client, client_of, stand_ins
from seepage.pieces.labels.rounding import round_counts
from seepage.recipe import SGD, Recipe
from seepage.streams import Stream
from seepage.threat import Fact, View

__all__ = ["Rlu", "invert"]

POINTS = 17  # counts at which a class's expected update is tabulated
SHUFFLES = 8  # orders of batches that the table averages over
UNITS = 64  # stand-ins that show how active each unit before a head without bias is
LEVEL = 1e-3  # of a table's mean slope, or of its length: less is rounding


@dataclass(frozen=True)
class Rlu:
    """Least squares on the expected update of the head, by simulated training; for any optimiser.

    Starting from equal counts, each round simulates clients with the counts so far and corrects them: A·Δ = a − b,
    with ΣΔ = 0, where a and b are the counts that the observed and the simulated update would mean if predictions did
    not depend on labels, and A = 1 − (mean prediction on examples of each class)ᵀ. To read an update as counts, the
    client's optimiser is run on the head alone for a table of counts: per step and class, mean prediction − share of
    the class in a random batch.

    Args:
        rounds: of simulation and correction.
        draws: simulated clients per round.

    Note:
        The paper takes moments of the confidence from an auxiliary data set and follows them over the epochs by Monte
        Carlo. Ours are the simulation of whole clients, the table by which Adam and momentum are inverted, and the
        comparison with the simulated update, which cancels what both have in common. Stand-ins are public examples of
        the assumed label where they are granted, else normal numbers, which know nothing of classes: a trained model
        then keeps its secrets better than in the paper. Of a known defence, only by how much it shrinks the whole
        update is simulated. Full-batch steps of Adam show little more than which classes occur, whatever the method.
    """

    rounds: int = 3
    draws: int = 2

    def __call__(self, view: View, client: int, rng: Stream) -> LabelGuess:
        """The labels of the client at position `client`."""
        seen, n, recipe = client_of(view, client), view.count, _as_steps(view)
        lens = _lens_of(seen, rng / "features")
        start, observed = lens(seen.weight, seen.bias), lens(seen.weight_update, seen.bias_update)
        classes = len(start)
        counts = torch.full((classes,), n / classes, dtype=torch.float64)
        groups = counts[None]
        for number in range(self.rounds):
            assumed = round_counts(counts, n)
            runs = [_simulate(seen, lens, assumed, recipe, rng / number / draw) for draw in range(self.draws)]
            p = torch.stack([run.p for run in runs]).mean(0)  # (steps, classes)
            ks, expected = _table(start, lens.size * p, lens.size, n, recipe, rng / "table")
            read = invert(ks, expected, observed / _kept(runs))
            system = torch.cat([p.new_ones(1, classes), torch.eye(classes, dtype=p.dtype) - _confidence(runs, p).T])
            inverse = torch.linalg.pinv(system)  # the first row keeps the sum of the counts
            wrong = [read - invert(ks, expected, run.moved) for run in runs]
            groups = torch.stack([assumed + inverse @ torch.cat([p.new_zeros(1), each]) for each in wrong])
            counts = groups.mean(0)
        return guess_from(counts, n, groups.std(0) / self.draws**0.5 if self.draws > 1 else None)


def invert(ks: Tensor, expected: Tensor, update: Tensor) -> Tensor:
    """The counts at which a table of expected updates gives the observed one, by linear interpolation.

    Args:
        ks: counts, ascending, (points,).
        expected: update of each class at each count, falling with it, (points, classes).
        update: observed, (classes,).

    Returns:
        (classes,); beyond the table its last slope is followed as far as the table is long. Where the table ends level,
        as for a step of Adam, which is the same for one example as for many, it is the count closest to its middle.

    Example:
        >>> ks, expected = torch.tensor([0.0, 2.0, 4.0]), torch.tensor([[1.0], [0.0], [-2.0]])
        >>> [invert(ks, expected, torch.tensor([u])).item() for u in (0.5, -1.0, -3.0)]
        [1.0, 3.0, 5.0]
        >>> sign = torch.tensor([[1.0], [-1.0], [-1.0]])
        >>> round(invert(ks, sign, torch.tensor([-1.0000001])).item(), 2)
        2.0
    """
    falling = expected.cummin(0).values.T.contiguous()  # (classes, points)
    # Followed along a level end, the last digits of an update would be many examples.
    length = falling[:, 0] - falling[:, -1]
    steps = falling.diff().abs() / ks.diff()
    level = steps <= LEVEL * (length / (ks[-1] - ks[0]))[:, None]
    lowest = torch.where(level[:, -1], falling[:, -1] + LEVEL * length, -torch.inf)
    highest = torch.where(level[:, 0], falling[:, 0] - LEVEL * length, torch.inf)
    update = update.clamp(lowest, highest)
    right = torch.searchsorted(-falling, -update[:, None]).clamp(1, len(ks) - 1)
    high, low = falling.gather(1, right - 1), falling.gather(1, right)
    flat = high <= low
    share = torch.where(flat, 0.5, (high - update[:, None]) / torch.where(flat, 1, high - low))
    found = torch.lerp(ks[right - 1], ks[right], share)[:, 0]
    return found.clamp(-float(ks[-1]), 2 * float(ks[-1]))


@dataclass(frozen=True, eq=False)
class _Lens:
    """How the update of the head is seen as one number per class.

    The bias as it is; else the mean row of the weight, each unit with the sign of its mean activity. Both SGD and Adam
    then move what is seen by what they make of `size` × (prediction − label).
    """

    signs: Tensor | None
    size: float

    def __call__(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.signs is None:
            assert bias is not None
            return bias.detach().cpu().double()
        return (weight.detach().cpu().double() * self.signs).sum(-1) / self.signs.abs().sum().clamp(min=1)


@dataclass(frozen=True, eq=False)
class _Run:
    """A simulated client.

    Args:
        p: mean prediction at every step, (steps, classes).
        by_label: sum of the predictions on examples of each label, (classes, classes).
        visits: how many that were, (classes,).
        moved: its update through the lens, (classes,).
        sent: likewise, of what a known defence lets out.
    """

    p: Tensor
    by_label: Tensor
    visits: Tensor
    moved: Tensor
    sent: Tensor


def _as_steps(view: View) -> Recipe:
    """Local training as steps; a gradient is a step of length one."""
    if view.kind == "gradient":
        return Recipe(SGD(1.0), batch_norm=view.assumed_recipe.batch_norm)
    return view.recipe


def _lens_of(seen: Client, rng: Stream) -> _Lens:
    if seen.bias_update is not None:
        return _Lens(None, 1.0)
    activity = seen.features(stand_ins(seen.view, UNITS, rng)).mean(0).cpu().double()
    active = activity != 0
    return _Lens(activity.sign(), float(activity.abs()[active].mean()) if active.any() else 0.0)


def _simulate(seen: Client, lens: _Lens, counts: Tensor, recipe: Recipe, rng: Stream) -> _Run:
    """Train on stand-ins that have these labels."""
    view, task, like = seen.view, seen.view.task, seen.weight
    classes, n = len(counts), int(counts.sum())
    y = torch.arange(classes).repeat_interleave(counts)[torch.randperm(n, generator=(rng / "labels").generator())]
    x = _inputs(view, y, rng / "inputs")
    schedule = recipe.schedule(x, y.to(like.device), recipe.orders(n, rng / "orders"))
    theta, buffers = flatten(seen.params), seen.buffers
    start, slots = theta, recipe.optimiser.init(theta)
    means = []
    by_label, visits = torch.zeros(classes, classes, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    for t, (xs, ys) in enumerate(zip(schedule.x, schedule.y, strict=True)):
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            out, buffers = task.forward(unflatten(theta, seen.params), xs, buffers=buffers, train=recipe.train)
            (gradient,) = torch.autograd.grad(task.mean_loss(out, ys), theta)
        with torch.no_grad():
            p, at = out.softmax(-1).cpu().double(), ys.cpu()
            means.append(p.mean(0))
            by_label.index_add_(0, at, p)
            visits += torch.bincount(at, minlength=classes)
            theta, slots = recipe.optimiser.step(t, theta, gradient, slots)
    update = unflatten((start - theta).detach(), seen.params)
    weight, bias = f"{task.head}.weight", f"{task.head}.bias"
    moved, sent = (
        lens(each[weight], each.get(bias)) for each in (update, view.assumed_defence.on_update(update, None))
    )
    return _Run(torch.stack(means), by_label, visits, moved, sent)


def _kept(runs: list[_Run]) -> float:
    """By how much a known defence shrinks the update of the head, as clipping does."""
    moved, sent = torch.cat([run.moved for run in runs]), torch.cat([run.sent for run in runs])
    kept = float(moved @ sent) / max(float(moved @ moved), torch.finfo(moved.dtype).tiny)
    return kept if kept > 0 else 1.0


def _inputs(view: View, y: Tensor, rng: Stream) -> Tensor:
    if not view.knows(Fact.PUBLIC_DATA):
        return stand_ins(view, len(y), rng)
    public, generator = view.public, rng.generator()
    chosen = torch.zeros_like(y)
    for label in y.unique().tolist():
        own = (public.y.cpu() == label).nonzero().flatten()
        of_class = own if len(own) else torch.arange(len(public))
        here = y == label
        chosen[here] = of_class[torch.randint(len(of_class), (int(here.sum()),), generator=generator)]
    return public.x[chosen.to(public.x.device)]


def _confidence(runs: list[_Run], p: Tensor) -> Tensor:
    """Mean prediction on examples of each class, (classes, classes); for a class never visited that on all."""
    by_label = torch.stack([run.by_label for run in runs]).sum(0)
    visits = torch.stack([run.visits for run in runs]).sum(0)
    return (by_label + p.mean(0)) / (visits[:, None] + 1)


def _table(start: Tensor, push: Tensor, size: float, n: int, recipe: Recipe, rng: Stream) -> tuple[Tensor, Tensor]:
    """The expected update of what the lens sees, for classes with so many examples, (points,) and (points, classes).

    Args:
        start: what the lens sees of the head before training, (classes,).
        push: its gradient without labels at every step, (steps, classes).
        size: by how much a label pulls it up.
        n: number of examples.
        recipe: of local training.
        rng: for the order of examples.
    """
    ks = (n * torch.linspace(0, 1, POINTS, dtype=torch.float64) ** 2).round().unique()  # most classes are rare
    shares = torch.stack([_shares(ks, n, recipe, rng / i) for i in range(SHUFFLES)])  # (shuffles, steps, points)
    theta = start.expand(SHUFFLES, len(ks), len(start))
    slots = recipe.optimiser.init(theta)
    for t in range(len(push)):
        theta, slots = recipe.optimiser.step(t, theta, push[t] - size * shares[:, t, :, None], slots)
    return ks, (start - theta).mean(0)


def _shares(ks: Tensor, n: int, recipe: Recipe, rng: Stream) -> Tensor:
    """Share of the first 1, 2, … examples in every batch of one order, (steps, points)."""
    order = torch.randperm(n, generator=(rng / "stored").generator())
    ranks = order[recipe.orders(n, rng)]  # (epochs, n)
    inside = (ranks[..., None] < ks).double()
    parts = [batch.mean(1) for batch in inside.split(min(recipe.batch_size or n, n), 1)]  # (epochs, points) each
    return torch.stack(parts, 1).flatten(0, 1)
