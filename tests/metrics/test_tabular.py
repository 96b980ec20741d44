from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from seepage.metrics.tabular import exact_match, mae


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
