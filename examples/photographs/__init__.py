"""Six photographs that may be shown, from the samples of scikit-image, cut to squares of 96 pixels.

Astronaut, rocket and galaxies: NASA and SpaceX, public domain. Cat: Stefan van der Walt, CC0. Coffee: Rachel Michetti,
CC0. Retina: Mikael Häggström, CC0 (https://doi.org/10.15347/wjm/2014.008).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from seepage import DataSpec, Examples
from seepage.data import Dataset


def photographs() -> Dataset:
    """All of them in one batch, each a class of its own."""
    with np.load(Path(__file__).with_name("photographs.npz"), allow_pickle=False) as file:
        pixels = torch.from_numpy(file["images"]).movedim(-1, 1).float() / 255
        labels, names = torch.from_numpy(file["labels"]), tuple(file["names"].tolist())
    all_six = Examples(pixels, labels)
    return Dataset("photographs", DataSpec((3, 96, 96), classes=6), all_six, all_six, classes=names)
