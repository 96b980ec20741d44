"""Makes `tests/common`, the suites that every attack and every defence inherits, importable as `common`."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))
pytest.register_assert_rewrite("common.attack_suite", "common.defence_suite", "common.walk")

# The tests' networks are so small that threads wait for each other more than they compute.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_networks_every_time() -> None:
    """A network that a test makes without a seed of its own is the same in every run."""
    torch.manual_seed(0)
