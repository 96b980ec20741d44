"""Audits as processes of their own, which go on when the page is closed."""

from __future__ import annotations

import subprocess
import sys
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
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait(timeout=30)

    def stop_all(self) -> None:
        """Ask all of them."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=30)

    def state(self, run: Run) -> str:
        """In a word: running, finished, failed, stopped or unfinished."""
        process = self._processes.get(run.folder)
        if process is not None and process.poll() is None:
            return "running"
        if run.complete:
            return "finished"
        if process is None:
            return "unfinished"
        return "stopped" if process.returncode < 0 else "failed"
