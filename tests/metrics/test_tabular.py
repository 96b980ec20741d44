from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from seepage.metrics.score import score_tabular
from seepage.metrics.tabular import cells_found, exact_match, mae, majority_row, surest
from seepage.spec import DataSpec, Examples

# A number, a column of three categories, one of two values that is one feature, and another number.
MIXED = DataSpec((6,), classes=2, categories=((1, 4), (4, 5)))
ROWS = torch.tensor(
    [
        [0.0, 1.0, 0.0, 0.0, 1.0, 5.0],
        [0.2, 1.0, 0.0, 0.0, 0.0, 6.0],
        [9.0, 0.0, 1.0, 0.0, 1.0, 7.0],
        [0.1, 0.0, 0.0, 1.0, 1.0, 8.0],
    ]
)


def test_mae_equals_numpy() -> None:
    rng = torch.Generator().manual_seed(0)
    guess, truth = torch.randn(4, 7, generator=rng), torch.randn(4, 7, generator=rng)
    theirs = [float(np.abs(truth[i].numpy() - guess[i].numpy()).mean()) for i in range(4)]
    assert mae(guess, truth).tolist() == pytest.approx(theirs, rel=1e-6)


def test_tolerance_is_inclusive() -> None:
    truth = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    guess = truth + torch.tensor([[0.0, 0.25, -0.25, 0.5]])
    assert exact_match(guess, truth, 0.25).item() == 0.75
    assert exact_match(guess, truth, 0.0).item() == 0.25


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_found(value: float) -> None:
    truth = torch.zeros(2, 2)
    guess = torch.tensor([[0.0, value], [0.0, 0.0]])
    assert mae(guess, truth).isnan().tolist() == [True, False]
    assert exact_match(guess, truth).tolist() == [0.5, 1.0]


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(1, 3\); pair them"):
        mae(torch.zeros(2, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="at least 0, got -1"):
        exact_match(torch.zeros(1, 3), torch.zeros(1, 3), -1)


def test_cells_are_columns_and_not_features() -> None:
    guess = ROWS.clone()
    guess[0] = torch.tensor([0.3, 0.4, 0.3, 0.3, 0.6, 5.4])  # all but the last number
    guess[1, 1:4] = torch.tensor([0.0, 0.0, 1.0])  # another category: two of three features, and one cell
    guess[2, 0] = math.nan
    found = cells_found(guess, ROWS, MIXED)
    assert found.tolist() == [[True, True, True, False], [True, False, True, True], [False] * 4, [True] * 4]


def test_no_constant_row_has_more_cells_than_the_majority_row() -> None:
    draw = torch.Generator().manual_seed(0)
    best = cells_found(majority_row(ROWS, MIXED).expand_as(ROWS), ROWS, MIXED).sum()
    assert int(best) == 3 + 2 + 3 + 1
    for _ in range(200):
        which = torch.randint(4, (6,), generator=draw)
        row = ROWS[which, torch.arange(6)]
        assert cells_found(row.expand_as(ROWS), ROWS, MIXED).sum() <= best


def test_the_surest_cells_are_half_of_each_kind() -> None:
    certainty = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    chosen = surest(certainty, MIXED)
    for columns in ([1, 2], [0, 3]):
        kept, left = certainty[:, columns][chosen[:, columns]], certainty[:, columns][~chosen[:, columns]]
        assert (len(kept), len(left)) == (5, 5)
        assert kept.min() > left.max()


def test_scores_of_cells_follow_the_rows_into_their_order() -> None:
    guess = ROWS.flip(0).clone()
    guess[0, 0] = 99.0  # of the last true row
    certainty = torch.ones(4, 4)
    certainty[0, 0] = 0.0
    truth = Examples(ROWS, torch.tensor([0, 1, 0, 1]))
    scores = {(s.metric, s.item): s.value for s in score_tabular(guess, None, truth, MIXED, certainty=certainty).scores}
    assert [scores["cell_accuracy", str(i)] for i in range(4)] == [1.0, 1.0, 1.0, 0.75]
    assert [scores["category_accuracy", str(i)] for i in range(4)] == [1.0] * 4
    assert scores["number_accuracy", "3"] == 0.5
    assert scores["rows_found", "all"] == 0.75
    assert scores["sure_cell_accuracy", "all"] == 1.0


def test_of_numbers_alone_every_feature_is_a_cell() -> None:
    guess = ROWS.clone()
    guess[0, :3] += 0.4
    scored = score_tabular(guess, None, Examples(ROWS, torch.zeros(4)), DataSpec((6,)))
    scores = {(s.metric, s.item): s.value for s in scored.scores}
    assert [scores["cell_accuracy", str(i)] for i in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert scores["column_count", "all"] == 6
    assert ("number_accuracy", "0") not in scores  # it would be the same again


def test_public_means_are_held_against_the_same_cells() -> None:
    public = Examples(ROWS[:1], torch.zeros(1))
    scored = score_tabular(ROWS, None, Examples(ROWS, torch.zeros(4)), MIXED, public)
    found = [s.value for s in scored.scores if s.metric == "cell_accuracy_of_public_mean"]
    assert found == cells_found(ROWS[:1].expand_as(ROWS), ROWS, MIXED).double().mean(1).tolist()


def test_a_row_alone_is_not_its_own_guess() -> None:
    scored = score_tabular(ROWS[:1], None, Examples(ROWS[:1], torch.zeros(1)), MIXED)
    assert not any(s.metric.endswith("_of_majority") for s in scored.scores)


def test_examples_of_two_axes_have_no_columns() -> None:
    series = torch.zeros(2, 3, 4)
    scored = score_tabular(series, None, Examples(series, torch.zeros(2)), DataSpec((3, 4)))
    assert {s.metric for s in scored.scores} == {"mae", "exact_match", "relative_error"}
