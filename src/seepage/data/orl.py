"""The ORL (AT&T) faces: Samaria and Harter, 1994; 40 people, 10 pictures each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from seepage.data.dataset import Dataset
from seepage.data.folder import read_arrays
from seepage.data.images import image_examples
from seepage.spec import DataSpec

__all__ = ["load_orl"]

# Mean and standard deviation of the 400 pictures.
SPEC = DataSpec((1, 112, 92), classes=40, mean=(0.4417,), std=(0.1958,))


def load_orl(folder: Path) -> Dataset:
    """Pictures 1 to 8 of each person to train on, 9 and 10 to test on; owner and class are the person."""
    images, person, shot = read_arrays("orl", folder, "orl_faces.npz", ("images", "person", "shot"))
    train, test = shot <= 8, shot > 8
    return Dataset(
        "orl",
        SPEC,
        image_examples(images[train], person[train], SPEC),
        image_examples(images[test], person[test], SPEC),
        torch.from_numpy(person[train].astype(np.int64)),
        tuple(f"s{number}" for number in range(1, 41)),
        "free for research, credit Olivetti Research Laboratory; shows identifiable people",
        "https://www.cl.cam.ac.uk/research/dtg/attarchive/facedatabase.html",
        torch.from_numpy(person[test].astype(np.int64)),
    )
