"""The image that a vision transformer was trained on, exactly, from two gradients.

After Lu, Zhang, Zhao, He and Cheng, 2022, "APRIL: Finding the Achilles' heel on privacy for vision transformers"
(https://arxiv.org/abs/2112.14087): the gradient of a learned position embedding is the derivative of what is added to
it. They solve for what enters the attention. Here it is the patches themselves: the convolution that embeds them has
the gradient Δᵀ·P, where the rows of P are the patches and those of Δ, the derivatives of their embeddings, are the
gradient of the positions. With no more patches than the embedding is wide, P follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.attacks.base import check_needs
from seepage.finding import Finding, NotApplicable
from seepage.pieces.analytic import of_client
from seepage.pieces.labels import LabelsHidden, guess_labels
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, NotKnown, View

__all__ = ["Patches"]

FITS = 1e-3
"""Relative error up to which a convolution and a position embedding count as belonging together."""


@dataclass(frozen=True)
class Patches:
    """Solve for the patches of one image.

    Several local steps on one image by SGD leave the answer exact, since the patches are the same in all of them.
    `objective` is the share of the convolution's gradient that the answer leaves unexplained.
    """

    name: ClassVar[str] = "patches"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        if view.count != 1:
            raise NotApplicable(
                f"expected a single image, got {view.count}: the gradient of the positions is a sum over all of them"
            )
        pair = _pair(view, rng / "probe")
        answers = [pair.solve(of_client(view.update, i)) for i in range(len(view.clients))]
        try:
            labels = guess_labels(view, rng / "labels")[0]
        except (LabelsHidden, NotKnown):  # images do without
            labels = None
        return Finding(
            inputs=torch.stack([image for image, _ in answers])[:, None],
            labels=labels,
            objective=torch.tensor([missed for _, missed in answers], device=answers[0][0].device),
        )


@dataclass(frozen=True)
class _Pair:
    """A convolution that cuts patches, and the positions that are added to what it makes of them.

    Args:
        weight: name of the convolution's, (width, channels, patch, patch).
        positions: name of the embedding, which may have rows for more than patches.
        first: the row of the first patch.
        image: height and width.
        patch: likewise.
    """

    weight: str
    positions: str
    first: int
    image: tuple[int, int]
    patch: tuple[int, int]

    @property
    def count(self) -> int:
        """Patches of an image."""
        return math.prod(size // part for size, part in zip(self.image, self.patch, strict=True))

    def gradients(self, gradient: Params) -> tuple[Tensor, Tensor]:
        """Δ, (patches, width), and the convolution's gradient, (width, values of a patch)."""
        weight = gradient[self.weight].flatten(1).double()
        rows = gradient[self.positions].double().reshape(-1, len(weight))
        return rows[self.first : self.first + self.count], weight

    def solve(self, gradient: Params) -> tuple[Tensor, float]:
        """The image, (channels, height, width), and the share of the gradient that it leaves unexplained."""
        deltas, weight = self.gradients(gradient)
        patches = torch.linalg.pinv(deltas.T) @ weight
        missed = float((deltas.T @ patches - weight).norm() / weight.norm()) if weight.any() else math.inf
        image = functional.fold(patches.T[None], self.image, self.patch, stride=self.patch)[0]
        return image.to(gradient[self.weight].dtype), missed


def _pair(view: View, rng: Stream) -> _Pair:
    """The first that holds for a made-up image."""
    task, params, buffers = view.task, of_client(view.params, 0), of_client(view.buffers, 0)
    like = next(iter(params.values()))
    x = rng.normal(1, *task.spec.shape, dtype=like.dtype, device=like.device)
    y = torch.zeros(1, dtype=torch.long, device=like.device)
    if task.spec.classes is None:
        y = torch.zeros(1, task.spec.targets, dtype=like.dtype, device=like.device)
    pairs = list(_candidates(view)) if task.spec.is_image else []
    gradient = task.gradient(params, x, y, buffers=buffers, train=view.assumed_recipe.train) if pairs else {}
    for pair in pairs:
        deltas, weight = pair.gradients(gradient)
        true = functional.unfold(x, pair.patch, stride=pair.patch)[0].T.double()
        if (deltas.T @ true - weight).norm() <= FITS * weight.norm():
            if pair.count > len(weight):
                raise NotApplicable(
                    f"expected embeddings at least as wide as there are patches, {pair.count}, got {len(weight)}"
                )
            return pair
    raise NotApplicable(
        "expected a vision transformer: a trained convolution whose stride is the size of its patches, and a trained "
        "position embedding that is added to what it makes of them, got none"
    )


def _candidates(view: View) -> Iterator[_Pair]:
    channels, height, width = view.task.spec.shape
    for path, layer in view.task.module.named_modules():
        name = f"{path}.weight" if path else "weight"
        if not isinstance(layer, nn.Conv2d) or name not in view.update or layer.in_channels != channels:
            continue
        patch = (int(layer.kernel_size[0]), int(layer.kernel_size[1]))
        if layer.stride != layer.kernel_size or any(layer.padding) or height % patch[0] or width % patch[1]:
            continue
        found = _Pair(name, "", 0, (height, width), patch)
        for other, p in view.task.params.items():
            rows = p.numel() // layer.out_channels
            if p.shape[-1] == layer.out_channels and rows >= found.count and other != name:
                # What is no patch, such as a class token, stands before them all or behind.
                for first in sorted({0, rows - found.count}):
                    yield _Pair(name, other, first, (height, width), patch)
