"""What is said of an audit does not depend on whether it ended while its folder was read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("tomli_w", reason="the extra seepage[ui] is not installed")

from seepage.ui.jobs import Jobs
from seepage.ui.runs import find_run

WRONG = "colour = 1\n"
LONG = """
clients = { count = 2, examples = 1 }
model = { name = "linear" }
attack = [{ name = "inverting-gradients", steps = 1000000 }]
"""


def wait_for_the_end(jobs: Jobs) -> None:
    while jobs.running():
        time.sleep(0.05)


def test_one_that_ended_after_it_was_asked_whether_it_runs_is_asked_again(tmp_path: Path) -> None:
    jobs = Jobs()
    jobs.start(tmp_path / "wrong", WRONG)
    running = jobs.running()
    assert running == {tmp_path / "wrong"}
    read = find_run(tmp_path, "wrong")
    wait_for_the_end(jobs)
    assert jobs.state(read, running) == "running"
    assert jobs.state(find_run(tmp_path, "wrong"), jobs.running()) == "failed"


def test_one_that_was_stopped_and_one_of_another_server(tmp_path: Path) -> None:
    jobs = Jobs()
    jobs.start(tmp_path / "long", LONG)
    before = find_run(tmp_path, "long")
    assert jobs.state(before, jobs.running()) == "running"
    assert Jobs().state(before, set()) == "unfinished"
    jobs.stop(before)
    assert jobs.running() == set()
    assert jobs.state(before, jobs.running()) == "stopped"
