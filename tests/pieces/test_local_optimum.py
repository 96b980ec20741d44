"""Propositions 1 to 3 of driouich2023 on drawn clients, with loops nobody can doubt in the place of training."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.nets import numbers, relative_error
from seepage.finding import NotApplicable
from seepage.local import local_update
from seepage.pieces.local_optimum import error_bound, exact_optimum, find_optimum, fit_optimum
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec
from seepage.task import Task


def client(d: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets and the optimum, by the normal equations."""
    x, y = numbers(rows, d, seed=seed), numbers(rows, seed=seed + 1)
    return x, y, torch.linalg.solve(x.T @ x, x.T @ y)


def updates(sent: Tensor, x: Tensor, y: Tensor, lr: float, steps: int) -> Tensor:
    """θ − θ after full-batch steps on the mean squared error, by a plain loop."""
    after = sent.clone()
    for _ in range(steps):
        after = after - lr * 2 / len(x) * (after @ x.T - y) @ x
    return sent - after


@settings(max_examples=60, deadline=None)
@given(
    d=st.integers(1, 12),
    more=st.integers(0, 10),
    steps=st.integers(1, 30),
    share=st.floats(0.05, 0.9),
    seed=st.integers(0, 10**6),
)
def test_one_round_more_than_parameters_gives_the_optimum(
    d: int, more: int, steps: int, share: float, seed: int
) -> None:
    x, y, optimum = client(d, 3 * d + 3, seed)
    lr = (
        share * len(x) / (2 * float(torch.linalg.eigvalsh(x.T @ x)[-1]))
    )  # up to the fastest step that never overshoots
    sent = numbers(d + 1 + more, d, seed=seed + 2)
    found = find_optimum(sent, updates(sent, x, y, lr, steps))
    error = relative_error(found.theta, optimum)
    assert error <= 10 * found.error + 1e-14  # it knows how far it may be off
    assert error <= 1e-9 or found.condition > 1e4
    assert len(set(found.rounds)) == d + 1
    assert found.unexplained <= 1e-8


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_clients_really_do_has_the_optimum_as_its_fixed_point(momentum: float, weight_decay: float) -> None:
    d, recipe = 4, Recipe(SGD(0.05, momentum, weight_decay), epochs=3)
    task = Task(nn.Linear(d, 1, bias=False).double(), DataSpec((d,)))
    x, y, _ = client(d, 20, 5)
    optimum = torch.linalg.solve(x.T @ x + weight_decay * len(x) / 2 * torch.eye(d, dtype=torch.float64), x.T @ y)
    sent = numbers(d + 1, d, seed=7)
    delta = torch.stack(
        [local_update(task, {"weight": t[None]}, recipe.schedule(x, y), recipe)["weight"][0] for t in sent]
    )
    assert relative_error(find_optimum(sent, delta).theta, optimum) < 1e-10


def test_gradients_do_as_well_as_updates() -> None:
    x, y, optimum = client(5, 20, 3)
    sent = numbers(6, 5, seed=9)
    gradients = 2 / len(x) * (sent @ x.T - y) @ x
    assert relative_error(find_optimum(sent, gradients).theta, optimum) < 1e-11


def test_rounds_are_chosen_by_what_they_add() -> None:
    x, y, optimum = client(3, 12, 0)
    alike = numbers(1, 3, seed=1) + 1e-9 * numbers(50, 3, seed=2)  # many rounds that say the same
    sent = torch.cat([alike, numbers(4, 3, seed=3)])
    found = find_optimum(sent, updates(sent, x, y, 0.1, 2))
    assert relative_error(found.theta, optimum) < 1e-10
    assert len([r for r in found.rounds if r < 50]) <= 1


def test_it_is_what_the_d_systems_of_the_paper_give() -> None:
    x, y, _ = client(4, 20, 11)
    sent = numbers(5, 4, seed=12)
    delta = updates(sent, x, y, 0.1, 3)
    design = torch.cat([sent, -torch.ones(5, 1, dtype=torch.float64)], 1)
    rows = [torch.linalg.solve(design, delta[:, i]) for i in range(4)]  # W and v, row by row: eq. (15)
    w, v = torch.stack([row[:-1] for row in rows]), torch.stack([row[-1] for row in rows])
    torch.testing.assert_close(find_optimum(sent, delta).theta, torch.linalg.solve(w, v), rtol=1e-9, atol=1e-11)


def test_float32_messages_give_as_many_digits_as_they_have() -> None:
    x, y, optimum = client(6, 30, 4)
    sent = numbers(12, 6, seed=5)
    delta = updates(sent, x, y, 0.1, 3)
    found = find_optimum(sent.float(), delta.float())
    assert found.theta.dtype == torch.float64
    assert 1e-9 < relative_error(found.theta, optimum) < 1e-4
    assert found.error > 1e-8


# What it refuses, and says.


def test_too_few_rounds_are_refused_with_their_number() -> None:
    with pytest.raises(NotApplicable, match=r"expected at least 6 observed rounds .* got 5"):
        find_optimum(numbers(5, 5), numbers(5, 5, seed=1))
    with pytest.raises(NotApplicable, match=r"expected at least 7 observed rounds .* got 6"):
        fit_optimum(numbers(6, 5), numbers(6, 5, seed=1))


def test_rounds_that_are_too_much_alike_are_refused_with_the_condition_number() -> None:
    x, y, _ = client(4, 20, 0)
    sent = numbers(1, 4) + 1e-15 * numbers(30, 4, seed=1)
    for solve in (find_optimum, fit_optimum):
        with pytest.raises(NotApplicable, match=r"condition number of [\d.]+e\+\d+"):
            solve(sent, updates(sent, x, y, 0.1, 2))


def test_a_client_whose_data_do_not_decide_the_model_is_refused() -> None:
    x, y = numbers(3, 5), numbers(3, seed=1)  # fewer rows than features
    sent = numbers(20, 5, seed=2)
    with pytest.raises(NotApplicable, match="condition number"):
        find_optimum(sent, updates(sent, x, y, 0.1, 2))


def test_a_client_that_does_not_train_is_refused() -> None:
    with pytest.raises(NotApplicable, match="did not train"):
        find_optimum(numbers(6, 5), torch.zeros(6, 5))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"got \(6, 5\) and \(6, 4\)"):
        find_optimum(numbers(6, 5), numbers(6, 4))


# Proposition 2: fewer rounds are not enough.


@settings(max_examples=30, deadline=None)
@given(d=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_d_rounds_fit_two_clients_with_different_optima(d: int, seed: int) -> None:
    """Sharper than the paper's Ω(d): whatever models were sent in d rounds, another client answers them the same."""
    x, y, optimum = client(d, 2 * d + 2, seed)
    sent = numbers(d, d, seed=seed + 2)
    h, v = x.T @ x / len(x), x.T @ y / len(x)
    # A direction in which the models sent do not differ; there the other client's loss may be curved in another way.
    normal = np.linalg.svd((sent - sent.mean(0)).numpy())[2][-1]
    n = torch.from_numpy(normal)
    other_h, other_v = h + torch.outer(n, n), v + (sent[0] @ n) * n
    # Data with these moments: as many rows as features.
    root = torch.linalg.cholesky(other_h)
    other_x, other_y = math.sqrt(d) * root.T, math.sqrt(d) * torch.linalg.solve(root, other_v)
    for lr in (0.01, 0.1):
        one, other = updates(sent, x, y, lr, 1), updates(sent, other_x, other_y, lr, 1)
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    apart = (torch.linalg.solve(other_h, other_v) - optimum).norm()
    gap = abs(float((sent[0] - optimum) @ n))
    assert float(apart) > 1e-3 * gap > 0
    # A round more in a new direction tells them apart.
    new = (sent[0] + n)[None]
    assert float((updates(new, x, y, 0.1, 1) - updates(new, other_x, other_y, 0.1, 1)).norm()) > 0.1


@pytest.mark.parametrize("d", [3, 6])
def test_the_hard_case_of_the_paper_shows_one_coordinate_a_round(d: int) -> None:
    h = torch.eye(d, dtype=torch.float64) - 0.5 * (torch.diag(torch.ones(d - 1), 1) + torch.diag(torch.ones(d - 1), -1))
    v = torch.zeros(d, dtype=torch.float64)
    v[0] = 0.5
    without = h.clone()
    without[-1], without[:, -1] = 0, 0  # the other client of section B.3
    theta = torch.zeros(d, dtype=torch.float64)
    for _ in range(d - 1):
        one, other = h @ theta - v, without @ theta - v
        assert torch.equal(one, other)
        theta = (theta - 0.5 * one) / 2  # the other clients' optimum is zero: they halve what they are sent
    assert not torch.equal(h @ theta - v, without @ theta - v)


# More digits.


def test_exact_arithmetic_has_no_error() -> None:
    w = [[Fraction(1, 2), Fraction(1, 7)], [Fraction(1, 7), Fraction(1, 3)]]
    optimum = [Fraction(22, 7), Fraction(-5, 9)]
    sent = [[Fraction(a), Fraction(b)] for a, b in ((0, 0), (0, 0), (1, 0), (0, 1))]  # the first round twice
    returned = [[t - sum(w[i][j] * (row[j] - optimum[j]) for j in range(2)) for i, t in enumerate(row)] for row in sent]
    assert exact_optimum(sent, returned) == optimum


def test_exact_arithmetic_agrees_with_floats() -> None:
    x, y, optimum = client(5, 20, 8)
    sent = numbers(6, 5, seed=9)
    returned = sent - updates(sent, x, y, 0.1, 3)
    exact = torch.tensor([float(value) for value in exact_optimum(sent.tolist(), returned.tolist())])
    assert relative_error(exact, optimum.float()) < 1e-6


def test_where_all_clients_take_part_in_all_rounds_digits_decide() -> None:
    """The global models then follow one smooth path, and 16 digits do not hold what tells them apart."""
    d, clients, rounds = 12, 3, 13
    data = [client(d, 3 * d, 10 * seed) for seed in range(clients)]
    with localcontext() as context:
        context.prec = 120
        moments = [(decimals(x.T @ x / len(x)), decimals(x.T @ y / len(x))) for x, y, _ in data]
        theta = [Decimal(0)] * d
        sent, returned = [], []
        for _ in range(rounds):
            answers = [step(theta, h, v) for h, v in moments]
            sent.append(theta)
            returned.append(answers[0])
            theta = [sum(values) / clients for values in zip(*answers, strict=True)]
        found = exact_optimum(sent, returned)
    h, v = (np.array([[float(a) for a in row] for row in moments[0][0]]), np.array([float(a) for a in moments[0][1]]))
    optimum = torch.from_numpy(np.linalg.solve(h, v))
    assert relative_error(torch.tensor([float(a) for a in found], dtype=torch.float64), optimum) < 1e-10
    before, after = (
        torch.tensor([[float(a) for a in row] for row in rows], dtype=torch.float64) for rows in (sent, returned)
    )
    with pytest.raises(NotApplicable, match="condition number"):
        find_optimum(before, before - after)


def decimals(tensor: Tensor) -> list:  # type: ignore[type-arg]
    return [decimals(row) if row.ndim else Decimal(float(row)) for row in tensor]


def step(theta: list[Decimal], h: list[list[Decimal]], v: list[Decimal]) -> list[Decimal]:
    gradient = [sum(a * t for a, t in zip(row, theta, strict=True)) - b for row, b in zip(h, v, strict=True)]
    return [t - Decimal("0.1") * g for t, g in zip(theta, gradient, strict=True)]


def test_exact_arithmetic_refuses_what_says_nothing_new() -> None:
    with pytest.raises(NotApplicable, match="expected at least 3 observed rounds"):
        exact_optimum([[0, 0], [1, 0]], [[1, 1], [1, 2]])
    with pytest.raises(NotApplicable, match="expected 3 rounds whose updates are independent"):
        exact_optimum([[0, 0], [1, 0], [2, 0]], [[1, 1], [1, 1], [1, 1]])


# Proposition 3: noise.


def noisy(rounds: int, seed: int = 0, noise: float = 0.05) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d = 4
    x, _, optimum = client(d, 20, 1)
    sent = numbers(rounds, d, seed=seed)
    w = 0.2 * x.T @ x / len(x)
    return sent, (sent - optimum) @ w + noise * numbers(rounds, d, seed=seed + 1), optimum, w


def test_the_error_falls_with_the_root_of_the_number_of_rounds() -> None:
    errors = {n: 0.0 for n in (50, 800, 12800)}
    for n in errors:
        for seed in range(10):
            sent, delta, optimum, _ = noisy(n, 10 * seed)
            errors[n] += relative_error(fit_optimum(sent, delta).theta, optimum) / 10
    assert 2 < errors[50] / errors[800] < 8
    assert 2 < errors[800] / errors[12800] < 8


def test_the_estimated_error_is_about_the_real_one() -> None:
    found = [(fit_optimum(*noisy(200, 10 * seed)[:2]), noisy(200, 10 * seed)[2]) for seed in range(20)]
    real = np.sqrt(np.mean([relative_error(one.theta, optimum) ** 2 for one, optimum in found]))
    said = np.sqrt(np.mean([one.error**2 for one, _ in found]))
    assert said == pytest.approx(real, rel=0.4)


def test_the_bound_of_the_paper_holds() -> None:
    for n in (100, 1000):
        sent, delta, optimum, w = noisy(n)
        moments = torch.cat([sent, torch.ones(n, 1).double()], 1)
        bound = error_bound(
            lr=1.0,
            noise=0.05,
            smallest=float(torch.linalg.eigvalsh(w)[0]),
            size=float(optimum.norm()),
            steps=1,
            rounds=n,
            spread=float(torch.linalg.eigvalsh(moments.T @ moments / n)[0]),
            d=4,
        )
        assert float((fit_optimum(sent, delta).theta - optimum).norm()) < bound


def test_without_noise_both_agree() -> None:
    sent, delta, optimum, _ = noisy(30, noise=0.0)
    for solve in (find_optimum, fit_optimum):
        assert relative_error(solve(sent, delta).theta, optimum) < 1e-11
        assert solve(sent, delta).unexplained < 1e-11


def test_noise_shows_as_what_stays_unexplained() -> None:
    sent, delta, _, _ = noisy(100)
    assert 0.05 < fit_optimum(sent, delta).unexplained < 0.9
    assert find_optimum(sent, delta).unexplained > 0.05
