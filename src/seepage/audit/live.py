"""How far a run is, for whoever watches: a view that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

import torch
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from seepage.audit.experiment import Trial
from seepage.audit.perform import defence_name
from seepage.audit.pool import Done

__all__ = ["LiveView", "trial_name"]

UNMEASURED = ("error", "not applicable", "unsound")
"""How the outcomes of trials begin that gave no number."""


def trial_name(trial: Trial) -> str:
    """As people call it."""
    what = "accuracy per round" if trial.attack is None else trial.label or trial.attack.name
    return f"{trial.case}: {what}, defence {defence_name(trial.defence)}"


@dataclass(eq=False)
class LiveView:
    """Counts trials and says how many are done, running and failed, and how long the others may take.

    Args:
        console: where to show it. In a terminal the view is erased at the end; elsewhere there are plain lines.
        every: seconds between two plain lines.
    """

    console: Console
    every: float = 30.0
    count: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0
    lost: int = 0
    late: int = 0
    gpus: dict[str, str] = field(default_factory=dict)
    _fresh: int = 0  # done by this run, and not by an earlier one
    _began: float = field(default_factory=time.monotonic)
    _said: float = field(default_factory=time.monotonic)
    _bars: Progress = field(
        default_factory=lambda: Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
    )

    def __post_init__(self) -> None:
        self._whole = self._bars.add_task("Trials", total=None)
        self._inner = self._bars.add_task("", total=None, visible=False)
        self._live = Live(self, console=self.console, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __rich__(self) -> RenderableType:
        """The bars, and a sentence below them."""
        return Group(self._bars, Text(self.sentence(), style="dim"))

    def listen(self, number: int, count: int, trial: Trial, event: str) -> None:
        """See `run`."""
        self.count = count
        if event.startswith("note: "):
            self.console.print(f"[dim]{escape(event)}[/dim]", soft_wrap=True)
        elif event == "late":
            self.late += 1
        elif event == "again":
            self.lost += 1
        elif event == "start":
            self.running += 1
            self._bars.reset(self._inner, description=escape(f"  {trial_name(trial)}"), visible=True, total=None)
        else:
            self.done += 1
            if event != "skip":
                self.running -= 1
                self._fresh += 1
            if event.startswith(UNMEASURED):
                self.failed += 1
                self.console.print(f"[yellow]{escape(trial_name(trial))}: {escape(event)}[/yellow]", soft_wrap=True)
        self._bars.update(self._whole, completed=self.done, total=count)
        if not self.console.is_terminal and time.monotonic() - self._said > self.every:
            self._said = time.monotonic()
            self.console.print(self.sentence(), soft_wrap=True)

    def landed(self, done: Done) -> None:
        """What a trial on another machine says of its GPU."""
        if "gpu" in done.note:
            self.gpus[done.note["gpu"]] = f"{done.note['gpu']}: {done.note['gpu_gb']:.1f} GB at most"

    def watch(self, step: int, steps: int, value: float) -> None:
        """See `seepage.engine.progress.watching`."""
        self._bars.update(self._inner, completed=step, total=steps)

    def sentence(self) -> str:
        """All that is known, in one line.

        Example:
            >>> LiveView(Console(), count=10, done=4, running=2, failed=1, lost=3).sentence()
            '4 of 10 trials done, 2 running, 1 failed, 3 begun anew'
        """
        parts = [f"{self.done} of {self.count} trials done", f"{self.running} running", f"{self.failed} failed"]
        if self.lost:
            parts.append(f"{self.lost} begun anew")
        left = self.count - self.done - self.late
        if self._fresh and left > 0:
            seconds = int((time.monotonic() - self._began) / self._fresh * left)
            parts.append(f"about {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left")
        return ", ".join(parts + (list(self.gpus.values()) or _gpus_here()))


def _gpus_here() -> list[str]:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    sizes = [torch.cuda.mem_get_info(i) for i in range(torch.cuda.device_count())]
    return [f"GPU {i}: {(total - free) / 1e9:.1f} of {total / 1e9:.0f} GB" for i, (free, total) in enumerate(sizes)]
