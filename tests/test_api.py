"""`import seepage`: cheap until a name is asked for, and then all names are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seepage
from seepage import api
from seepage.home import version


def test_every_name_is_there_and_no_other() -> None:
    for name in api.__all__:
        assert getattr(seepage, name) is getattr(api, name)
    assert set(api.__all__) <= set(dir(seepage))
    everything: dict[str, Any] = {}
    exec("from seepage import *", everything)
    assert set(api.__all__) <= set(everything)
    with pytest.raises(AttributeError, match="module 'seepage' has no attribute 'Taks'"):
        _ = seepage.Taks  # type: ignore[attr-defined]


def test_parts_of_the_package_come_with_the_first_name() -> None:
    program = (
        "import sys, seepage; assert 'torch' not in sys.modules; assert seepage.attacks.ATTACKS is seepage.ATTACKS"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)


def test_help_names_everything_there_is_and_nothing_else() -> None:
    words = set(re.findall(r"\w+", seepage.__doc__ or ""))
    assert set(api.__all__) <= words
    assert not {"Any", "TYPE_CHECKING", "importlib"} & set(dir(seepage))
    assert seepage.__version__ == version()
