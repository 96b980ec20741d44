"""Small classifiers of text: an encoder as BERT is built, a decoder as GPT-2 is, an LSTM and a bag of words.

Vaswani et al., 2017, "Attention is all you need" (https://arxiv.org/abs/1706.03762); Devlin et al., 2019, "BERT"
(https://arxiv.org/abs/1810.04805); Radford et al., 2019, "Language models are unsupervised multitask learners".
All in plain products, so that they run and differentiate wherever PyTorch does. Token 0 fills up short texts: nobody
attends to it, and it is no part of the answer.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.models.shapes import choose, outputs
from seepage.spec import DataSpec

__all__ = ["TextTransformer", "text_bag", "text_decoder", "text_encoder", "text_lstm"]

Norm = Literal["pre", "post"]


class Block(nn.Module):
    """Self-attention and two linear layers, each added to what came in; normalised before (pre) or after (post)."""

    def __init__(self, width: int, heads: int, norm: Norm, causal: bool) -> None:
        super().__init__()
        self.heads, self.pre, self.causal = heads, norm == "pre", causal
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, z: Tensor, there: Tensor) -> Tensor:
        query, key, value = (
            layer(z).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )  # (n, heads, length, width / heads)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        seen = there[..., None, None, :]
        if self.causal:
            seen = seen & torch.ones(scores.shape[-2:], dtype=torch.bool, device=z.device).tril()
        # Finite, so that a row in which nothing is seen stays a number.
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        mixed: Tensor = self.out((scores.softmax(-1) @ value).transpose(-2, -3).flatten(-2))
        return mixed

    def think(self, z: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.up(z)))
        return out

    def forward(self, z: Tensor, there: Tensor) -> Tensor:
        if self.pre:
            z = z + self.attend(self.norm1(z), there)
            return z + self.think(self.norm2(z))
        z = self.norm1(z + self.attend(z, there))
        out: Tensor = self.norm2(z + self.think(z))
        return out


class TextTransformer(nn.Module):
    """Tokens and learned positions, blocks, and a linear layer on one place: the first, or the last that is filled."""

    def __init__(self, spec: DataSpec, width: int, heads: int, layers: int, norm: Norm, causal: bool) -> None:
        super().__init__()
        if width % heads or layers < 1:
            raise ValueError(
                f"expected `heads` to divide `width` and at least one of `layers`, got {heads}, {width} and {layers}"
            )
        self.pre, self.causal = norm == "pre", causal
        self.tokens, self.positions = nn.Embedding(_vocabulary(spec), width), nn.Embedding(spec.shape[0], width)
        self.norm = nn.LayerNorm(width)  # behind the embeddings (post) or in front of the head (pre)
        self.blocks = nn.ModuleList(Block(width, heads, norm, causal) for _ in range(layers))
        self.head = nn.Linear(width, outputs(spec))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, (n, classes), of token ids (n, length)."""
        there = x != 0
        z = self.tokens(x) + self.positions(torch.arange(x.shape[-1], device=x.device))
        z = z if self.pre else self.norm(z)
        for block in self.blocks:
            z = block(z, there)
        z = self.norm(z) if self.pre else z
        if self.causal:
            last = (there.sum(-1) - 1).clamp(min=0)
            z = z.gather(-2, last[..., None, None].expand(*last.shape, 1, z.shape[-1]))
        out: Tensor = self.head(z[..., 0, :])
        return out


class _Pooled(nn.Module):
    """The mean of the tokens' embeddings, or what an LSTM makes of them, and a linear layer."""

    def __init__(self, spec: DataSpec, width: int, hidden: int | None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_vocabulary(spec), width)
        self.lstm = None if hidden is None else nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden or width, outputs(spec))

    def forward(self, x: Tensor) -> Tensor:
        there = (x != 0)[..., None]
        z = self.tokens(x)
        z = z if self.lstm is None else self.lstm(z)[0]
        out: Tensor = self.head((z * there).sum(-2) / there.sum(-2).clamp(min=1))
        return out


def _vocabulary(spec: DataSpec) -> int:
    if spec.vocabulary is None:
        raise ValueError(
            f"expected text, of which the data spec tells the `vocabulary`, got numbers of shape {spec.shape}; "
            "use 'mlp' or 'linear' for tables"
        )
    return spec.vocabulary


def text_encoder(spec: DataSpec, *, width: int = 128, heads: int = 4, layers: int = 2, norm: str = "post") -> nn.Module:
    """An encoder as BERT is built: every token sees all others, and the first one is classified.

    Args:
        spec: of text.
        width: of embeddings and layers; BERT's is 768.
        heads: of the attention.
        layers: blocks.
        norm: `"post"` as in BERT and Vaswani et al., or `"pre"`.
    """
    return TextTransformer(spec, width, heads, layers, _norm(norm), causal=False)


def text_decoder(spec: DataSpec, *, width: int = 128, heads: int = 4, layers: int = 2, norm: str = "pre") -> nn.Module:
    """A decoder as GPT-2 is built: every token sees those before it, and the last one is classified.

    Args:
        spec: of text.
        width: of embeddings and layers; GPT-2's is 768.
        heads: of the attention.
        layers: blocks.
        norm: `"pre"` as in GPT-2, or `"post"`.
    """
    return TextTransformer(spec, width, heads, layers, _norm(norm), causal=True)


def text_lstm(spec: DataSpec, *, width: int = 64, hidden: int = 64) -> nn.Module:
    """An LSTM over the tokens' embeddings, whose outputs are averaged."""
    return _Pooled(spec, width, hidden)


def text_bag(spec: DataSpec, *, width: int = 64) -> nn.Module:
    """A linear layer on the mean of the tokens' embeddings."""
    return _Pooled(spec, width, None)


def _norm(name: str) -> Norm:
    choices: dict[str, Norm] = {"pre": "pre", "post": "post"}
    return choose("norm", name, choices)
