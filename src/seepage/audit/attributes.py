"""The judge of attacks on one column of a table, and of those that ask whose a record is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.capture import Secret
from seepage.metrics.score import Score
from seepage.threat import Sensitive, target_records

__all__ = ["attribute_scores", "source_scores"]


def attribute_scores(found: Tensor, secret: Secret, sensitive: Sensitive) -> list[Score]:
    """How much of a client's sensitive column was found, beside what needs no leak and what no leak can give.

    Args:
        found: which value each record is said to have, (n,).
        secret: the client's records.
        sensitive: the column.
    """
    examples = secret.examples.to("cpu")
    truth, n = sensitive.read(examples.x), len(examples)
    public = torch.cat([sensitive.hidden(examples.x).flatten(1).double(), examples.y.reshape(n, -1).double()], 1)
    _, twins = torch.unique(public, dim=0, return_inverse=True)
    counts = torch.zeros(int(twins.max()) + 1, len(sensitive.values))
    counts.index_put_((twins, truth), torch.ones(n), accumulate=True)
    values = {
        "attribute_accuracy": float((found.cpu() == truth).double().mean()),
        "attribute_accuracy_of_majority": int(truth.bincount().max()) / n,
        "attribute_ceiling": float(counts.amax(1).sum()) / n,
    }
    return [Score("all", metric, value) for metric, value in values.items()]


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
