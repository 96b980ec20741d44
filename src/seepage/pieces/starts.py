"""Where optimisation starts."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.streams import Stream
from seepage.threat import View

__all__ = ["constant_start", "normal_lanes", "normal_start", "uniform_lanes"]


def normal_start(view: View, starts: int, rng: Stream) -> Tensor:
    """Standard normal inputs in normalised space, (clients, starts, count, …)."""
    return normal_lanes(view, starts, rng, view.count, *view.task.spec.shape)


def normal_lanes(view: View, starts: int, rng: Stream, *shape: int) -> Tensor:
    """Standard normal numbers of any shape, (clients, starts, *shape).

    Each client and start draws from a stream of its own, so that a client's start does not depend on its company.
    """
    like = next(iter(view.update.values()))
    return torch.stack(
        [
            torch.stack(
                [(rng / client / s).normal(*shape, dtype=like.dtype, device=like.device) for s in range(starts)]
            )
            for client in view.clients
        ]
    )


def uniform_lanes(view: View, starts: int, rng: Stream, *shape: int) -> Tensor:
    """Numbers from U(0, 1) of any shape, (clients, starts, *shape), drawn as those of `normal_lanes` are."""
    like = next(iter(view.update.values()))

    def draw(rng: Stream) -> Tensor:
        return torch.rand(shape, generator=rng.generator(), dtype=torch.float64).to(like)

    return torch.stack([torch.stack([draw(rng / client / s) for s in range(starts)]) for client in view.clients])


def constant_start(view: View, starts: int, value: float) -> Tensor:
    """One number that every client and start begins with, (clients, starts)."""
    like = next(iter(view.update.values()))
    return torch.full((len(view.clients), starts), value, dtype=like.dtype, device=like.device)
