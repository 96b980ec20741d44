"""How much of the client's label counts was found; the order of labels is nobody's secret, so it does not count."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["label_accuracy", "label_count_error"]


def _counts(guess: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    for name, labels in (("guess", guess), ("truth", truth)):
        if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
            raise ValueError(
                f"expected whole-number labels `{name}` of shape (n,), got {labels.dtype} of shape "
                f"{tuple(labels.shape)}; take the argmax of class scores first"
            )
    guess, truth = guess.cpu().long(), truth.cpu().long()
    guess = guess[guess >= 0]  # answers of fewer examples are filled up with -1
    classes = torch.tensor(sorted({*guess.tolist(), *truth.tolist()}))
    return (guess[:, None] == classes).sum(dim=0), (truth[:, None] == classes).sum(dim=0)


def label_accuracy(guess: Tensor, truth: Tensor) -> float:
    """Share of the true labels that were found, as multisets: the overlap of the two counts over the number of labels.

    Args:
        guess: labels (m,) in any order.
        truth: labels (n,) in any order.

    Example:
        >>> label_accuracy(torch.tensor([3, 3, 5, 1]), torch.tensor([3, 5, 5, 1]))
        0.75
    """
    if len(truth) == 0:
        raise ValueError("expected at least one true label, got none; leave clients without data out")
    found, real = _counts(guess, truth)
    return int(torch.minimum(found, real).sum()) / len(truth)


def label_count_error(guess: Tensor, truth: Tensor) -> float:
    """How many labels would have to be changed: half the sum of the differences of the counts per class.

    Args:
        guess: labels (m,) in any order.
        truth: labels (n,) in any order.

    Note:
        A label too many or too few, where the two differ in length, counts as half a change.

    Example:
        >>> label_count_error(torch.tensor([3, 3, 5, 1]), torch.tensor([3, 5, 5, 1]))
        1.0
    """
    found, real = _counts(guess, truth)
    return int((found - real).abs().sum()) / 2
