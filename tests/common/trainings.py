"""What every training must do: go on where it was stopped, and end as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seepage.train.loop import Lesson, train


class Stopped(Exception):
    """Somebody pressed Ctrl-C."""


def ends_as_an_undisturbed_one(lesson: Callable[[], Lesson], folder: Path) -> None:
    """A training of four steps, stopped at the third after a checkpoint at the second, and begun again.

    Args:
        lesson: makes it, the same every time.
        folder: an empty one.
    """

    def stop(step: int, steps: int, losses: dict[str, float]) -> None:
        if step == 3:
            raise Stopped

    whole = train(lesson(), folder / "whole.safetensors", source="test")
    again = folder / "again.safetensors"
    with pytest.raises(Stopped):
        train(lesson(), again, source="test", checkpoint_every=2, report_every=1, listener=stop)
    assert not again.exists()
    steps: list[int] = []
    resumed = train(lesson(), again, source="test", report_every=1, listener=lambda step, *_: steps.append(step))
    assert steps[0] == 3  # two were done
    for (name, one), other in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert one.equal(other), name  # running means and variances among them
    assert not list(folder.glob("*.checkpoint"))
