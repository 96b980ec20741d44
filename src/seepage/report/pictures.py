"""Pictures as data URIs, so that the report needs no file beside it."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seepage.audit.table import Pictures
from seepage.report.words import decimal

__all__ = ["Pair", "best_pairs", "data_uri"]

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
    """

    truth: str | None
    guess: str | None
    psnr: float
    recovered: bool
    truth_alt: str
    guess_alt: str

    @property
    def size(self) -> int:
        """Characters that the two images take."""
        return len(self.truth or "") + len(self.guess or "")


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """A PNG of one image as a data URI; large images are scaled down.

    Args:
        pixels: bytes (height, width, channels); of other than one or three channels the first one is shown.

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
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def best_pairs(pictures: Pictures, threshold: float, most: int) -> list[Pair]:
    """At most so many pairs, the best reconstruction first and those without one last.

    Args:
        pictures: of one attack on one defence.
        threshold: PSNR in dB above which an image counts as recovered.
        most: pairs to return.
    """
    if pictures.truth.ndim != 4 or (pictures.scored and pictures.truth.shape != pictures.guess.shape):
        return []  # not images: there is nothing to show
    order = np.argsort(-np.nan_to_num(pictures.psnr, nan=-math.inf), kind="stable")[:most]
    return [_pair(pictures, int(i), threshold) for i in order]


def _pair(pictures: Pictures, i: int, threshold: float) -> Pair:
    psnr = float(pictures.psnr[i])
    name = f"image {pictures.item[i]} of client {pictures.client[i]}"
    if not pictures.scored:
        return Pair(None, data_uri(pictures.guess[i]), psnr, False, "", f"What the attack takes {name} to be, unscored")
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
    )
