"""One cell of a benchmark in a process of its own, so that its peak memory and its failures are its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["in_own_process"]


def in_own_process(script: str, arguments: Sequence[str], limit: float) -> dict[str, Any]:
    """What `script` prints as JSON in its last line, or `{"error": why}`.

    Args:
        script: path of the benchmark.
        arguments: that make it measure one cell.
        limit: most seconds.
    """
    try:
        run = subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not finished in {limit:.0f} s"}
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or ["failed"])[-1][:150]}
    result: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return result
