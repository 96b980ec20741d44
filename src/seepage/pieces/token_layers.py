"""The linear layers of a network that reads tokens, and what enters them at every place of a text.

Found by watching a forward pass: every call of `torch.nn.functional.linear`, of `torch.addmm` as GPT-2 has it, or of
torch's own attention, with a trained weight. Layers that read the same thing, as query, key and value do, are one
entrance, because the gradients of their weights are made of the same rows.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.task import Params, Task

__all__ = ["Entrance", "entrances", "reads_one_place", "sees_only_the_past"]

CHUNK = 256
"""Texts that pass through the network at once."""


@dataclass(frozen=True, eq=False)
class Entrance:
    """What enters some linear layers.

    Args:
        weights: names of their parameters, (units, width) each, or (width, units) where `turned`.
        rows: what entered at every place of every text, (texts, length, width).
        turned: whether the weights are written the other way round, as GPT-2's are.
    """

    weights: tuple[str, ...]
    rows: Tensor
    turned: bool = False


class _Enough(Exception):
    """What comes after the layer asked for need not be computed."""


class _Watcher(TorchFunctionMode):
    """Notes what enters linear layers with a named weight, where that is one row for each place of a text."""

    def __init__(self, params: Params, shape: tuple[int, ...], until: str | None) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in params.items()}
        self.shape, self.until = shape, until
        self.seen: dict[int, tuple[list[str], Tensor, bool]] = {}
        self._kept: list[Tensor] = []  # an address must not be used twice while it is remembered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            self._note(*args[:2])
        elif func is functional.multi_head_attention_forward and args[0] is args[1] and args[5] is not None:
            self._note(args[0], args[5], swapped=True)  # it has places first
        elif func is torch.addmm and len(args[1]) == math.prod(self.shape):  # texts and places are one axis there
            self._note(args[1].unflatten(0, self.shape), args[2], turned=True)
        return func(*args, **(kwargs or {}))

    def _note(self, x: Tensor, weight: Tensor, swapped: bool = False, turned: bool = False) -> None:
        name, rows = self.names.get(id(weight)), x.transpose(0, 1) if swapped and x.dim() == 3 else x
        if name is None or rows.shape[:-1] != self.shape:
            return
        self.seen.setdefault(id(x), ([], rows.detach(), turned))[0].append(name)
        self._kept.append(x)
        if name == self.until:
            raise _Enough


@torch.no_grad()
def entrances(
    task: Task,
    params: Params,
    x: Tensor,
    *,
    buffers: Params | None = None,
    train: bool = False,
    until: str | None = None,
) -> list[Entrance]:
    """What enters the linear layers that see one row per token, in the order of the forward pass.

    Args:
        task: the module.
        params: for one client.
        x: token ids, (texts, length).
        buffers: for one client.
        train: mode of the module.
        until: name of the weight behind which nothing needs to be computed.

    Example:
        >>> from seepage.models import build
        >>> from seepage.spec import DataSpec
        >>> from seepage.streams import Stream
        >>> spec = DataSpec((4,), classes=2, vocabulary=9)
        >>> task = Task(build("text-encoder", spec, Stream.from_seed(0), width=8, layers=1), spec)
        >>> found = entrances(task, task.params, torch.ones(3, 4, dtype=torch.long))
        >>> [len(entrance.weights) for entrance in found], found[0].rows.shape
        ([3, 1, 1, 1], torch.Size([3, 4, 8]))
    """
    parts: list[list[Entrance]] = []
    for some in x.split(CHUNK):
        watcher = _Watcher(params, tuple(some.shape), until)
        with contextlib.suppress(_Enough), watcher:
            task.forward(params, some, buffers=buffers, train=train)
        parts.append([Entrance(tuple(weights), rows, turned) for weights, rows, turned in watcher.seen.values()])
    return [
        Entrance(same[0].weights, torch.cat([e.rows for e in same]), same[0].turned)
        for same in zip(*parts, strict=True)
    ]


def reads_one_place(rows: Tensor) -> bool:
    """Whether what enters at a place is decided by the token there.

    Args:
        rows: of three texts, (3, length, width): any, and the same with another first and with another last token.
    """
    return not bool(_differs(rows[1], rows[0])[1:].any() or _differs(rows[2], rows[0])[:-1].any())


def sees_only_the_past(rows: Tensor) -> bool:
    """Whether nothing that enters before the last place depends on the last token; see `reads_one_place`."""
    return not bool(_differs(rows[2], rows[0])[:-1].any())


def _differs(one: Tensor, other: Tensor) -> Tensor:
    # Products of the same numbers may be added up in another order; that is all that may differ.
    differs: Tensor = (one - other).norm(dim=-1) > 1e-5 * other.norm(dim=-1)
    return differs
