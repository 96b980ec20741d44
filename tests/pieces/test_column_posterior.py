"""The Gaussian evidence of one round against the same written with whole vectors."""

from __future__ import annotations

import itertools

import pytest
import torch

from common.nets import numbers
from seepage.pieces.column_posterior import ColumnPosterior, NumberPosterior, Visits, added_variance, evidence
from seepage.recipe import Recipe


def test_weights_of_records_are_counted_over_all_orders() -> None:
    recipe, n = Recipe(batch_size=2, epochs=2), 3
    weights = []
    for first, second in itertools.product(itertools.permutations(range(n)), repeat=2):
        weights.append(sum(0.5 if order.index(0) < 2 else 1.0 for order in (first, second)))
    drawn = torch.tensor(weights, dtype=torch.float64)
    visits = Visits.of(recipe, n)
    assert visits.steps == 4
    assert visits.mean == pytest.approx(float(drawn.mean()))
    assert visits.variance == pytest.approx(float(drawn.var(correction=0)))


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(batch_size=4), Recipe(batch_size=100)])
def test_batches_of_one_size_leave_no_doubt_about_weights(recipe: Recipe) -> None:
    assert Visits.of(recipe, 12).variance == 0


@pytest.mark.parametrize("variance", [0.0, 0.03])
@pytest.mark.parametrize("values", [2, 3])
def test_evidence_is_the_one_of_a_dense_covariance(variance: float, values: int) -> None:
    n, d, noise = 4, 30, 0.01
    gradients = numbers(values, n, d)
    update = numbers(d, seed=1)
    belief = numbers(values, n, seed=2).softmax(0)
    visits = Visits(0.4, variance, 3)
    rows = gradients.reshape(-1, d)
    precision, pull = evidence(rows @ rows.T, rows @ update, belief, visits, noise)

    believed = (belief[..., None] * gradients).sum(0)  # (n, d)
    steps = (gradients[1:] - gradients[:1]).reshape(-1, d)
    floor = noise * visits.mean**2 * believed.square().sum(1).mean()
    around = believed - believed.mean(0)
    covariance = floor * torch.eye(d, dtype=torch.float64) + variance * around.T @ around
    left = update - visits.mean * believed.sum(0)
    inverse = torch.linalg.inv(covariance)
    torch.testing.assert_close(precision, visits.mean**2 * steps @ inverse @ steps.T)
    torch.testing.assert_close(pull, visits.mean * steps @ inverse @ left)


@pytest.mark.parametrize("values", [2, 4])
def test_full_batches_give_the_column_exactly(values: int) -> None:
    n, d = 6, 60
    visits = Visits.of(Recipe(), n)
    truth = torch.arange(n) % values
    gradients = numbers(values, n, d)
    update = gradients[truth, torch.arange(n)].mean(0)
    rows = gradients.reshape(-1, d)
    posterior = ColumnPosterior(values, n, rows)
    posterior.add(rows @ rows.T, rows @ update, visits, 1e-6)
    posterior.close_pass()
    assert posterior.answer(values).equal(truth)
    assert float(posterior.belief[truth, torch.arange(n)].min()) > 0.95
    torch.testing.assert_close(posterior.belief.sum(0), torch.ones(n, dtype=torch.float64))


def test_without_evidence_every_value_stays_as_likely_as_another() -> None:
    posterior = ColumnPosterior(3, 5, torch.zeros(1, dtype=torch.float64))
    posterior.close_pass()
    torch.testing.assert_close(posterior.belief, torch.full((3, 5), 1 / 3, dtype=torch.float64))


def test_noise_outside_of_the_span_of_records_has_its_variance_measured() -> None:
    n, d, deviation = 5, 20_000, 0.3
    gradients = numbers(2 * n, d)
    update = gradients[:n].sum(0) / 7 + deviation * numbers(d, seed=1)
    found = added_variance(gradients @ gradients.T, gradients @ update, float(update @ update), d)
    assert found == pytest.approx(deviation**2, rel=0.05)
    still = gradients[:n].sum(0)
    nothing = added_variance(gradients @ gradients.T, gradients @ still, float(still @ still), d)
    assert nothing < 1e-6 * float(still @ still)


@pytest.mark.parametrize("bent", [0.0, 0.05])
def test_full_batches_give_numbers_exactly_where_gradients_are_straight_and_nearly_where_they_bend(bent: float) -> None:
    n, d, passes = 6, 60, 12
    visits = Visits.of(Recipe(), n)
    base, slope, bend = (numbers(n, d, seed=seed) for seed in (1, 2, 3))

    def gradients(value: torch.Tensor) -> torch.Tensor:
        return base + value * slope + bent * value**2 * bend

    truth = numbers(n, seed=4)
    update = gradients(truth[:, None]).mean(0)
    values = torch.tensor([[-1.0], [1.0]])
    posterior = NumberPosterior(values, n, base, passes)
    for _ in range(passes):
        _, both = posterior.tables(gradients, values)
        rows = torch.cat(both)
        posterior.add(rows @ rows.T, rows @ update, visits, 1e-9)
        posterior.close_pass()
    torch.testing.assert_close(posterior.answer(1), truth, rtol=0, atol=1e-4 if bent == 0 else 0.01)
