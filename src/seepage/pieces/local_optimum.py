"""The model that a client would train alone, from what it was sent and what it answered: least squares.

Driouich, Xu, Neglia, Giroire and Thomas, 2023, "Local Model Reconstruction Attacks in Federated Learning and their
Uses" (https://arxiv.org/abs/2210.16205), Propositions 1 to 3.

Full-batch steps on a squared error are an affine map, whatever their number and learning rate. An update is then
Δ = W (θ − θ*) with an unknown matrix W (eq. 15): the client's optimum θ* is the model that it would leave alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import qr
from torch import Tensor

from seepage.finding import NotApplicable

__all__ = ["Optimum", "error_bound", "exact_optimum", "find_optimum", "fit_optimum"]

Matrix: TypeAlias = NDArray[np.float64]
Number: TypeAlias = int | float | Decimal | Fraction

WORST = 1e-3
"""Relative error beyond which an answer is refused."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """A client's own model, and how far to trust it.

    Args:
        theta: the model, (d,), float64.
        rounds: positions of the rounds that it was computed from.
        condition: how many times the system magnifies relative errors of the messages.
        error: estimate of the relative error of `theta`, from rounding in `find_optimum` and from noise in
            `fit_optimum`.
        unexplained: share of what was seen in all rounds that the fitted map leaves open; 0 if every answer fits it.
    """

    theta: Tensor
    rounds: tuple[int, ...]
    condition: float
    error: float
    unexplained: float


def find_optimum(sent: Tensor, update: Tensor, *, eps: float | None = None, worst: float = WORST) -> Optimum:
    """Proposition 1: the optimum from d + 1 rounds, exactly up to rounding.

    Read the other way round, eq. (15) is θ = W⁻¹ Δ + θ*: regressed on [Δ, 1], the models sent have θ* as their constant
    term. That is one linear system with d + 1 unknowns. Of more rounds than it takes, those are chosen that make the
    system best conditioned, by QR with pivoting.

    Args:
        sent: the global models, (rounds, d).
        update: sent − returned, or the gradients, (rounds, d).
        eps: relative rounding error of the messages; that of their type when absent.
        worst: largest relative error to answer with.

    Raises:
        NotApplicable: when the rounds are too few or too much alike.

    Note:
        The paper solves d systems for the rows of W and then W θ* = v: O(d⁴) operations, here O(d³). It takes the
        first d + 1 rounds; fedkit-learn the best of 10 000 random subsets.

    Example:
        >>> sent = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
        >>> w = torch.tensor([[0.5, 0.1], [0.1, 0.3]], dtype=torch.float64)
        >>> found = find_optimum(sent, (sent - torch.tensor([3.0, -2.0])) @ w)
        >>> [round(value, 10) for value in found.theta.tolist()]
        [3.0, -2.0]
    """
    _check_shapes(sent, update)
    eps = torch.finfo(sent.dtype).eps if eps is None else eps
    theta, delta = _numbers(sent), _numbers(update)
    d = theta.shape[1]
    _check_count(len(theta), d + 1)
    scale = float(np.abs(delta).max())
    if scale == 0:
        raise NotApplicable("expected updates that differ from zero, got none: such a client did not train")
    rows = np.column_stack([delta / scale, np.ones(len(delta))])  # (rounds, d + 1)
    chosen = np.sort(qr(rows.T, mode="r", pivoting=True)[1][: d + 1])
    system = rows[chosen]
    condition = float(np.linalg.cond(system))
    if not condition * eps <= worst:
        raise _too_alike(condition, eps, worst, d)
    around = theta.mean(0)  # what all models share would only cost digits
    solved = np.linalg.solve(system, theta[chosen] - around)  # W⁻¹ above θ*, (d + 1, d)
    optimum = around + solved[-1]
    # θ* = Σ c θ with Σ c Δ = 0 and Σ c = 1: errors e of the updates move it by W⁻¹ Σ c e.
    shares = np.linalg.solve(system.T, np.eye(d + 1)[-1])
    rounding = math.sqrt(d) * eps * float(np.abs(theta).max()) * float(np.linalg.norm(shares))
    error = rounding * float(np.linalg.norm(solved[:-1], 2)) / scale / _length(optimum)
    open_ = np.linalg.norm(theta - around - rows @ solved) / np.linalg.norm(theta - around)
    return Optimum(torch.from_numpy(optimum), tuple(chosen.tolist()), condition, error, float(open_))


def fit_optimum(sent: Tensor, update: Tensor, *, eps: float | None = None, worst: float = WORST) -> Optimum:
    """Proposition 3: the optimum from all rounds by least squares, for clients whose steps are noisy.

    Updates are regressed on the models sent (eq. 31), in this direction because the noise is in the updates; then
    W θ* = v. The estimated error is the standard error of that solution.

    Args:
        sent: the global models, (rounds, d).
        update: sent − returned, or the gradients, (rounds, d).
        eps: relative rounding error of the messages; that of their type when absent.
        worst: largest relative error from rounding to answer with; noise is not held against it.

    Raises:
        NotApplicable: when the rounds are too few or too much alike.

    Note:
        For its proof the paper uses other rounds for each row of W; here every row has them all.

    Example:
        >>> sent = torch.tensor([[-1.0], [0.0], [1.0], [2.0]], dtype=torch.float64)
        >>> noise = torch.tensor([[0.01], [-0.01], [-0.01], [0.01]])
        >>> found = fit_optimum(sent, 0.5 * (sent - 3.0) + noise)
        >>> round(float(found.theta), 3), round(found.error, 3)
        (3.0, 0.012)
    """
    _check_shapes(sent, update)
    eps = torch.finfo(sent.dtype).eps if eps is None else eps
    theta, delta = _numbers(sent), _numbers(update)
    rounds, d = theta.shape
    _check_count(rounds, d + 2)  # one more than there are unknowns shows the noise
    around, mean = theta.mean(0), delta.mean(0)
    centred = theta - around
    scale = float(np.abs(theta).max()) or 1.0
    condition = float(np.linalg.cond(np.column_stack([theta / scale, np.ones(rounds)])))
    if not condition * eps <= worst:
        raise _too_alike(condition, eps, worst, d)
    w = np.linalg.lstsq(centred, delta - mean, rcond=None)[0].T  # eq. (31), (d, d)
    inverse = np.linalg.pinv(w)
    optimum = around - inverse @ mean
    left = delta - mean - centred @ w.T
    noise = np.sqrt((left**2).sum(0) / (rounds - d - 1))  # per parameter
    leverage = float(np.sum(np.linalg.lstsq(centred.T, optimum - around, rcond=None)[0] ** 2))
    error = math.sqrt(1 / rounds + leverage) * float(np.linalg.norm(inverse * noise)) / _length(optimum)
    open_ = np.linalg.norm(left) / np.linalg.norm(delta - mean)
    return Optimum(torch.from_numpy(optimum), tuple(range(rounds)), condition, error, float(open_))


def exact_optimum(sent: Sequence[Sequence[Number]], returned: Sequence[Sequence[Number]]) -> list[Fraction]:
    """Proposition 1 in rational numbers, without any rounding: for messages with more digits than float64 has.

    Where all clients take part in all rounds, the models sent become so much alike that float64 cannot tell them
    apart. Digits that the messages never had are not brought back by this.

    Args:
        sent: the global models, (rounds, d), as `Decimal`, `Fraction`, `int` or `float`.
        returned: the client's answers, (rounds, d).

    Raises:
        NotApplicable: when the rounds are too few, or no d + 1 of them are independent.

    Note:
        Elimination without fractions (Bareiss, 1968). It takes seconds for d = 50; numbers grow with d.

    Example:
        >>> sent = [[Decimal(0)], [Decimal("1e-20")]]
        >>> returned = [[Decimal(1)], [1 + Decimal("5e-21")]]
        >>> exact_optimum(sent, returned)
        [Fraction(2, 1)]
    """
    theta = [[Fraction(value) for value in row] for row in sent]
    after = [[Fraction(value) for value in row] for row in returned]
    d = len(theta[0]) if theta else 0
    _check_count(len(theta), d + 1)
    # Columns of the unknowns: W⁻¹ (d of them), then θ*; columns of the right-hand side: θ itself.
    table = [
        _whole([*(one - other for one, other in zip(before, then, strict=True)), Fraction(1), *before])
        for before, then in zip(theta, after, strict=True)
    ]
    last = 1
    for k in range(d + 1):
        pivot = next((i for i in range(k, len(table)) if table[i][k]), None)
        if pivot is None:
            raise NotApplicable(
                f"expected {d + 1} rounds whose updates are independent of each other, got {k}: watch more rounds"
            )
        table[k], table[pivot] = table[pivot], table[k]
        top = table[k]
        for i in range(k + 1, len(table)):
            factor = table[i][k]
            table[i] = [(top[k] * value - factor * above) // last for value, above in zip(table[i], top, strict=True)]
        last = top[k]
    return [Fraction(value, last) for value in table[d][d + 1 :]]


def error_bound(
    *,
    lr: float,
    noise: float,
    smallest: float,
    size: float,
    steps: int,
    rounds: int,
    spread: float,
    d: int,
    delta: float = 0.05,
) -> float:
    """How far `fit_optimum` may be off at worst, with probability 1 − δ: eq. (26).

    Args:
        lr: learning rate (η).
        noise: standard deviation of a mini-batch gradient around the full one, per parameter (σ).
        smallest: eigenvalue of W.
        size: length of the optimum, ‖θ*‖.
        steps: local steps per round, E ⌈m/b⌉.
        rounds: observed, of which the proof gives each row of W its share (n_c).
        spread: smallest eigenvalue of the second moments of the models sent with a 1 appended (λ).
        d: number of parameters.
        delta: probability of being off by more (δ).

    Note:
        As printed. The proof's own union bound over rows has ln(2d/δ) in the place of ln(2/δ), and its gradients are
        independent, which those of an epoch without replacement are not.

    Example:
        >>> round(error_bound(lr=0.1, noise=1.0, smallest=0.2, size=1.0, steps=2, rounds=1000, spread=0.5, d=4), 3)
        1.491
    """
    spreading = steps * (d + 1 + math.log(2 / delta)) / (rounds * spread)
    return 2 * lr * noise * d / smallest * (size + 1) * math.sqrt(spreading)


def _check_shapes(sent: Tensor, update: Tensor) -> None:
    if sent.ndim != 2 or sent.shape != update.shape:
        raise ValueError(
            "expected `sent` and `update` of one shape (rounds, parameters), "
            f"got {tuple(sent.shape)} and {tuple(update.shape)}"
        )


def _check_count(rounds: int, needed: int) -> None:
    if rounds < needed:
        raise NotApplicable(
            f"expected at least {needed} observed rounds of the client, more than it has parameters, got {rounds}: "
            "other data would give the same answers; watch more rounds"
        )


def _too_alike(condition: float, eps: float, worst: float, d: int) -> NotApplicable:
    return NotApplicable(
        f"expected {d + 1} rounds that differ enough to be told apart, got a condition number of {condition:.1e}: "
        f"with messages rounded to {eps:.1e}, the relative error would be above {worst:g}; "
        "watch rounds in which other clients took part, or messages with more digits"
    )


def _numbers(tensor: Tensor) -> Matrix:
    numbers: Matrix = tensor.detach().cpu().double().numpy()
    return numbers


def _length(vector: Matrix) -> float:
    return float(np.linalg.norm(vector)) or 1.0


def _whole(row: list[Fraction]) -> list[int]:
    """The row times the smallest number that leaves no fractions; an equation stays the same."""
    common = math.lcm(*(value.denominator for value in row))
    return [value.numerator * (common // value.denominator) for value in row]
