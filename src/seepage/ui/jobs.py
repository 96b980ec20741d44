"""Audits as processes of their own, which go on when the page is closed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from seepage.ui.runs import LOG, Run

__all__ = ["Jobs"]


class Jobs:
    """The audits that this server has started."""

    def __init__(self) -> None:
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, folder: Path, spec: str) -> None:
        """Write a specification into a new folder and audit it."""
        folder.mkdir(parents=True)
        path = folder / "spec.toml"
        path.write_text(spec, encoding="utf-8")
        command = [sys.executable, "-m", "seepage", "audit", str(path), "--out", str(folder)]
        with (folder / LOG).open("wb") as log:
            self._processes[folder] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def stop(self, run: Run) -> None:
        """Ask an audit to end; finished trials stay."""
        process = self._processes.get(run.folder)
        if process is not None:
            _end(process)

    def stop_all(self) -> None:
        """Ask all of them."""
        for process in self._processes.values():
            _end(process)

    def running(self) -> set[Path]:
        """Folders of those that have not ended; ask before a folder is read, so that none ends in between."""
        return {folder for folder, process in list(self._processes.items()) if process.poll() is None}

    def state(self, run: Run, running: Collection[Path]) -> str:
        """In a word: running, finished, failed, stopped or unfinished.

        Args:
            run: what was found in its folder.
            running: the folders of the audits that ran when it was read.
        """
        process = self._processes.get(run.folder)
        code = None if process is None else process.poll()
        if run.folder in running or (process is not None and code is None):
            return "running"
        if run.complete:
            return "finished"
        if code is None:
            return "unfinished"
        return "stopped" if code < 0 else "failed"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
