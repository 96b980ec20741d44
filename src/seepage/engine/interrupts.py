"""Ctrl-C that stays Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """An interrupt comes out as `KeyboardInterrupt`, whatever was raised over it on the way.

    Where one falls between a `try` of PyTorch's and what that prepares, the `finally` undoes what was never done and
    fails; `torch.vmap`, for one, leaves a level that it did not enter. That error would be taken for a failed attack,
    written into a row, and the run would go on as if nobody had asked it to stop.

    Example:
        >>> try:
        ...     with heeding_interrupts():
        ...         try:
        ...             raise KeyboardInterrupt
        ...         finally:
        ...             raise RuntimeError("nothing to undo")
        ... except KeyboardInterrupt:
        ...     print("stopped")
        stopped
    """
    try:
        yield
    except Exception as error:
        below = error.__context__  # what `raise ... from` names as the cause is here too
        while below is not None and not isinstance(below, KeyboardInterrupt):
            below = below.__context__
        if below is None:
            raise
        raise KeyboardInterrupt from error
