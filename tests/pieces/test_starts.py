"""Where optimisation starts."""

from __future__ import annotations

import torch

from common.federation import view_of
from common.nets import image_task, images
from seepage.pieces.starts import normal_start
from seepage.recipe import Recipe
from seepage.streams import Stream


def test_a_clients_start_depends_on_its_name_and_number_alone() -> None:
    clients = {name: images(2, seed) for seed, name in enumerate(["ada", "bob", "cyd"])}
    task, rng = image_task(), Stream.from_seed(0)
    together = normal_start(view_of(task, clients, Recipe()), 3, rng)
    assert together.shape == (3, 3, 2, 1, 6, 6)
    assert together.dtype == torch.float64
    for i, name in enumerate(clients):
        alone = normal_start(view_of(task, {name: clients[name]}, Recipe()), 2, rng)
        assert alone[0].equal(together[i, :2])
    assert len({tuple(x.flatten().tolist()) for client in together for x in client}) == 9


def test_starts_are_standard_normal() -> None:
    view = view_of(image_task(), {"ada": images(50)}, Recipe())
    x = normal_start(view, 4, Stream.from_seed(0))
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05
