from __future__ import annotations

import os
from pathlib import Path

import pytest

from seepage.perceptual import LpipsWeights, WeightsMissing, load_lpips


@pytest.fixture(scope="session")
def lpips_folder() -> Path:
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folders = [Path(os.environ["SEEPAGE_DATA"])] if os.environ.get("SEEPAGE_DATA") else []
    for folder in [*folders, beside]:
        try:
            load_lpips(folder)
        except WeightsMissing:
            continue
        return folder
    pytest.skip("the weights of LPIPS are not here: set SEEPAGE_DATA, or run `seepage fetch lpips`")


@pytest.fixture(scope="session")
def weights(lpips_folder: Path) -> LpipsWeights:
    return load_lpips(lpips_folder)
