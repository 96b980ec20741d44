"""The judge of attacks on one column of a table, and of those that ask whose a record is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.capture import Secret
from seepage.metrics.score import Score
from seepage.threat import Sensitive, target_records

__all__ = ["NEAR", "attribute_scores", "source_scores"]

NEAR = 0.1
"""How many standard deviations a number may be off to count as found."""


def attribute_scores(found: Tensor, secret: Secret, sensitive: Sensitive) -> list[Score]:
    """How much of a client's sensitive column was found, beside what needs no leak and what no leak can give.

    A number is found where it is said up to a tenth of the column's standard deviation.

    Args:
        found: which value, or which number, each record is said to have, (n,).
        secret: the client's records.
        sensitive: the column.
    """
    examples = secret.examples.to("cpu")
    truth, n = sensitive.read(examples.x), len(examples)
    public = torch.cat([sensitive.hidden(examples.x).flatten(1).double(), examples.y.reshape(n, -1).double()], 1)
    _, twins = torch.unique(public, dim=0, return_inverse=True)
    near = NEAR * float(sensitive.values[1] - sensitive.values[0]) / 2 if sensitive.numeric else 0.0
    alike = [truth[twins == twin] for twin in twins.unique()]
    values = {
        "attribute_accuracy": float(((found.cpu() - truth).abs() <= near).double().mean()),
        "attribute_accuracy_of_majority": _most_alike(truth, near) / n,
        "attribute_ceiling": sum(_most_alike(group, near) for group in alike) / n,
    }
    return [Score("all", metric, value) for metric, value in values.items()]


def _most_alike(values: Tensor, near: float) -> int:
    """How many one answer would find."""
    ordered = values.sort().values
    return int((torch.searchsorted(ordered, ordered + 2 * near, right=True) - torch.arange(len(ordered))).max())


def source_scores(sources: Tensor, client: int, secrets: Sequence[Secret]) -> list[Score]:
    """How many of a client's target records were said to be its own.

    Args:
        sources: how strongly each target is held to be each client's, (clients, targets).
        client: which one.
        secrets: of all clients, in that order.
    """
    _, holds = target_records([secret.examples for secret in secrets])
    named = sources.argmax(0).to(holds.device)
    right = holds[named, torch.arange(len(named), device=holds.device)]
    return [
        Score("all", "source_accuracy", float(right[holds[client]].double().mean())),
        Score("all", "source_accuracy_of_chance", float(holds[:, holds[client]].double().mean())),
    ]
