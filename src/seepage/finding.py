"""An attack's answer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Finding"]


@dataclass(frozen=True, eq=False)
class Finding:
    """What an attack says about each client, clients first; what it does not say is `None`.

    Args:
        inputs: reconstructed examples as the module eats them, (clients, n, …).
        labels: their labels, (clients, n).
        objective: how well the answer explains what was seen, lower is better, (clients,).
        status: how the optimisation ended, codes of `engine.minimise.Status`, (clients,).
    """

    inputs: Tensor | None = None
    labels: Tensor | None = None
    objective: Tensor | None = None
    status: Tensor | None = None
