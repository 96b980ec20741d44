"""A sensitive column from a model: the value with which it predicts the label best.

Driouich, Xu, Neglia, Giroire and Thomas, 2023, "Local Model Reconstruction Attacks in Federated Learning and their
Uses" (https://arxiv.org/abs/2210.16205), eq. (3), after Fredrikson et al., 2014.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.attacks.base import check_needs
from seepage.attacks.lmra import Guess, guessed_model
from seepage.finding import Finding
from seepage.streams import Stream
from seepage.task import Params, Task
from seepage.threat import Fact, Records, View

__all__ = ["AttributeModel", "best_values"]


@dataclass(frozen=True)
class AttributeModel:
    """For each record, the value with which a model comes nearest to its label; of numbers, one of 61.

    Args:
        model: which model stands for the client's own.
    """

    name: ClassVar[str] = "attribute-model"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.PUBLIC_COLUMNS})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    model: Guess = "last-answer"

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view."""
        check_needs(self, view)
        models = guessed_model(view, self.model, rng / "model")
        found = []
        for i in range(len(view.clients)):
            params, buffers = ({name: t[i] for name, t in tree.items()} for tree in (models, view.buffers))
            like = {name: p.to(view.params[name].dtype) for name, p in params.items()}
            found.append(best_values(view.task, like, buffers, view.records, i, train=view.assumed_recipe.train))
        return Finding(attributes=torch.stack(found))


def best_values(task: Task, params: Params, buffers: Params, records: Records, client: int, *, train: bool) -> Tensor:
    """Eq. (3) for every record of one client, (n,).

    Statistics of BatchNorm stay with the client: in train mode they are those of the table under each value.
    """
    y = records.y[client]
    wanted = y.reshape(len(y), -1) if task.spec.classes is None else one_hot(y, task.spec.classes)
    errors = []
    choices = records.sensitive.choices
    for value in choices:
        with torch.no_grad():
            out, _ = task.forward(params, records.filled(client, value), buffers=buffers, train=train)
        said = out.reshape(len(y), -1) if task.spec.classes is None else out.softmax(-1)
        errors.append(((said - wanted) ** 2).sum(1))
    best = torch.stack(errors).argmin(0)
    return choices.to(best.device)[best, 0] if records.sensitive.numeric else best
