"""How far a simulated update is from the observed one."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["cosine", "layer_cosine", "normalised", "relative", "squared", "squared_and_absolute"]

Params = dict[str, Tensor]


def cosine(guess: Params, target: Params) -> Tensor:
    """One minus the cosine of the angle between two updates (geiping2020, eq. 4); a zero update is at distance 1.

    Example:
        >>> cosine({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(1.)
    """
    tensors = [tensor[None] for tensor in (*guess.values(), *(target[name] for name in guess))]
    distance: Tensor = _Cosine.apply(*tensors)[0][0]  # type: ignore[no-untyped-call]
    return distance


class _Cosine(torch.autograd.Function):
    """The cosine distance of two updates, tensor after tensor, with their lanes in front.

    With c = ⟨a, b⟩ / ‖a‖‖b‖ the derivative is −(b / ‖a‖‖b‖ − c·a / ‖a‖²). Autograd would go over the update, which is
    as large as the model for every lane, twice as often.
    """

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        halves = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        inner = torch.stack([(a * b).flatten(1).sum(1) for a, b in zip(*halves, strict=True)]).sum(0)
        # Norms of norms: one pass over each tensor, where squares would be written down and read again.
        norm = torch.linalg.vector_norm
        lengths = [norm(torch.stack([norm(a.flatten(1), dim=1) for a in half]), dim=0) for half in halves]
        least = torch.finfo(inner.dtype).tiny ** 0.25
        # Where an update vanishes there is no angle: the least length keeps the gradient finite, and matters nowhere
        # else.
        long = torch.stack(lengths).clamp(min=least)  # (2, lanes)
        angle = torch.where(long.isfinite().all(0), inner / long.prod(0), torch.nan)  # lost where an update overflows
        # As a length that is held at the least does not change, there is no way back along the update itself.
        return 1 - angle, 1 / long.prod(0), torch.where(torch.stack(lengths) > least, angle / long**2, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, bar: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, along, back = ctx.saved_tensors
        half = len(tensors) // 2
        bars: list[Tensor | None] = []
        for i, own in enumerate(tensors):
            if not ctx.needs_input_grad[i]:
                bars.append(None)
                continue
            lanes = (-1, *[1] * (own.dim() - 1))
            other = tensors[(i + half) % len(tensors)]
            bars.append(
                torch.addcmul(other * (-bar * along).reshape(lanes), own, (bar * back[i // half]).reshape(lanes))
            )
        return tuple(bars)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        def fold(tensor: Tensor, dim: int | None) -> Tensor:
            mapped = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return mapped.flatten(0, 1)

        distance, along, back = _Cosine.apply(*map(fold, tensors, in_dims))  # type: ignore[no-untyped-call]
        size = (info.batch_size, -1)
        return (distance.unflatten(0, size), along.unflatten(0, size), back.unflatten(1, size)), (0, 0, 1)


def squared(guess: Params, target: Params) -> Tensor:
    """Squared Euclidean distance (zhu2019, eq. 4).

    Example:
        >>> squared({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(5.)
    """
    return torch.stack([((a - target[name]) ** 2).sum() for name, a in guess.items()]).sum()


def relative(guess: Params, target: Params) -> Tensor:
    """Squared distance per squared length of the target: 0 for the target itself and 1 for an update of zero.

    A target of zero counts as one of length 1.

    Example:
        >>> relative({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])})
        tensor(1.2500)
    """
    length = torch.stack([(part**2).sum() for part in target.values()]).sum()
    return squared(guess, target) / torch.where(length > 0, length, 1)


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


def layer_cosine(guess: Params, target: Params) -> Tensor:
    """The mean over tensors of one minus the cosine (balunovic2022, section 4), which counts small layers in full.

    Tensors that are zero in `target` say nothing and do not count.

    Example:
        >>> guess = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor([3.0])}
        >>> layer_cosine(guess, {"w": torch.tensor([0.0, 9.0]), "b": torch.tensor([1.0])})
        tensor(0.5000)
    """
    lengths = torch.stack([target[name].norm() for name in guess])
    angles = torch.stack([cosine({name: part}, {name: target[name]}) for name, part in guess.items()])
    counts = (lengths > 0).to(angles)
    return (angles * counts).sum() / counts.sum().clamp(min=1)


def squared_and_absolute(guess: Params, target: Params, weight: float) -> Tensor:
    """Squared distance and `weight` times the sum of absolute differences (deng2021, eq. 3).

    Example:
        >>> squared_and_absolute({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}, 0.1)
        tensor(5.3000)
    """
    absolute = torch.stack([(a - target[name]).abs().sum() for name, a in guess.items()]).sum()
    return squared(guess, target) + weight * absolute
