"""Telling a person how far the optimisation is, without every attack having to pass it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Watcher", "current_watcher", "watching"]

Watcher = Callable[[int, int, float], None]
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within this context, `minimise` calls `watcher(step, steps, mean best value)` now and then.

    Example:
        >>> import torch
        >>> from seepage.engine.minimise import minimise
        >>> from seepage.engine.optimisers import sgd
        >>> with watching(lambda step, steps, value: print(step, steps)):
        ...     found = minimise(lambda x: (x**2).sum(), torch.ones(1, 1, 2), optimiser=sgd(0.5), steps=3)
        3 3
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def current_watcher() -> Watcher | None:
    """Who is watching, if anybody."""
    return _watcher.get()
