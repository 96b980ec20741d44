"""How much of a text came back: tokens in their places, and the overlap of words and of pairs of neighbours.

ROUGE-n by its definition (Lin, 2004, "ROUGE: A package for automatic evaluation of summaries",
https://aclanthology.org/W04-1013) as the harmonic mean of precision and recall. Texts are compared as token ids without
what fills them up, and without stemming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["bag_f1", "match_texts", "rouge", "token_accuracy"]


def _tokens(text: Tensor) -> list[int]:
    return [int(token) for token in text if int(token) != 0]


def _f1(shared: float, found: float, real: float) -> float:
    return 2 * shared / (found + real) if found + real else 0.0


def rouge(guess: Tensor, truth: Tensor, n: int) -> float:
    """ROUGE-n F1 of two texts: the share of sequences of `n` tokens that they have in common.

    Args:
        guess: token ids (length,), 0 where nothing stands and −1 where the token is not known.
        truth: token ids (length,).
        n: 1 for tokens, 2 for pairs of neighbours.

    Note:
        A text of fewer than `n` tokens has no such sequence: two of them score 1 if they are equal, else 0.

    Example:
        >>> the_cat_sat, the_cat_ran = torch.tensor([5, 6, 7]), torch.tensor([5, 6, 8])
        >>> round(rouge(the_cat_ran, the_cat_sat, 1), 3), rouge(the_cat_ran, the_cat_sat, 2)
        (0.667, 0.5)
    """
    if n < 1:
        raise ValueError(f"expected `n` of at least 1, got {n}")
    found, real = _tokens(guess), _tokens(truth)
    if len(real) < n:
        return float(found == real)
    grams = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in (found, real)]
    shared = sum(
        min(count, grams[1][gram]) for gram, count in grams[0].items() if min(gram) >= 0
    )  # a token that is not known is nobody's
    return _f1(shared, grams[0].total(), grams[1].total())


def token_accuracy(guess: Tensor, truth: Tensor) -> Tensor:
    """Share of the places at which the right token was named, of those that either text fills, (n,).

    Args:
        guess: token ids (n, length).
        truth: token ids (n, length).

    Example:
        >>> token_accuracy(torch.tensor([[5, 6, 9, 0]]), torch.tensor([[5, 6, 7, 8]])).item()
        0.5
    """
    if guess.shape != truth.shape or guess.ndim != 2:
        raise ValueError(
            "expected `guess` and `truth` of one shape (n, length), "
            f"got {tuple(guess.shape)} and {tuple(truth.shape)}; pair them with `match_texts`"
        )
    filled = (guess != 0) | (truth != 0)
    return ((guess == truth) & filled).sum(1).double() / filled.sum(1).clamp(min=1)


def match_texts(guess: Tensor, truth: Tensor) -> Tensor:
    """For every true text the index of the guess that is paired with it, by the largest total ROUGE-1 and accuracy.

    Args:
        guess: token ids (m, length).
        truth: token ids (n, length).

    Returns:
        Indices (n,), each guess used at most once; −1 where the guesses ran out.

    Example:
        >>> match_texts(torch.tensor([[3, 4], [1, 2]]), torch.tensor([[1, 2], [3, 3]]))
        tensor([1, 0])
    """
    order = torch.full((len(truth),), -1, dtype=torch.long)
    if len(guess) == 0:
        return order
    like = np.array(
        [[rouge(one, real, 1) + float(token_accuracy(one[None], real[None])) for one in guess] for real in truth]
    )
    rows, columns = linear_sum_assignment(-like)
    order[torch.from_numpy(rows)] = torch.from_numpy(columns)
    return order


def bag_f1(bag: Tensor, texts: Tensor) -> float:
    """F1 of the tokens that are said to occur, (vocabulary,), against those that do in `texts`, (n, length).

    Example:
        >>> bag_f1(torch.tensor([False, True, True]), torch.tensor([[1, 0], [1, 0]]))
        0.6666666666666666
    """
    found = set(bag.nonzero().flatten().tolist()) - {0}
    real: Sequence[int] = texts.unique().tolist()
    occurring = set(real) - {0}
    return _f1(len(found & occurring), len(found), len(occurring))
