"""Where optimisation starts."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.streams import Stream
from seepage.threat import View

__all__ = ["normal_start"]


def normal_start(view: View, starts: int, rng: Stream) -> Tensor:
    """Standard normal inputs in normalised space, (clients, starts, count, …).

    Each client and start draws from a stream of its own, so that a client's start does not depend on its company.
    """
    like = next(iter(view.update.values()))
    shape = (view.count, *view.task.spec.shape)
    return torch.stack(
        [
            torch.stack(
                [(rng / client / s).normal(*shape, dtype=like.dtype, device=like.device) for s in range(starts)]
            )
            for client in view.clients
        ]
    )
