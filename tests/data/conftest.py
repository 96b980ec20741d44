from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The real files, where somebody has put them."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ["SEEPAGE_DATA"]) if "SEEPAGE_DATA" in os.environ else beside
    if not (folder / "mnist_test.npz").is_file():
        pytest.skip(f"no data files in {folder}; set SEEPAGE_DATA to test with real data")
    return folder
