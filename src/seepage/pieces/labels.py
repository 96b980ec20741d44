"""Labels from the gradient of the last layer.

For softmax and cross-entropy the gradient of the last layer's bias is mean(p) − share of each label, so that the labels
of a batch can be read off it once the mean prediction p is known; for a single example its sign is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.finding import NotApplicable
from seepage.pieces.gradients import gradients_in
from seepage.streams import Stream
from seepage.task import Params, Task
from seepage.threat import Fact, View

__all__ = ["LabelsHidden", "idlg", "label_counts", "recover_labels", "round_counts"]


class LabelsHidden(NotApplicable):
    """The labels cannot be recovered from this kind of update."""


def idlg(task: Task, update: Params) -> Tensor:
    """The label of a single example: the one class whose output layer is pulled up.

    Zhao, Mopuri and Bilen, 2020, "iDLG: Improved deep leakage from gradients" (https://arxiv.org/abs/2001.02610).

    Note:
        The paper takes the sign of the rows of the weight; with a bias, its gradient p − onehot(y) says the same
        without assuming that features are positive, and is used where there is one.
    """
    if task.head is None:
        raise LabelsHidden("expected a module that ends in nn.Linear with one output per class, got another ending")
    bias = update.get(f"{task.head}.bias")
    pull = update[f"{task.head}.weight"].sum(-1) if bias is None else bias
    return pull.argmin(-1, keepdim=True)


def round_counts(counts: Tensor, n: int) -> Tensor:
    """Whole numbers of at least zero that sum to `n`, the nearest to `counts` (largest remainder).

    Args:
        counts: real-valued estimates, (classes,).
        n: their true sum.

    Example:
        >>> round_counts(torch.tensor([1.6, -0.2, 1.3]), 3)
        tensor([2, 0, 1])
    """
    rounded, remainder = torch.zeros_like(counts, dtype=torch.long), counts.clone()
    for _ in range(n):  # each unit goes where it brings the sum of squared errors down most
        best = remainder.argmax()
        rounded[best] += 1
        remainder[best] -= 1
    return rounded


def label_counts(view: View, client: int, rng: Stream, dummies: int = 1000) -> Tensor:
    """How often each label occurs in a client's batch, from the bias of the last layer (geng2021, eq. 7).

    counts = n·(p − mean gradient), where p, the mean prediction, is estimated on normally distributed dummy inputs.

    Args:
        view: what the attacker holds; several local steps need the recipe.
        client: position on the client axis.
        rng: for the dummy inputs.
        dummies: how many.
    """
    task, n = view.task, view.count
    name = f"{task.head}.bias"
    if task.head is None or name not in view.update:
        raise LabelsHidden(
            "expected a module that ends in nn.Linear with a bias, from which a batch's labels can be counted, "
            "got none; attack under a threat model that grants labels"
        )
    params = {key: value[client] for key, value in view.params.items()}
    buffers = {key: value[client] for key, value in view.buffers.items()}
    bias = params[name]
    x = rng.normal(dummies, *task.spec.shape, dtype=bias.dtype, device=bias.device)
    with torch.no_grad():
        p = task.forward(params, x, buffers=buffers, train=view.assumed_recipe.train)[0].softmax(-1).mean(0)
    return round_counts(n * (p - view.update[name][client] / gradients_in(view)).cpu(), n)


def recover_labels(view: View, rng: Stream) -> Tensor:
    """Labels of every client: those granted, else iDLG for one example, else counted, (clients, count)."""
    if view.knows(Fact.LABELS):
        return view.labels
    if view.task.spec.classes is None:
        raise LabelsHidden(
            "expected classes, which leave their mark on the last layer, got regression targets; "
            "attack under a threat model that grants labels"
        )
    if view.count == 1:
        return torch.stack(
            [idlg(view.task, {name: u[i] for name, u in view.update.items()}) for i in range(len(view.clients))]
        )
    classes = torch.arange(view.task.spec.classes)
    device = next(iter(view.update.values())).device
    return torch.stack(
        [
            classes.repeat_interleave(label_counts(view, i, rng / client / "dummies")).to(device)
            for i, client in enumerate(view.clients)
        ]
    )
