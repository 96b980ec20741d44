"""Labels of every client of a view, as attacks want them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from seepage.pieces.labels.geng import Geng
from seepage.pieces.labels.guess import LabelMethod
from seepage.pieces.labels.head import client_of
from seepage.pieces.labels.idlg import Idlg
from seepage.pieces.labels.ilrg import Ilrg
from seepage.pieces.labels.rlu import Rlu
from seepage.recipe import SGD
from seepage.streams import Stream
from seepage.threat import Fact, View

__all__ = ["METHODS", "MethodName", "best_method", "guess_labels", "recover_labels"]

MethodName = Literal[
    "auto",
    "idlg",
    "geng-server",
    "geng-client",
    "geng-interpolated",
    "geng-as-code",
    "ilrg",
    "ilrg-as-paper",
    "rlu",
]

METHODS: Mapping[str, LabelMethod] = MappingProxyType(
    {
        "idlg": Idlg(),
        "geng-server": Geng("server"),
        "geng-client": Geng("client"),
        "geng-interpolated": Geng("interpolated"),
        "geng-as-code": Geng("interpolated", formula="weight", rounding="code"),
        "ilrg": Ilrg(),
        "ilrg-as-paper": Ilrg(shrink=0.0, points=1),
        "rlu": Rlu(),
    }
)


def best_method(view: View) -> str:
    """The method that was measured to be the best for such clients.

    One example: iDLG. Optimisers other than SGD: RLU, the only one that knows them. Else iLRG, or Geng's where the head
    has no bias.
    """
    if view.count == 1:
        return "idlg"
    if view.kind != "gradient" and not isinstance(view.steps.each.optimiser, SGD):
        return "rlu"
    return "ilrg" if f"{view.task.head}.bias" in view.update else "geng-interpolated"


def guess_labels(view: View, rng: Stream, method: str | LabelMethod = "auto") -> tuple[Tensor, Tensor]:
    """Labels of every client, (clients, count), and how sure they are, (clients,).

    Args:
        view: what the attacker holds.
        rng: for dummy inputs and simulated clients.
        method: a key of `METHODS`, or one with knobs of its own; `"auto"` is the granted labels where there are any,
            else `best_method`.

    Raises:
        NotKnown: when the threat model hides the number of examples, or the steps that the scale of an update needs.
        LabelsHidden: when the method has nothing to say about this kind of module, data or update.
    """
    like = next(iter(view.update.values()))
    if method == "auto" and view.knows(Fact.LABELS):
        return view.labels, torch.ones(len(view.clients), dtype=like.dtype, device=like.device)
    if isinstance(method, str) and method not in ("auto", *METHODS):
        raise ValueError(f"expected `method` to be one of {['auto', *METHODS]}, got {method!r}")
    client_of(view, 0)  # before the facts that only some methods need: is there a mark of labels at all?
    if isinstance(method, str):
        method = METHODS[best_method(view) if method == "auto" else method]
    guesses = [method(view, i, rng / client / "dummies") for i, client in enumerate(view.clients)]
    return (
        torch.stack([guess.labels for guess in guesses]).to(like.device),
        torch.tensor([guess.confidence for guess in guesses], dtype=like.dtype, device=like.device),
    )


def recover_labels(view: View, rng: Stream, method: str | LabelMethod = "auto") -> Tensor:
    """Labels of every client, (clients, count); see `guess_labels`."""
    return guess_labels(view, rng, method)[0]
