"""Label counts from dummy predictions.

Geng, Mou, Li, Li, Beyan, Decker and Rong, 2021, "Towards general deep leakage in federated learning"
(https://arxiv.org/abs/2110.09074), and its extension to several local steps by Dimitrov, Balunović, Konstantinov and
Vechev, 2022, "Data leakage in federated averaging" (https://arxiv.org/abs/2206.12395), section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.pieces.labels.guess import LabelGuess, LabelsHidden, guess_from
from seepage.pieces.labels.head import client_of, scale_of, stand_ins
from seepage.pieces.labels.rounding import round_as_code, round_counts
from seepage.streams import Stream
from seepage.threat import View

__all__ = ["Geng", "counts_from_bias", "counts_from_weight"]

GROUPS = 5  # of dummies, whose disagreement is the standard error


@dataclass(frozen=True)
class Geng:
    """counts = N·(p − mean gradient), where p, the mean prediction, is estimated on dummy inputs.

    Args:
        at: the parameters at which p (and O) are estimated: the `"server"`'s, the `"client"`'s after training, or
            `"interpolated"` over the steps between. For a gradient they are all the same.
        formula: from the `"bias"` of the head, which needs no features; from the row sums of its `"weight"`, divided by
            the mean sum O of the dummies' features, as dimitrov2022's code does (eq. 2); `"auto"` takes the bias where
            there is one.
        dummies: how many; public examples take their place where they are granted.
        rounding: `"nearest"` or `"code"`, that is `round_counts` or `round_as_code`.

    Note:
        Interpolation runs from the server's parameters to the client's, with coefficients 0, 1/U, …, (U−1)/U, as in
        the released code; the paper's formula reads the other way round.
    """

    at: Literal["server", "client", "interpolated"] = "interpolated"
    formula: Literal["auto", "bias", "weight"] = "auto"
    dummies: int = 3000
    rounding: Literal["nearest", "code"] = "nearest"

    def __call__(self, view: View, client: int, rng: Stream) -> LabelGuess:
        """The labels of the client at position `client`."""
        seen, scale, n = client_of(view, client), scale_of(view), view.count
        x = stand_ins(view, self.dummies, rng / "dummies")
        steps = view.steps.number if view.kind != "gradient" else 1
        p = self._along(seen.predictions, x, steps)  # (groups, steps, classes)
        if self.formula == "weight" or (self.formula == "auto" and seen.bias_update is None):
            activity = self._along(seen.activity, x, steps)  # (groups, steps)
            groups = counts_from_weight(n, p, activity, _plain(seen.weight_update) / scale)
        elif seen.bias_update is None:
            raise LabelsHidden(
                "expected a module that ends in nn.Linear with a bias, got one without; use formula = 'weight'"
            )
        else:
            groups = counts_from_bias(n, p, _plain(seen.bias_update) / scale)
        spread = groups.std(0) / len(groups) ** 0.5 if len(groups) > 1 else None
        return guess_from(groups.mean(0), n, spread, round_as_code if self.rounding == "code" else round_counts)

    def _along(self, statistic: Callable[..., Tensor], x: Tensor, steps: int) -> Tensor:
        """Means of a statistic over each group of dummies, at every step of local training, (groups, steps, …)."""
        ends = {"server": [False], "client": [True], "interpolated": [False] if steps == 1 else [False, True]}[self.at]
        means = [
            torch.stack([_plain(part.mean(0)) for part in statistic(x, after=after).chunk(GROUPS)]) for after in ends
        ]
        if len(means) == 1:
            return means[0][:, None]
        server, client = means
        return torch.stack([torch.lerp(server, client, i / steps) for i in range(steps)], 1)


def counts_from_bias(n: int, p: Tensor, gradient: Tensor) -> Tensor:
    """How often each label occurs, from the mean gradient of the head's bias.

    Args:
        n: number of examples.
        p: mean prediction at every step, (…, steps, classes).
        gradient: of the bias, mean over the steps, (classes,).

    Example:
        >>> counts_from_bias(4, torch.tensor([[0.5, 0.5]]), torch.tensor([0.25, -0.25]))
        tensor([1., 3.])
    """
    return n * (p.mean(-2) - gradient)


def counts_from_weight(n: int, p: Tensor, activity: Tensor, gradient: Tensor) -> Tensor:
    """How often each label occurs, from the mean gradient of the head's weight (dimitrov2022, eq. 2).

    Args:
        n: number of examples.
        p: mean prediction at every step, (…, steps, classes).
        activity: O, the mean sum of what enters the head, at every step, (…, steps).
        gradient: of the weight, mean over the steps, (classes, width).

    Example:
        >>> gradient = torch.tensor([[0.25, 0.25], [-0.25, -0.25]])
        >>> counts_from_weight(4, torch.tensor([[0.5, 0.5]]), torch.tensor([2.0]), gradient)
        tensor([1., 3.])
    """
    return n * (p - gradient.sum(-1) / activity[..., None]).mean(-2)


def _plain(x: Tensor) -> Tensor:
    return x.detach().cpu().double()
