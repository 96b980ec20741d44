"""LEAF's synthetic task: heterogeneous owners, a binary column that matters, and labels that a model can learn."""

from __future__ import annotations

import torch

from seepage.data.leaf_synthetic import leaf_synthetic


def test_sizes_are_those_of_the_paper_and_numbers_the_same_every_time() -> None:
    data = leaf_synthetic()
    assert data.train.x.shape == (20_000, 100)
    assert data.train_owner is not None
    assert data.train_owner.bincount().tolist() == [2000] * 10
    assert data.train.x.equal(leaf_synthetic().train.x)


def test_the_sensitive_column_is_a_fair_bit_of_every_owner() -> None:
    data = leaf_synthetic()
    bit = data.train.x[:, data.column("x1").start].reshape(10, 2000)
    assert set(bit.unique().tolist()) == {0.0, 1.0}
    assert (bit.mean(1) - 0.5).abs().max() < 0.05


def test_features_vary_as_a_power_of_their_number() -> None:
    data = leaf_synthetic(owners=1, each=4000)
    column = data.column("x50")
    values = column.scale * data.spec.pixels(data.train.x)[:, column.start]
    assert abs(float(values.std()) - 50**-0.6) < 0.01


def test_owners_have_models_of_their_own_that_are_nearly_linear() -> None:
    data = leaf_synthetic(owners=4)
    solutions = []
    for owner in range(4):
        held = data.train[owner * 2000 : (owner + 1) * 2000]
        assert held.y.unique().numel() >= 3
        x = torch.cat([held.x, torch.ones(len(held), 1)], 1)
        # A ridge keeps what an owner's rows do not vary in from growing.
        gram = x.T @ x + torch.eye(101)
        solutions.append(torch.linalg.solve(gram, x.T @ torch.nn.functional.one_hot(held.y, 5).float()))
        assert float(((x @ solutions[-1]).argmax(1) == held.y).float().mean()) > 0.75
    held = data.train[:2000]
    x = torch.cat([held.x, torch.ones(2000, 1)], 1)
    own, others = (float(((x @ w).argmax(1) == held.y).float().mean()) for w in solutions[:2])
    assert others < own - 0.2
