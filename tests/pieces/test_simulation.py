"""What a client would have sent, as attacks ask for it."""

from __future__ import annotations

import torch

from common.federation import view_of
from common.nets import image_task, images
from seepage.pieces.simulation import simulated_update
from seepage.recipe import SGD, Recipe

RECIPE = Recipe(SGD(0.1), epochs=2, batch_size=2)


def test_a_cpu_does_without_compiling() -> None:
    task, own = image_task(), images(4)
    view = view_of(task, {"ada": own}, RECIPE)

    def guess(compiled: bool) -> dict[str, torch.Tensor]:
        schedule = RECIPE.schedule(own.x, own.y)
        return simulated_update(view, task.params, schedule, RECIPE, task.buffers, compiled=compiled)

    plain, asked = guess(compiled=False), guess(compiled=True)
    assert all(asked[name].equal(u) for name, u in plain.items())
    assert not view.task.compiler._programs
