"""An attack's answer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Finding", "NotApplicable"]


class NotApplicable(ValueError):
    """The attack has nothing to say about this kind of module, data or update; the message says why."""


@dataclass(frozen=True, eq=False)
class Finding:
    """What an attack says about each client, clients first; what it does not say is `None`.

    Args:
        inputs: reconstructed examples as the module eats them, (clients, n, …); token ids that are not known are −1.
        labels: their labels, (clients, n).
        objective: how well the answer explains what was seen, lower is better, (clients,).
        status: how the optimisation ended, codes of `engine.minimise.Status`, (clients,).
        first_objective: the objective where the optimisation started, (clients,).
        confidence: how sure the attack is of its labels, from 0 to 1, (clients,).
        features: what entered the linear layer named `layer`, where inputs themselves are out of reach,
            (clients, n, width).
        layer: the path of that layer in the module.
        params: the model that a client would have trained alone, by parameter name, (clients, …).
        attributes: which value the sensitive column has in each of the client's records, in the order in which their
            public columns were given, (clients, n).
        sources: how strongly each target record is held to be each client's, (clients, targets).
        class_inputs: what each class looks like in a client's data, (clients, classes, …).
        tokens: for text, which tokens occur at all, (clients, vocabulary).
        certainty: for tables, how sure the attack is of each cell, from 0 to 1, columns as in `DataSpec.columns`,
            (clients, n, columns).
    """

    inputs: Tensor | None = None
    labels: Tensor | None = None
    objective: Tensor | None = None
    status: Tensor | None = None
    first_objective: Tensor | None = None
    confidence: Tensor | None = None
    features: Tensor | None = None
    layer: str | None = None
    params: dict[str, Tensor] | None = None
    attributes: Tensor | None = None
    sources: Tensor | None = None
    class_inputs: Tensor | None = None
    tokens: Tensor | None = None
    certainty: Tensor | None = None
