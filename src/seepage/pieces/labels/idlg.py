"""iDLG.

Zhao, Mopuri and Bilen, 2020, "iDLG: Improved deep leakage from gradients" (https://arxiv.org/abs/2001.02610).

For a single example the gradient of the last layer is p − onehot(y) times its features: one class is pulled up, and all
others are pushed down.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.pieces.labels.guess import LabelGuess, LabelsHidden
from seepage.pieces.labels.head import client_of
from seepage.streams import Stream
from seepage.threat import View

__all__ = ["Idlg", "pull"]


@dataclass(frozen=True)
class Idlg:
    """The label of a single example: the one class whose output is pulled up.

    It needs no recipe: signs survive any optimiser and any number of steps.

    The counts are the shares of the classes in all that is pulled up, and the confidence is the largest share: 1 for an
    update that was left as it was, less where noise pulls other classes up too.

    Note:
        The paper takes the sign of the rows of the weight; with a bias, its gradient p − onehot(y) says the same
        without assuming that features are positive, and is used where there is one. Without a bias, rows are compared
        with the direction that most of them share instead of with that of positive features.
    """

    def __call__(self, view: View, client: int, rng: Stream) -> LabelGuess:
        """The label of the client at position `client`."""
        del rng  # nothing is drawn
        seen = client_of(view, client)
        if view.count != 1:
            raise LabelsHidden(
                f"expected a client with one example, whose label alone is pulled up, got {view.count}; "
                "use the method 'ilrg', or 'auto'"
            )
        up = (-pull(seen.weight_update, seen.bias_update)).detach().cpu().double().nan_to_num().clamp(min=0)
        total = up.sum()
        shares = up / total if total > 0 else torch.full_like(up, 1 / len(up))
        return LabelGuess(shares, shares.argmax().reshape(1), float(shares.max()))


def pull(weight: Tensor, bias: Tensor | None) -> Tensor:
    """How far down each class is pushed: c·const for a gradient c⊗features, and negative for the label.

    Args:
        weight: gradient or update of the head's weight, (classes, width).
        bias: likewise, (classes,); the rows of the weight must do without it.

    Example:
        >>> features, c = torch.tensor([-3.0, 1.0]), torch.tensor([0.2, -0.9, 0.7])
        >>> pull(c.outer(features), None).sign()
        tensor([ 1., -1.,  1.])
    """
    if bias is not None:
        return bias
    if len(weight) < 3:  # two rows oppose each other, and only the sign of the features tells which is pulled up
        return weight.sum(-1)
    common: Tensor = nn.functional.normalize(weight, dim=-1).sum(0)
    return (weight * common).sum(-1)
