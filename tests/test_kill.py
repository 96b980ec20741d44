"""A run that is killed at random moments, and started again each time, ends with the table of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

from seepage.audit.summary import read_rows

KILLS = 10
SPEC = """
name = "to be killed"
accuracy = true
clients = { count = 4, examples = 2 }
model = { name = "mlp", options = { hidden = [32] } }
recipe = { epochs = 2, sends = "weights" }
federation = { rounds = 2 }
watch = { clients = 4, together = 2 }
attack = [{ name = "inverting-gradients", steps = 15 }]
defence = ["none", { name = "gaussian-noise", std = 0.001 }]
threat = ["honest-server", "label-aware-server"]
"""
TRIALS = 2 * 2 * 2 + 2


def start(spec: Path, out: Path, **streams: int) -> subprocess.Popen[str]:
    source = Path(__file__).parents[1] / "src"
    variables = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "seepage", "audit", str(spec), "--out", str(out), "--device", "cpu"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
    # A shell starts what it puts in the background deaf to interrupts, and children inherit that.
    return subprocess.Popen(command, env=variables, text=True, preexec_fn=_hears_interrupts, **quiet)


def _hears_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def finish(process: subprocess.Popen[str], within: float) -> int | None:
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        return None


def wait_for_a_trial(process: subprocess.Popen[str], folder: Path) -> None:
    """Until one more trial is finished, or the process has ended."""

    def finished() -> int:
        return len(list((folder / "rows").glob("*.parquet")))

    before = finished()
    while finished() == before and process.poll() is None:
        time.sleep(0.01)


def rows(folder: Path) -> pd.DataFrame:
    return read_rows(folder)[1]


def check_whole_files(folder: Path) -> int:
    """Whatever bears its real name is whole; says how many trials are finished."""
    finished = sorted((folder / "rows").glob("*.parquet"))
    for path in finished:
        assert pq.read_table(path).num_rows > 0
        assert (folder / "notes" / f"{path.stem}.json").read_text().endswith("}")
    if finished:
        assert pd.read_parquet(folder / "rows")["trial"].nunique() == len(finished)
    return len(finished)


@pytest.mark.slow
def test_killed_at_ten_random_moments_it_ends_with_the_same_table_row_for_row(tmp_path: Path) -> None:
    spec, calm, wild = tmp_path / "spec.toml", tmp_path / "calm", tmp_path / "wild"
    spec.write_text(SPEC)
    began = time.perf_counter()
    assert start(spec, calm).wait() == 0
    duration = time.perf_counter() - began
    expected = rows(calm)
    assert expected["trial"].nunique() == TRIALS
    assert expected["value"].notna().all()

    draw = random.Random(4)
    progress: list[int] = []
    while len(progress) < KILLS:
        process = start(spec, wild)
        if not progress:  # the first is sure to fall before all trials
            finish(process, 0.1)
        elif len(progress) % 3 == 2:  # most of the duration is start-up, so every third is sure to fall among trials
            wait_for_a_trial(process, wild)
            finish(process, draw.uniform(0, 0.3))
        else:
            finish(process, draw.uniform(0, duration))
        process.kill()
        if process.wait() == -signal.SIGKILL:
            progress.append(check_whole_files(wild))
        else:  # done before its moment came: the remaining kills are for a new folder
            assert process.returncode == 0
            assert_frame_equal(rows(wild), expected, check_exact=True)
            shutil.rmtree(wild)
    assert start(spec, wild).wait() == 0
    assert check_whole_files(wild) == TRIALS
    assert_frame_equal(rows(wild), expected, check_exact=True)
    assert (wild / "index.html").exists()
    assert progress[0] == 0
    assert any(0 < done < TRIALS for done in progress), progress


LONG = """
clients = { count = 2, examples = 1 }
model = { name = "linear" }
attack = [{ name = "inverting-gradients", steps = 2 }, { name = "inverting-gradients", steps = 1000000 }]
"""


@pytest.mark.slow
def test_an_interrupt_keeps_finished_trials_and_says_how_to_go_on(tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(LONG)
    process = start(spec, out, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_a_trial(process, out)
    assert finish(process, 0.5) is None  # it is in the second trial
    process.send_signal(signal.SIGINT)
    try:
        said, complained = process.communicate(timeout=300)
    finally:
        process.kill()  # else one that did not hear would go on for hours
    assert process.returncode == 130, complained
    assert said == ""
    assert f"Stopped. Finished trials are kept in {out}; run the same command again to go on." in complained
    assert "Traceback" not in complained
    assert check_whole_files(out) == 1
    assert not [name for _, _, names in os.walk(out) for name in names if name.startswith(".")]
