"""What all commands share: how they speak, where they compute, and errors said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["DataFolder", "Device", "DeviceOption", "NoDevice", "bar", "clear_errors", "pick_device", "say"]

say = Console(stderr=True, highlight=False)
"""For people; what machines may read goes to stdout."""


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class NoDevice(ValueError):
    """A device was asked for that is not there."""


DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute; auto takes a GPU if there is one.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder of data sets; default: $SEEPAGE_DATA.")]


def pick_device(device: Device, has_gpu: bool | None = None) -> torch.device:
    """The device that was asked for.

    Args:
        device: what was asked for.
        has_gpu: whether there is a GPU; `None` asks torch about this machine.

    Raises:
        NoDevice: when it should be a GPU and there is none.
    """
    there = torch.cuda.is_available() if has_gpu is None else has_gpu
    if device is Device.CUDA and not there:
        raise NoDevice("--device: expected a CUDA device, got none that torch can see; use --device cpu")
    return torch.device("cuda" if there and device is not Device.CPU else "cpu")


def bar() -> Progress:
    """A bar that is gone when its work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=say, transient=True)


_FILE_FIX = "check the path, who may write there, and whether there is room"


@contextmanager
def clear_errors(*mistakes: type[Exception], stopped: str = "Stopped.") -> Iterator[None]:
    """What a person did wrong is said in a sentence, with exit code 2; a traceback is for what Seepage did wrong.

    A file that the system does not let one read or write is no fault of Seepage's either.

    Args:
        *mistakes: errors that are a person's.
        stopped: what is said after Ctrl-C.
    """
    wrong: tuple[type[Exception], ...] = (NoDevice, *mistakes)
    try:
        yield
    except wrong as error:
        say.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    except OSError as error:
        if error.filename is None:
            raise
        fix = "name a folder, or none yet" if isinstance(error, FileExistsError | NotADirectoryError) else _FILE_FIX
        say.print(
            f"[bold red]error:[/bold red] {escape(f'{error.filename}: {error.strerror}; {fix}')}",
            soft_wrap=True,
        )
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say.print(stopped)
        raise typer.Exit(130) from None
