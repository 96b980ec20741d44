"""The job in `examples/nvflare`, in NVFlare's simulator: a server, and a process for each client.

What examples/nvflare/README.md says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from seepage.capture import examine
from seepage.frameworks.arrange import arrange, find_captures

pytest.importorskip("nvflare", reason="pip install 'seepage[nvflare]'")

JOB = Path(__file__).parents[2] / "examples" / "nvflare"


@pytest.mark.federation
def test_every_ward_of_a_running_job_is_captured_as_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "job.py", str(tmp_path / "captures")],
        cwd=JOB,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=600,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(JOB)
    from ward_model import Net, examples, task  # type: ignore[import-not-found]

    captures = {capture.client: capture for capture in find_captures(tmp_path / "captures")}
    assert set(captures) == {"site-1", "site-2"}, done.stdout
    for site, capture in captures.items():
        assert [problem for problem in examine(arrange(capture, task()), task()) if problem.fatal] == []
        (exchange,) = capture.exchanges
        assert (exchange.round, exchange.examples) == (0, 2)
        model, held = Net(), examples(site)
        model.load_state_dict(exchange.before)
        nn.functional.cross_entropy(model(held.x), held.y).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(exchange.update[name], 0.1 * parameter.grad, rtol=1e-3, atol=1e-7)
