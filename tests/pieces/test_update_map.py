"""Algorithm 2 where its answer is known: a client whose answers are linear in the model."""

from __future__ import annotations

import torch

from common.nets import numbers
from seepage.pieces.update_map import Coordinates, UpdateMap
from seepage.streams import Stream


def test_coordinates_come_back_as_the_vectors_they_are_of() -> None:
    vectors = numbers(5, 200) + 3
    for centred in (True, False):
        space = Coordinates.of(vectors, centred)
        torch.testing.assert_close(space.up(space.down(vectors)), vectors)
        size = space.basis.shape[1]
        assert size == (4 if centred else 5)
        torch.testing.assert_close(space.basis.T @ space.basis, torch.eye(size, dtype=torch.float64))


def test_the_still_point_of_answers_that_pull_to_one_model_is_that_model() -> None:
    wanted, models = numbers(2), numbers(60, 2, seed=1)
    how = UpdateMap(models, 0.5 * (wanted - models), 32, Stream.from_seed(0))
    assert how.fit(1500, 1e-2) < 1e-3
    found = how.still_point(models[-1], 500, 0.05)
    assert float((found - wanted).norm()) < 0.1 * float((models[-1] - wanted).norm())


def test_what_no_observed_model_has_is_left_alone() -> None:
    models = torch.cat([numbers(10, 2), torch.zeros(10, 1, dtype=torch.float64)], 1)
    how = UpdateMap(models, -models, 8, Stream.from_seed(0))
    how.fit(10, 1e-2)
    found = how.still_point(torch.tensor([0.5, 0.5, 7.0], dtype=torch.float64), 10, 0.01)
    assert float(found[2]) == 7.0
