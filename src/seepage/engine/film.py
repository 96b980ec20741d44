"""What the optimisation looked like on the way, without every attack having to keep it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from seepage.spec import DataSpec

__all__ = ["Film", "current_film", "filming", "shown_as"]

MOMENTS = 8
MOST_BYTES = 2**26  # of all frames: 64 MB, on the host and on the wire of a cluster
LARGEST = torch.finfo(torch.half).max


class Film:
    """What `minimise` would have answered at a few moments, of the last search that was for images.

    Args:
        spec: what one example looks like to the attack; only candidates made of such images are kept.

    Attributes:
        moments: updates made at each frame; the first is the start, or where the search went on after it had been
            killed, and the last is the end.
        frames: as the module eats them, in half precision, (moments, clients, starts, …, channels, height, width);
            `None` before any image was searched for, or where there are too many. In which range of pixels they are
            shown is for who shows them, and not for an attack to know.
    """

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.moments: list[int] = []
        self.frames: Tensor | None = None

    def begin(self, start: Any, clients: int, starts: int, steps: int) -> None:
        """A search over candidates like these, lanes first, begins."""
        if (found := self._images(pytree.tree_map(lambda leaf: leaf[:1], start), 0)) is None:
            return
        # Denser at the start, where most happens.
        self.moments = sorted({round(steps * (k / (MOMENTS - 1)) ** 2) for k in range(MOMENTS)})
        lanes: tuple[int, ...] = clients, starts
        if (meaning := _meaning.get()) is not None and meaning.clients is not None:
            lanes = meaning.clients, 1, clients * starts // meaning.clients
        shape = len(self.moments), *lanes, *found.shape[1:]
        self.frames = torch.zeros(shape, dtype=torch.half) if 2 * math.prod(shape) <= MOST_BYTES else None

    def take(self, step: int, begin: int, state: Any) -> None:
        """Keep what lanes from number `begin` on are at now, if this is one of the moments."""
        if self.frames is None or step not in self.moments or (found := self._images(state, begin)) is None:
            return
        taken = torch.nan_to_num(found).clamp(-LARGEST, LARGEST).half().cpu()
        self.frames[self.moments.index(step)].view(-1, *taken.shape[1:])[begin : begin + len(taken)] = taken

    def go_on(self, step: int) -> None:
        """A search goes on after so many updates; what it looked like before is not known any more."""
        late = [moment for moment in self.moments if moment >= step]
        if self.frames is not None:
            self.frames = self.frames[len(self.moments) - len(late) :]
        self.moments = late

    @torch.no_grad()
    def _images(self, tree: Any, begin: int) -> Tensor | None:
        if not self.spec.is_image:
            return None
        if (meaning := _meaning.get()) is not None:
            return meaning.images(tree, begin)
        shape = self.spec.shape
        leaves = pytree.tree_leaves(tree)
        return next((x for x in leaves if x.ndim > len(shape) + 1 and tuple(x.shape[-len(shape) :]) == shape), None)


Images: TypeAlias = Callable[[Any, int], Tensor]


@dataclass(frozen=True)
class _Meaning:
    images: Images
    clients: int | None


_film: ContextVar[Film | None] = ContextVar("film", default=None)
_meaning: ContextVar[_Meaning | None] = ContextVar("meaning", default=None)


@contextmanager
def filming(film: Film) -> Iterator[None]:
    """Within this context, `minimise` leaves pictures of its way in a film.

    Example:
        >>> from seepage.engine.minimise import minimise
        >>> from seepage.engine.optimisers import sgd
        >>> film = Film(DataSpec((1, 2, 2), classes=2))
        >>> with filming(film):
        ...     found = minimise(lambda x: (x**2).sum(), torch.ones(1, 1, 3, 1, 2, 2), optimiser=sgd(0.25), steps=2)
        >>> film.moments, film.frames[:, 0, 0, 0, 0, 0, 0].tolist()
        ([0, 1, 2], [1.0, 0.5, 0.25])
    """
    token = _film.set(film)
    try:
        yield
    finally:
        _film.reset(token)


@contextmanager
def shown_as(images: Images, clients: int | None = None) -> Iterator[None]:
    """Within this context, what is searched for is no image, and stands for one.

    Args:
        images: of the candidates of some lanes and the number of the first of these, what they stand for, as the module
            eats it: (lanes, …, channels, height, width).
        clients: how many there are, where a lane is a single image of theirs and not all images of one.

    Example:
        >>> from seepage.engine.minimise import minimise
        >>> from seepage.engine.optimisers import sgd
        >>> film = Film(DataSpec((1, 2, 2), classes=2))
        >>> with filming(film), shown_as(lambda z, begin: z[..., None, None, None].expand(-1, -1, 1, 2, 2)):
        ...     found = minimise(lambda z: (z**2).sum(), torch.ones(1, 1, 3), optimiser=sgd(0.25), steps=2)
        >>> film.frames.shape, film.frames[:, 0, 0, 0, 0, 0, 0].tolist()
        (torch.Size([3, 1, 1, 3, 1, 2, 2]), [1.0, 0.5, 0.25])
    """
    token = _meaning.set(_Meaning(images, clients))
    try:
        yield
    finally:
        _meaning.reset(token)


def current_film() -> Film | None:
    """What is being filmed, if anything."""
    return _film.get()
