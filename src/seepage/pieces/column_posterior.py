"""What updates say about one column of a table whose other columns are known.

To first order a client's update is Σᵢ wᵢ gᵢ(vᵢ): the gradient of every record at the value v of its sensitive column,
times its weight. As v is one of a few values, that is linear in indicators sᵢᵥ of the value, exactly for a single step
on the full batch. In mini-batches the weights are not known: a record of a short last batch counts more than others,
and who is in it changes from round to round. Their deviations from the mean are therefore unknowns of their own in each
round, which are integrated out; all is Gaussian, so that this is one matrix per round, of as many rows as records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.recipe import Recipe

Fill = Callable[[Tensor], Tensor]
"""Puts values into the column of all records: (n, features), or one row for all of them."""

__all__ = ["ColumnPosterior", "NumberPosterior", "Visits", "added_variance", "evidence"]


@dataclass(frozen=True)
class Visits:
    """How much the gradient of one record counts in the sum that a client's update is.

    Args:
        mean: of the weight, over records and over the orders that a client may draw.
        variance: likewise; 0 where all batches are of one size.
        steps: of local training.

    Example:
        >>> Visits.of(Recipe(batch_size=4), 10)  # batches of 4, 4 and 2
        Visits(mean=0.3, variance=0.01, steps=3)
    """

    mean: float
    variance: float
    steps: int

    @classmethod
    def of(cls, recipe: Recipe, n: int) -> Visits:
        """Those that `recipe` gives to `n` records."""
        size = min(recipe.batch_size or n, n)
        sizes = [size] * (n // size) + [n % size] * (n % size > 0)
        mean = len(sizes) / n
        spread = sum((1 / one - mean) ** 2 * one / n for one in sizes) if len(set(sizes)) > 1 else 0.0
        return cls(recipe.epochs * mean, round(recipe.epochs * spread, 15), recipe.epochs * len(sizes))


def evidence(
    products: Tensor, along: Tensor, belief: Tensor, visits: Visits, noise: float, added: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What one round says about the indicators s of values 1, 2, …, as a Gaussian around the present belief.

    Args:
        products: between the records' gradients at each value, (values × n, values × n).
        along: of these gradients with the update over the learning rate, (values × n,).
        belief: probability of each value for each record, (values, n).
        visits: the weights of records.
        noise: variance of what the sum of gradients leaves open in every direction, over the mean square of one
            record's part.
        added: further variance in every direction, as it is.

    Returns:
        Precision ((values − 1) × n, …) and its product with the difference to the belief, ((values − 1) × n,).
    """
    k, n = belief.shape
    blocks = products.reshape(k, n, k, n)
    mixed = _total(belief[u][:, None, None] * blocks[u] for u in range(k)).movedim(1, 0)  # ⟨gᵢ as believed, gⱼ(v)⟩
    believed = _total(mixed[v] * belief[v] for v in range(k))
    cross = (mixed[1:] - mixed[:1]).movedim(0, 1).reshape(n, -1)  # ⟨gᵢ as believed, gⱼ(v) − gⱼ(0)⟩
    lifted = blocks[1:] - blocks[:1]
    steps = (lifted[:, :, 1:] - lifted[:, :, :1]).reshape((k - 1) * n, (k - 1) * n)
    seen = along.reshape(k, n)
    left = (belief * seen).sum(0) - visits.mean * believed.sum(1)
    left_steps = (seen[1:] - seen[:1]).reshape(-1) - visits.mean * cross.sum(0)
    floor = noise * visits.mean**2 * believed.diagonal().mean() + added
    if visits.variance > 0:
        # Woodbury; weights add up to the number of steps, so that their deviations have no common part.
        ridge = floor / visits.variance
        around = believed - believed.mean(0) - believed.mean(1, keepdim=True) + believed.mean()
        root = torch.linalg.cholesky(around + ridge * torch.eye(n).to(around))
        beside = torch.cat([cross - cross.mean(0), (left - left.mean())[:, None]], 1)
        beside = torch.linalg.solve_triangular(root, beside, upper=False)
        half, rest = beside[:, :-1], beside[:, -1]
        steps, left_steps = steps - half.T @ half, left_steps - half.T @ rest
    return steps * (visits.mean**2 / floor), left_steps * (visits.mean / floor)


def added_variance(products: Tensor, along: Tensor, square: float, directions: int) -> float:
    """Variance in each direction of what an update has outside of the span of all records' gradients.

    Training moves a model inside of that span alone, up to second order; noise that a client adds goes everywhere.

    Args:
        products: between the records' gradients at each value, (values × n, values × n).
        along: of these gradients with the update over the learning rate, (values × n,).
        square: of the update over the learning rate.
        directions: numbers in the update.

    Example:
        >>> gradients = torch.eye(2, 1000, dtype=torch.float64)
        >>> noise = torch.full((1000,), 0.1, dtype=torch.float64)
        >>> update = gradients.sum(0) + noise
        >>> round(added_variance(gradients @ gradients.T, gradients @ update, float(update @ update), 1000), 4)
        0.01
    """
    whole, seen = products.double(), along.double()
    whole = whole + 1e-4 * whole.diagonal().mean() * torch.eye(len(whole)).to(whole)  # records may be twins
    inside = float(seen @ torch.cholesky_solve(seen[:, None], torch.linalg.cholesky(whole))[:, 0])
    return max(square - inside, 0.0) / max(directions - len(whole), 1)


def _total(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    for part in rest:
        first = first + part
    return first


class ColumnPosterior:
    """The belief about a column: begun with every value equally likely, sharpened pass by pass."""

    def __init__(self, values: int, n: int, like: Tensor) -> None:
        self.belief = torch.full((values, n), 1 / values, dtype=like.dtype, device=like.device)
        self._shares = self.belief[:, 0].clone()  # of all records, as far as they are known
        self._clear()

    def _clear(self) -> None:
        size = (len(self.belief) - 1) * self.belief.shape[1]
        self._precision = self.belief.new_zeros(size, size)
        self._pull = self.belief.new_zeros(size)

    def tables(self, fill: Fill, values: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The records as they are believed to be, and as each of the values would have them."""
        return fill(self.belief.T @ values.to(self.belief)), [fill(value) for value in values]

    def answer(self, values: int) -> Tensor:
        """The likeliest of so many values for each record, (n,), each of which may stand in several combinations."""
        return self.belief.reshape(values, -1, self.belief.shape[1]).sum(1).argmax(0)

    def add(self, products: Tensor, along: Tensor, visits: Visits, noise: float, added: float = 0.0) -> None:
        """Take in one round."""
        precision, pull = evidence(products, along, self.belief, visits, noise, added)
        self._precision += precision
        self._pull += pull

    def close_pass(self) -> None:
        """Form the belief from the rounds taken in, and begin anew with them from there."""
        k, n = self.belief.shape
        shares = self._shares[1:]
        within = torch.linalg.inv(torch.diag(shares) - shares[:, None] * shares)  # of indicators of one record
        prior = torch.kron(within.contiguous(), torch.eye(n).to(within))
        before = self.belief[1:].reshape(-1)
        wanted = self._pull + self._precision @ before + prior @ shares.repeat_interleave(n)
        root = torch.linalg.cholesky(self._precision + prior)
        found = torch.cholesky_solve(wanted[:, None], root)[:, 0].reshape(k - 1, n)
        whole = torch.cat([1 - found.sum(0, keepdim=True), found]).clamp(0.01, 0.99)
        self.belief = whole / whole.sum(0)
        self._shares = self.belief.mean(1)
        self._clear()


class NumberPosterior:
    """The belief about a column of numbers, each with a Gaussian of its own, sharpened pass by pass.

    Gradients bend with the number, and those of a network with kinks jump. Between two numbers around the belief they
    are taken to be straight, so that how far a record is on the way from one to the other is an indicator like that of
    a value; from pass to pass the two come nearer to each other.
    """

    FIRST, LAST = 4.0, 0.05  # distances of the two, in deviations of the column

    def __init__(self, values: Tensor, n: int, like: Tensor, passes: int) -> None:
        """Begin with the mean everywhere; `values` are one deviation below it and one above, (2, 1)."""
        low, high = values.flatten().tolist()
        self._mean, self._deviation = (low + high) / 2, (high - low) / 2
        self._narrower = (self.LAST / self.FIRST) ** (1 / max(passes - 1, 1))
        self._apart = self.FIRST * self._deviation
        self.belief = torch.full((n,), self._mean, dtype=like.dtype, device=like.device)
        self._clear()

    def _clear(self) -> None:
        self._precision = self.belief.new_zeros(len(self.belief), len(self.belief))
        self._pull = torch.zeros_like(self.belief)

    def tables(self, fill: Fill, values: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The records as they are believed to be, and with all numbers lower and higher."""
        around = [self.belief + side * self._apart / 2 for side in (0, -1, 1)]
        here, *both = (fill(numbers[:, None]) for numbers in around)
        return here, both

    def answer(self, values: int) -> Tensor:
        """The likeliest number of each record, (n,)."""
        return self.belief

    def add(self, products: Tensor, along: Tensor, visits: Visits, noise: float, added: float = 0.0) -> None:
        """Take in one round."""
        halfway = torch.full_like(self.belief.expand(2, -1), 0.5)
        precision, pull = evidence(products, along, halfway, visits, noise, added)
        self._precision += precision
        self._pull += pull

    def close_pass(self) -> None:
        """Go where the rounds taken in point, no farther than between the two numbers, and begin anew from there."""
        prior = (self._apart / self._deviation) ** 2
        wanted = self._pull + prior * (self._mean - self.belief) / self._apart
        root = torch.linalg.cholesky(self._precision + prior * torch.eye(len(wanted)).to(wanted))
        step = torch.cholesky_solve(wanted[:, None], root)[:, 0]
        self.belief = self.belief + self._apart * step.clamp(-0.5, 0.5)
        self._apart *= self._narrower
        self._clear()
