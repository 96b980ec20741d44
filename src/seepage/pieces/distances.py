"""How far a simulated update is from the observed one."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

__all__ = ["cosine", "normalised", "squared"]

Params = dict[str, Tensor]


def cosine(guess: Params, target: Params) -> Tensor:
    """One minus the cosine of the angle between two updates (geiping2020, eq. 4); a zero update is at distance 1.

    Example:
        >>> cosine({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(1.)
    """
    inner = torch.stack([(a * target[name]).sum() for name, a in guess.items()]).sum()
    # Norms of norms: one pass over each tensor, where squares would be written down and read again.
    lengths = [
        torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(a) for a in update.values()]))
        for update in (guess, target)
    ]
    # Where an update vanishes there is no angle: the least length keeps the gradient finite, and matters nowhere else.
    least = torch.finfo(inner.dtype).tiny ** 0.25
    angle: Tensor = inner / (lengths[0].clamp(min=least) * lengths[1].clamp(min=least))
    return 1 - angle


def squared(guess: Params, target: Params) -> Tensor:
    """Squared Euclidean distance (zhu2019, eq. 4).

    Example:
        >>> squared({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(5.)
    """
    return torch.stack([((a - target[name]) ** 2).sum() for name, a in guess.items()]).sum()


def normalised(update: Params, norm: Literal["all", "mean"] = "all") -> Params:
    """An update divided by its length, so that the learning rate drops out of it (zhao2023, eq. 6); zero stays zero.

    Args:
        update: or gradient.
        norm: `"all"`, the Frobenius norm over all tensors, or `"mean"`, the mean of the norms of the tensors.

    Note:
        The squared distance of two updates normalised by `"all"` is twice `cosine`, but near zero it keeps the digits
        that 1 − cos loses: in float32 the latter ends at 6e-8, where an image is far from exact.

    Example:
        >>> update = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([0.0, 4.0])}
        >>> normalised(update)["w"], normalised(update, "mean")["w"]
        (tensor([0.6000, 0.0000]), tensor([0.8571, 0.0000]))
    """
    # Divided by its largest entry first, squares neither overflow nor vanish; as the result does not depend on that
    # number, neither does its derivative.
    peak = torch.stack([part.detach().abs().amax() for part in update.values()]).amax()
    scaled = {name: part / torch.where(peak > 0, peak, 1) for name, part in update.items()}
    squares = torch.stack([(part**2).sum() for part in scaled.values()])  # (tensors,)
    tiny = math.sqrt(torch.finfo(squares.dtype).tiny)  # keeps the gradient of the root finite at zero
    length = (squares.sum() + tiny).sqrt() if norm == "all" else (squares + tiny).sqrt().mean()
    return {name: part / length for name, part in scaled.items()}
