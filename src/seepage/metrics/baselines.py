"""What no leak scores: guesses made without looking at the update.

A reconstruction says something about a leak only by how far it beats these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.spec import Examples

__all__ = ["BASELINES", "best_constant", "class_mean", "even_labels", "mean_image"]

BASELINES = {
    "constant": "each image filled with its own mean colour",
    "public_mean": "the mean of public data, for every example",
    "class_mean": "the mean of the public data of each guessed label",
    "even": "every label equally often",
    "global_model": "the last global model that was seen, for the client's own",
    "public_texts": "as many public texts, whatever they say",
    "majority": "the client's most frequent value, for every record",
    "chance": "a client drawn at random, for every record",
}
"""Name of every baseline, and what its guess is."""


def best_constant(truth: Tensor) -> Tensor:
    """For each image the single colour nearest to it: its own mean per channel.

    Args:
        truth: images (n, c, h, w).

    Returns:
        Images (n, c, h, w), each of one colour.

    Note:
        Generous, since the colour is taken from the truth: no constant guess has a smaller error, so this is an upper
        bound for what a guess of one colour scores in PSNR.

    Example:
        >>> import torch
        >>> best_constant(torch.tensor([[[[0.0, 1.0], [1.0, 1.0]]]])).flatten()
        tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """
    if truth.ndim != 4:
        raise ValueError(f"expected images (n, channels, height, width), got shape {tuple(truth.shape)}")
    return truth.mean(dim=(2, 3), keepdim=True).expand_as(truth)


def mean_image(public: Examples) -> Tensor:
    """The mean of all public inputs, in the space they are in.

    Args:
        public: examples that anybody may have.

    Returns:
        One example, without an example axis.

    Example:
        >>> import torch
        >>> mean_image(Examples(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([0, 1])))
        tensor([2., 4.])
    """
    if len(public) == 0:
        raise ValueError(
            "expected at least one public example, got none; pass `public=None` to leave this baseline out"
        )
    mean: Tensor = public.x.mean(dim=0)
    return mean


def class_mean(public: Examples, labels: Tensor) -> Tensor:
    """For each label the mean of the public inputs of that class; the mean of all where the class is absent.

    Args:
        public: examples that anybody may have, with labels.
        labels: (n,), usually those an attack guessed.

    Returns:
        One input per label (n, ...).

    Example:
        >>> import torch
        >>> public = Examples(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([0, 0, 1]))
        >>> class_mean(public, torch.tensor([1, 0, 7])).flatten()
        tensor([8., 2., 4.])
    """
    labels = labels.to(public.y.device)
    means = mean_image(public).expand(len(labels), *public.x.shape[1:]).clone()
    for label in set(labels.tolist()):
        of_class = public.x[public.y == label]
        if len(of_class):
            means[labels == label] = of_class.mean(dim=0)
    return means


def even_labels(truth: Tensor, classes: int) -> float:
    """Share of the true labels that a guess of every label equally often finds, on average.

    Args:
        truth: labels (n,).
        classes: how many labels there are; where they do not divide n, chance says which occur once more.

    Example:
        >>> even_labels(torch.tensor([0, 0, 0, 1]), classes=2)
        0.75
        >>> even_labels(torch.tensor([7]), classes=10)
        0.1
    """
    if len(truth) == 0:
        raise ValueError("expected at least one true label, got none; leave clients without data out")
    each, rest = divmod(len(truth), classes)
    counts = torch.bincount(truth.detach().cpu().long(), minlength=classes)
    found = int(counts.clamp(max=each).sum()) + rest / classes * int((counts > each).sum())
    return found / len(truth)
