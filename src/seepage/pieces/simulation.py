"""What a client would have sent had it trained on a guess: training as the attacker believes that it went."""

from __future__ import annotations

from seepage.local import local_update
from seepage.recipe import Recipe, Schedule
from seepage.task import Params
from seepage.threat import View

__all__ = ["simulated_update"]


def simulated_update(
    view: View,
    params: Params,
    schedule: Schedule,
    recipe: Recipe,
    buffers: Params,
    *,
    keep_every: int | None = None,
    compiled: bool = False,
) -> Params:
    """The update or gradient of one client, with the defence as far as it is known and without what is random in it.

    Args:
        view: what the attacker knows.
        params: the global model that the client received.
        schedule: guessed batches in order.
        recipe: how the client is believed to train.
        buffers: of the global model.
        keep_every: as in `local_update`.
        compiled: as in `local_update`, but on a GPU alone: on a CPU an iteration of a compiled simulation takes longer
            than one of an unrolled one, and compiling it longer than many a search.
    """
    return local_update(
        view.task,
        params,
        schedule,
        recipe.followed,
        view.assumed_defence,
        buffers=buffers,
        keep_every=keep_every,
        compiled=compiled and any(p.is_cuda for p in params.values()),
    )
