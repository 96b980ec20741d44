"""Sentences of film reviews, cut into BERT's pieces of words; good ones are class 1.

They are part of the source of vaderSentiment 3.3.2 (MIT), from its authors' study (Hutto and Gilbert, 2014):

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    tar xzf vaderSentiment-3.3.2.tar.gz
    tar xzf vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from minilm.network import CLASSES, LENGTH, vocabulary
from seepage.data import DataMissing, Dataset
from seepage.data.text import words
from seepage.spec import DataSpec, Examples

FILE = Path("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt")


def pieces(text: str, known: dict[str, int]) -> list[str]:
    """WordPiece: of every word the longest beginning that is known, then the longest that goes on from there."""
    found: list[str] = []
    for word in words(text.replace("'", " ' ").replace("-", " - ")):
        parts: list[str] = []
        begin = 0
        while begin < len(word):
            ends = (end for end in range(len(word), begin, -1) if ("##" if begin else "") + word[begin:end] in known)
            end = next(ends, None)
            if end is None:
                parts = ["[UNK]"]
                break
            parts.append(("##" if begin else "") + word[begin:end])
            begin = end
        found += parts
    return found


def encoded(texts: Sequence[str], known: dict[str, int]) -> torch.Tensor:
    """Token ids (n, length) with [CLS] before and [SEP] behind each text; longer ones are cut."""
    rows = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        tokens = ["[CLS]", *pieces(text, known)[: LENGTH - 2], "[SEP]"]
        row[: len(tokens)] = torch.tensor([known[token] for token in tokens])
    return rows


def snippets() -> Dataset:
    """1,000 sentences to train on and 1,000 that nobody does."""
    if not FILE.is_file():
        raise DataMissing(f"{FILE}: expected the snippets of film reviews, got none;{__doc__.partition(':')[2]}")
    lines = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines()[:2000]]
    names = vocabulary()
    x = encoded([text for _, _, text in lines], {name: i for i, name in enumerate(names)})
    y = torch.tensor([int(float(rating) > 0) for _, rating, _ in lines])
    return Dataset(
        "film reviews",
        DataSpec((LENGTH,), classes=CLASSES, vocabulary=len(names)),
        Examples(x[:1000], y[:1000]),
        Examples(x[1000:], y[1000:]),
        None,
        ("bad", "good"),
        "MIT",
        str(FILE),
        vocabulary=tuple(names),
    )
