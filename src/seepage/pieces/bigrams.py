"""How usual a text is, by which tokens follow each other in public texts: a small language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Bigrams"]

SMOOTHING = 0.1
"""How many pairs' worth the frequency of a token alone counts, and how many tokens' worth a uniform choice."""


@dataclass(frozen=True, eq=False)
class Bigrams:
    """Frequencies of tokens and of pairs of neighbours.

    Args:
        vocabulary: number of token ids; 0 stands before and behind every text.
        before: how often each comes before another, (vocabulary,).
        after: how often each comes after another, (vocabulary,).
        pairs: those that occur, as first · vocabulary + second, ascending, (pairs,).
        counts: how often, (pairs,).
    """

    vocabulary: int
    before: Tensor
    after: Tensor
    pairs: Tensor
    counts: Tensor

    @staticmethod
    def counted(texts: Tensor, vocabulary: int) -> Bigrams:
        """Of public texts (n, length), at least one.

        Example:
            >>> usual = Bigrams.counted(torch.tensor([[1, 2, 0], [1, 2, 0]]), 3)
            >>> usual.surprise(torch.tensor([[1, 2, 0], [2, 1, 0]])).round()
            tensor([0., 4.])
        """
        before, after, there = _neighbours(texts)
        pairs, counts = (before * vocabulary + after)[there].unique(return_counts=True)
        of_first, of_second = (torch.bincount(side[there], minlength=vocabulary) for side in (before, after))
        return Bigrams(vocabulary, of_first, of_second, pairs, counts)

    def surprise(self, texts: Tensor) -> Tensor:
        """The mean of −log p(token | the one before), (n,) for texts (n, length)."""
        before, after, there = _neighbours(texts)
        keys = before * self.vocabulary + after
        where = torch.searchsorted(self.pairs, keys).clamp(max=len(self.pairs) - 1)
        seen = torch.where(self.pairs[where] == keys, self.counts[where], 0)
        usual = (self.after + SMOOTHING) / (self.after.sum() + SMOOTHING * self.vocabulary)
        chance = (seen + SMOOTHING * usual[after]) / (self.before[before] + SMOOTHING)
        means: Tensor = -(chance.log() * there).sum(1) / there.sum(1)
        return means


def _neighbours(texts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, those behind them, and which pairs belong to a text, its beginning and end included."""
    edge = texts.new_zeros(len(texts), 1).cpu()
    framed = torch.cat([edge, texts.cpu(), edge], 1)
    before, after = framed[:, :-1], framed[:, 1:]
    return before, after, (before != 0) | (torch.arange(before.shape[1]) == 0)
