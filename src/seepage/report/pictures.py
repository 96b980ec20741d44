"""Pictures as data URIs, so that the report needs no file beside it."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seepage.audit.footage import gallery
from seepage.audit.table import Pictures
from seepage.report.words import decimal

__all__ = ["Pair", "data_uri", "gallery_pairs"]

LARGEST = 112  # pixels of the longer side: more is not visible at the size of a strip


@dataclass(frozen=True)
class Pair:
    """A true image beside what the attack made of it.

    Args:
        truth: data URI; `None` where the truth is not known, and nothing was scored.
        guess: data URI; `None` where the attack gave nothing.
        psnr: in dB.
        recovered: whether that is above the threshold.
        truth_alt: the true image in words.
        guess_alt: the reconstruction in words.
        client: whose it is.
        item: which of the client's examples.
        rank: "best", "median" or "worst" of all; empty for one that is shown for its client alone.
        way: data URIs of the reconstruction on the way, the start first; empty where that was not filmed.
        epochs: data URIs of what was found for each local epoch by itself; likewise.
    """

    truth: str | None
    guess: str | None
    psnr: float
    recovered: bool
    truth_alt: str
    guess_alt: str
    client: str = ""
    item: str = ""
    rank: str = "best"
    way: list[str] = field(default_factory=list)
    epochs: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Characters that its images take."""
        return len(self.truth or "") + len(self.guess or "") + sum(map(len, [*self.way, *self.epochs]))


def data_uri(pixels: NDArray[np.uint8], *, exact: bool = True) -> str:
    """One image as a data URI; large images are scaled down.

    Args:
        pixels: bytes (height, width, channels); of other than one or three channels the first one is shown.
        exact: every pixel as it is, as PNG; else as WebP, which takes noise in a third of the characters.

    Example:
        >>> data_uri(np.zeros((4, 4, 1), np.uint8))[:22]
        'data:image/png;base64,'
    """
    if pixels.ndim != 3:
        raise ValueError(f"expected one image (height, width, channels), got shape {pixels.shape}")
    image = Image.fromarray(np.ascontiguousarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]))
    if max(image.size) > LARGEST:
        image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    if exact:
        image.save(file, "PNG", optimize=True)
    else:
        image.save(file, "WEBP", quality=60, method=4)
    kind = "png" if exact else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def gallery_pairs(pictures: Pictures, threshold: float, filmed: bool = True) -> list[Pair]:
    """The pairs worth a look, the best reconstruction first and those without one last.

    Args:
        pictures: of one attack on one defence.
        threshold: PSNR in dB above which an image counts as recovered.
        filmed: with how they came about, which makes the page several times as large.
    """
    if pictures.truth.ndim != 4 or (pictures.scored and pictures.truth.shape != pictures.guess.shape):
        return []  # not images: there is nothing to show
    ranks = gallery(pictures.psnr, pictures.client)
    order = sorted(ranks, key=lambda i: math.inf if math.isnan(pictures.psnr[i]) else -pictures.psnr[i])
    return [_pair(pictures, i, ranks[i], threshold, filmed) for i in order]


def _pair(pictures: Pictures, i: int, rank: str, threshold: float, filmed: bool) -> Pair:
    psnr, client, item = float(pictures.psnr[i]), str(pictures.client[i]), str(pictures.item[i])
    name = f"image {item} of client {client}"
    way, epochs = _footage(pictures, i) if filmed else ([], [])
    if not pictures.scored:
        alt = f"What the attack takes {name} to be, unscored"
        return Pair(None, data_uri(pictures.guess[i]), psnr, False, "", alt, client, item, rank, way, epochs)
    missing = math.isnan(psnr)
    # NaN compares false: no reconstruction is not recovered.
    recovered = psnr > threshold
    words = f"PSNR {decimal(psnr)} dB, {'above' if recovered else 'not above'} the threshold"
    return Pair(
        data_uri(pictures.truth[i]),
        None if missing else data_uri(pictures.guess[i]),
        psnr,
        recovered,
        f"True {name}",
        f"No reconstruction of {name}" if missing else f"Reconstruction of {name}: {words}",
        client,
        item,
        rank,
        way,
        epochs,
    )


def _footage(pictures: Pictures, i: int) -> tuple[list[str], list[str]]:
    film = pictures.footage
    if film is None or i not in film.of:
        return [], []
    k = int(np.flatnonzero(film.of == i)[0])
    way, epochs = ([data_uri(frame, exact=False) for frame in frames[k]] for frames in (film.way, film.epochs))
    return way, epochs
