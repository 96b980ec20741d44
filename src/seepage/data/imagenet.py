"""A small part of ImageNet at 128 × 128: Russakovsky et al., 2015 (https://arxiv.org/abs/1409.0575)."""

from __future__ import annotations

from pathlib import Path

from seepage.data.dataset import Dataset
from seepage.data.folder import read_arrays
from seepage.data.images import image_examples, read_images
from seepage.spec import DataSpec

__all__ = ["load_imagenet"]

SPEC = DataSpec((3, 128, 128), classes=1000, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def load_imagenet(folder: Path) -> Dataset:
    """One image per class to train on (public data, or many clients), and 32 validation images to attack.

    Note:
        yue2023 feeds raw values: `load_imagenet(folder).normalised_by()`.
    """
    images, labels, names = read_arrays("imagenet", folder, "imagenet_1000x128.npz", ("images", "labels", "names"))
    train = image_examples(images, labels, SPEC)
    test = read_images("imagenet", folder, "imagenet_val32x128.npz", SPEC)
    return Dataset(
        "imagenet",
        SPEC,
        train,
        test,
        None,
        tuple(str(name) for name in names),
        "ImageNet terms: research and education only, no redistribution",
        "https://image-net.org",
    )
