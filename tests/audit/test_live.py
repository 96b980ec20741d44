"""What a person sees of a run that goes on."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from common.audits import perform, tiny
from seepage.audit import live
from seepage.audit.live import LiveView
from seepage.audit.pool import Done


def shown(tmp_path: Path, terminal: bool, **options: Any) -> tuple[LiveView, str]:
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=terminal, width=100), **options)
    experiment = tiny(attack=[{"name": "inverting-gradients", "steps": [1, 2]}], threat=["honest-server", "nobody"][:1])
    with view:
        perform(experiment, tmp_path, listener=view.listen, after=[view.landed])
    return view, out.getvalue()


def test_in_a_terminal_it_counts_and_is_erased_at_the_end(tmp_path: Path) -> None:
    view, text = shown(tmp_path, terminal=True)
    assert (view.count, view.done, view.running, view.failed) == (2, 2, 0, 0)
    assert view.sentence() == "2 of 2 trials done, 0 running, 0 failed"
    assert "\x1b[" in text
    assert text.endswith("\x1b[2K")  # the last thing it does is to erase its lines


def test_elsewhere_there_are_plain_lines(tmp_path: Path) -> None:
    _, text = shown(tmp_path, terminal=False, every=0.0)
    assert "\x1b" not in text
    assert "\r" not in text
    assert re.search(r"1 of 2 trials done, 0 running, 0 failed, about \d+:\d\d:\d\d left", text)
    _, quiet = shown(tmp_path / "quiet", terminal=False, every=1e9)
    assert "trials done" not in quiet


def test_failures_lost_trials_and_gpus_of_other_machines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    clock = [0.0]
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    view = LiveView(Console(file=out, width=200), _began=0.0, _said=0.0)
    trial = next(tiny().trials())
    for event in ("start", "again", "error: crashed: gone"):
        view.listen(0, 3, trial, event)
    view.listen(1, 3, trial, "late")
    view.landed(Done(trial, [], None, {"gpu": "node-7 GPU 3", "gpu_gb": 41.25}))
    clock[0] = 65.0
    said = view.sentence()
    assert said.startswith("1 of 3 trials done, 0 running, 1 failed, 1 begun anew, about 0:01:05 left, ")
    assert said.endswith("node-7 GPU 3: 41.2 GB at most")
    assert "all: inverting-gradients, defence none: error: crashed: gone" in out.getvalue()
