"""Which pictures of an attack's way are kept, and in which order they belong to the client's examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.audit.table import Footage, Pictures
from seepage.engine.film import Film
from seepage.metrics.matching import match
from seepage.spec import DataSpec

__all__ = ["footage", "gallery", "telling", "trimmed"]

BEST, MIDDLE, WORST = 6, 3, 3
MOST_CLIENTS = 24  # who get a gallery of their own


def telling(values: NDArray[np.float64]) -> dict[int, str]:
    """The places of the best, the middle and the worst of some values, in that order, each with its word.

    What is not a number is the worst. Where there are few, all of them are best, in order.

    Example:
        >>> telling(np.array([1.0, 9.0, 5.0]))
        {1: 'best', 2: 'best', 0: 'best'}
        >>> [(i, word) for i, word in telling(np.arange(100.0)).items()][5:8]
        [(94, 'best'), (51, 'median'), (50, 'median')]
    """
    order = [int(i) for i in np.argsort(-np.nan_to_num(values, nan=-math.inf), kind="stable")]
    if len(order) <= BEST + MIDDLE + WORST:
        return dict.fromkeys(order, "best")
    middle = max(BEST, (len(order) - MIDDLE) // 2)
    return {
        **dict.fromkeys(order[:BEST], "best"),
        **dict.fromkeys(order[middle : middle + MIDDLE], "median"),
        **dict.fromkeys(order[-WORST:], "worst"),
    }


def gallery(psnr: NDArray[np.float64], clients: Sequence[str]) -> dict[int, str]:
    """What is shown of many pictures: the most telling ones, and the best and the worst of every client.

    The word of a picture that is there for its client alone is empty.

    Example:
        >>> shown = gallery(np.arange(100.0), ["ann", "bob"] * 50)
        >>> len(shown), [i for i, word in shown.items() if not word]
        (12, [])
        >>> [i for i, word in gallery(np.arange(100.0), ["ann"] * 90 + ["bob"] * 10).items() if not word]
        [89, 90]
    """
    shown = telling(psnr)
    places: dict[str, list[int]] = {}
    for i, client in enumerate(clients):
        places.setdefault(client, []).append(i)
    for own in list(places.values())[:MOST_CLIENTS]:
        order = sorted(own, key=lambda i: -math.inf if math.isnan(psnr[i]) else psnr[i])
        shown |= {i: shown.get(i, "") for i in (order[-1], order[0])}
    return shown


def trimmed(pictures: Pictures) -> Pictures:
    """With footage of what a gallery shows alone: thousands of films would be larger than all other results."""
    film = pictures.footage
    if film is None:
        return pictures
    shown = gallery(pictures.psnr, pictures.client)
    kept = np.array([int(place) in shown for place in film.of], dtype=bool)
    return replace(pictures, footage=Footage(film.of[kept], film.moments, film.way[kept], film.epochs[kept]))


def footage(film: Film, spec: DataSpec, i: int, guess: Tensor, psnr: NDArray[np.float64]) -> Footage | None:
    """The way to the most telling answers about one client; `None` where nothing was filmed.

    An attack may restart, keep the examples of several epochs apart, and answer in any order: the restart and the
    order are those whose end is most like the answer. Where epochs are apart, the way is that of their mean.

    Args:
        film: of the attack on all clients.
        spec: in whose range pixels are shown.
        i: which client.
        guess: what was answered, raw values in the order of the truth, (n, channels, height, width).
        psnr: of the answers, in dB.
    """
    if film.frames is None or i >= film.frames.shape[1]:
        return None

    def shown(pixels: Tensor) -> Tensor:
        return 255 * torch.nan_to_num((pixels - spec.low) / (spec.high - spec.low)).clamp(0, 1)

    taken = shown(spec.pixels(film.frames[:, i].float())).round()
    frames, answer = taken.flatten(2, -5) if taken.ndim > 6 else taken.unsqueeze(2), shown(guess)
    starts = [[match(epoch, answer, 0.0, 255.0) for epoch in start] for start in frames[-1]]
    chosen = min(range(len(starts)), key=lambda s: _mismatch(frames[-1, s], starts[s], answer))
    orders = torch.stack(starts[chosen])  # (epochs, n)
    kept = [k for k in telling(psnr) if not math.isnan(psnr[k]) and bool((orders[:, k] >= 0).all())]
    if not kept:
        return None
    # (moments, epochs, kept, channels, height, width)
    way = torch.stack([frames[:, chosen, e, orders[e, kept]] for e in range(len(orders))], 1)
    return Footage(
        np.array(kept),
        np.array(film.moments),
        _bytes(way.float().mean(1)),
        _bytes(way[-1]) if len(orders) > 1 else _bytes(way[-1][:0]),
    )


def _mismatch(epochs: Tensor, orders: list[Tensor], answer: Tensor) -> float:
    """How far the mean over epochs is from the answer."""
    whole = torch.stack([epoch[order.clamp(min=0)].float() for epoch, order in zip(epochs, orders, strict=True)])
    return float((whole.mean(0) - answer).square().mean())


def _bytes(frames: Tensor) -> NDArray[np.uint8]:
    """(frames, kept, …) to (kept, frames, height, width, channels)."""
    whole: NDArray[np.uint8] = frames.round().to(torch.uint8).movedim(0, 1).movedim(2, -1).contiguous().numpy()
    return whole
