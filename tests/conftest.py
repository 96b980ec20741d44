"""Makes `tests/common`, the suites that every attack and every defence inherits, importable as `common`."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.append(str(Path(__file__).parent))
pytest.register_assert_rewrite("common.attack_suite", "common.defence_suite", "common.walk")

# What somebody has set for a terminal of their own does not change what is printed here.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)

# The tests' networks are so small that threads wait for each other more than they compute.
torch.set_num_threads(1)

# What is drawn and how long it may take is the same on every machine; `make fuzz` draws anew each time.
settings.register_profile(
    "seepage",
    deadline=None,
    derandomize="SEEPAGE_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("seepage")


@pytest.fixture(autouse=True)
def _same_networks_every_time() -> None:
    """A network that a test makes without a seed of its own is the same in every run."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> None:
    """So is one that several tests share, whichever of them comes first."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)
