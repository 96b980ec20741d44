"""iLRG.

Ma, Sun, Cui, Li, Guo and Xu, 2023, "Instance-wise batch label restoration via gradients in federated learning"
(https://openreview.net/forum?id=FIrQfNSOoTr).

Rows of the head's gradient are mixtures of what entered the head. Divided by the bias, each is the embedding of its
class, which the head turns into that class's predictions; the counts then solve a linear system.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.pieces.labels.guess import LabelGuess, LabelsHidden, guess_from
from seepage.pieces.labels.head import client_of, scale_of
from seepage.streams import Stream
from seepage.threat import View

__all__ = ["Ilrg", "embeddings", "solve_counts"]


@dataclass(frozen=True)
class Ilrg:
    """Counts from class-wise embeddings ∇W_j/∇b_j, without dummy inputs.

    Args:
        shrink: how far embeddings of classes with a small ∇b_j are drawn towards the mean embedding; 0 is the paper's
            plain quotient.
        points: between the server's and the client's head at which predictions are taken and averaged; 1 is the
            server's alone, as in the paper.

    Note:
        `shrink` and `points` are ours. A class that is as frequent as it is predicted has ∇b_j near zero, and its
        quotient is noise. Only the paper's linear system and pseudo-inverse are kept as they are; rounding is the
        nearest, where the paper's code rounds first and mends the sum afterwards.
    """

    shrink: float = 1.0
    points: int = 11

    def __call__(self, view: View, client: int, rng: Stream) -> LabelGuess:
        """The labels of the client at position `client`."""
        del rng  # nothing is drawn
        seen, scale = client_of(view, client), scale_of(view)
        if seen.bias is None or seen.bias_update is None:
            raise LabelsHidden(
                "expected a module that ends in nn.Linear with a trained bias, by which rows of the weight are "
                "divided, got one without; use the method 'geng-interpolated' or 'rlu'"
            )
        weight, bias, step_w, step_b = (
            t.detach().cpu().double() for t in (seen.weight, seen.bias, seen.weight_update, seen.bias_update)
        )
        inside = embeddings(step_w, step_b, self.shrink)
        moved = 0.0 if view.kind == "gradient" else 1.0
        path = torch.linspace(0, moved, self.points, dtype=torch.float64).tolist()
        p = torch.stack([(inside @ (weight - a * step_w).T + bias - a * step_b).softmax(-1) for a in path]).mean(
            0
        )  # (classes, classes)
        return guess_from(solve_counts(p, step_b / scale, view.count), view.count)


def embeddings(weight: Tensor, bias: Tensor, shrink: float = 0.0) -> Tensor:
    """What entered the head for each class, from its gradient or update, (classes, width).

    The quotient of weight and bias, as a regression with a ridge around the mean embedding.

    Args:
        weight: gradient of the head's weight, (classes, width).
        bias: gradient of the head's bias, (classes,).
        shrink: weight of the ridge, in units of the mean squared bias gradient.

    Example:
        >>> bias = torch.tensor([-0.5, 0.25, 0.25])
        >>> embeddings(bias.outer(torch.tensor([1.0, 2.0])), bias)
        tensor([[1., 2.],
                [1., 2.],
                [1., 2.]])
    """
    tiny = torch.finfo(bias.dtype).tiny
    mean = bias @ weight / (bias @ bias).clamp(min=tiny)
    ridge = shrink * (bias**2).mean()
    return (bias[:, None] * weight + ridge * mean) / (bias**2 + ridge).clamp(min=tiny)[:, None]


def solve_counts(p: Tensor, gradient: Tensor, n: int) -> Tensor:
    """The counts k with Σ_j k_j·p_j − k = n·gradient and Σ_j k_j = n, by the pseudo-inverse.

    Args:
        p: mean prediction on the examples of each class, (classes, classes), rows sum to 1.
        gradient: of the head's bias, (classes,).
        n: number of examples.

    Example:
        >>> p, counts = torch.tensor([[0.6, 0.4], [0.1, 0.9]]).double(), torch.tensor([1.0, 3.0]).double()
        >>> solve_counts(p, (counts @ p - counts) / 4, 4).round(decimals=6)
        tensor([1., 3.], dtype=torch.float64)
    """
    classes = len(gradient)
    system = torch.cat([p.new_ones(1, classes), p.T - torch.eye(classes, dtype=p.dtype)])
    counts: Tensor = torch.linalg.pinv(system) @ torch.cat([gradient.new_full((1,), n), n * gradient])
    return counts
