"""Where a search or a training stands, kept in a file, so that one that is killed goes on instead of beginning anew."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from shutil import rmtree

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils import _pytree as pytree

from seepage.engine.lanes import Tree

__all__ = ["Bookmark", "Bookmarks", "bookmarking", "current_bookmarks"]

EVERY = 60.0  # seconds: searches that are over sooner write nothing
MOST_BYTES = 2**31  # of one file: what is larger takes longer to write than it is worth


class Bookmarks:
    """Those of one attack, whose searches are told apart by the order in which they begin.

    Args:
        folder: for the files; it is made when there is something to keep.
        every: seconds between two of them, a minute where nothing is said.
    """

    def __init__(self, folder: Path, every: float | None = None) -> None:
        self.folder = folder
        self.every = EVERY if every is None else every
        self.searches = 0

    def search(self) -> str:
        """A name for the search that begins now."""
        self.searches += 1
        return f"search-{self.searches}"

    def forget(self) -> None:
        """The attack is over."""
        if self.folder.exists():
            rmtree(self.folder, ignore_errors=True)
            if not any(self.folder.parent.iterdir()):
                self.folder.parent.rmdir()


class Bookmark:
    """Of one chunk of lanes in one search.

    Args:
        bookmarks: where it is kept.
        search: its name there.
        lanes: number of the first lane and of the one after the last.
        steps: of the whole search.
    """

    def __init__(self, bookmarks: Bookmarks, search: str, lanes: tuple[int, int], steps: int) -> None:
        self.path = bookmarks.folder / f"{search}-{lanes[0]}-{lanes[1]}.safetensors"
        self.every = bookmarks.every
        self.steps = steps
        self.last = time.monotonic()

    def read(self, begin: Tree) -> tuple[Tree, int]:
        """The state that was kept and the iterations made until then, or `begin` and none where nothing fits it."""
        leaves, spec = pytree.tree_flatten(begin)
        try:
            with safe_open(self.path, "pt") as file:
                about = file.metadata() or {}
                kept = [file.get_tensor(name) for name in sorted(file.keys(), key=int)]
        except (OSError, SafetensorError):  # there is none, or it was cut off: then nothing is lost but time
            return begin, 0
        if about.get("steps") != str(self.steps) or [_kind(leaf) for leaf in kept] != [_kind(leaf) for leaf in leaves]:
            return begin, 0
        there = [leaf.to(like.device) for leaf, like in zip(kept, leaves, strict=True)]
        return pytree.tree_unflatten(there, spec), int(about["done"])

    def keep(self, state: Tree, done: int) -> None:
        """Write the state after so many iterations, if the last time was long enough ago.

        Where that fails, as on a full disk, the search goes on without: it is worth more than its bookmark.
        """
        if time.monotonic() - self.last < self.every:
            return
        leaves = pytree.tree_leaves(state)
        if sum(leaf.numel() * leaf.element_size() for leaf in leaves) <= MOST_BYTES:
            try:
                self._write(leaves, done)
            except (OSError, SafetensorError) as error:
                self.every = math.inf
                warnings.warn(f"{self.path}: where the search stands cannot be kept: {error}", stacklevel=2)
        self.last = time.monotonic()

    def _write(self, leaves: list[Tensor], done: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(f".{os.getpid()}")
        # Copies, since leaves may be one tensor under several names.
        tensors = {str(i): leaf.detach().to("cpu", copy=True).contiguous() for i, leaf in enumerate(leaves)}
        save_file(tensors, scratch, {"steps": str(self.steps), "done": str(done)})
        scratch.replace(self.path)


def _kind(leaf: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(leaf.shape), leaf.dtype


_bookmarks: ContextVar[Bookmarks | None] = ContextVar("bookmarks", default=None)


@contextmanager
def bookmarking(bookmarks: Bookmarks) -> Iterator[Bookmarks]:
    """Within this context, `minimise` keeps where it stands now and then, and goes on from there.

    What was kept is forgotten when the context ends, be it with an error. It stays where the process is killed or
    interrupted, which is what it is for.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from seepage.engine.minimise import minimise
        >>> from seepage.engine.optimisers import sgd
        >>> with TemporaryDirectory() as folder, bookmarking(Bookmarks(Path(folder) / "trial", every=0.0)):
        ...     found = minimise(lambda x: (x**2).sum(), torch.ones(1, 1, 2), optimiser=sgd(0.25), steps=9)
        ...     print([file.name for file in Path(folder).glob("*/*")])
        ['search-1-0-1.safetensors']
    """
    token = _bookmarks.set(bookmarks)
    try:
        yield bookmarks
    except Exception:
        bookmarks.forget()
        raise
    finally:
        _bookmarks.reset(token)
    bookmarks.forget()


def current_bookmarks() -> Bookmarks | None:
    """Those that are kept here, if any."""
    return _bookmarks.get()
