"""Made-up regressions: the same in every run, and with something to tell clients apart by."""

from __future__ import annotations

import torch

from seepage.data import regression


def test_the_same_numbers_every_time() -> None:
    assert regression.gaussian_10().train.x.equal(regression.gaussian_10().train.x)
    assert regression.gaussian_10().train.x.dtype == torch.float64


def test_every_owner_has_rows_enough_and_a_model_of_its_own() -> None:
    for data in (regression.gaussian_10(), regression.gaussian_20(), regression.gaussian_50()):
        optima = []
        assert data.train_owner is not None
        for owner in data.train_owner.unique():
            held = data.train[data.train_owner == owner]
            assert torch.linalg.matrix_rank(held.x) == data.spec.shape[0]
            optima.append(torch.linalg.lstsq(held.x, held.y).solution[:, 0])
        assert torch.pdist(torch.stack(optima)).min() > 0.3


def test_rows_of_an_owner_are_stored_together() -> None:
    data = regression.gaussian(3, owners=4, each=7)
    assert data.train_owner is not None
    assert data.train_owner.tolist() == [owner for owner in range(4) for _ in range(7)]
    assert regression.gaussian_200().train.x.shape == (4000, 200)
