"""Meeting the user's module politely: which layers batch, which differentiate twice, and what is done about the rest.

Every attack differentiates a gradient, for many clients at once. The registry here says, before any work is spent,
which layers stand in the way, why, and what the fix is; `Task.check` adds what only a trial can show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

__all__ = ["Concern", "Consequence", "known_concerns"]


class Consequence(StrEnum):
    """What a layer means for the work ahead."""

    NOTE = "note"  # handled; the reader should know
    LOOP = "loop"  # clients and restarts run one after another, with the same numbers
    REFUSE = "refuse"  # cannot be attacked through this layer


@dataclass(frozen=True)
class Concern:
    """One layer that is not plainly fine.

    Args:
        layer: dotted name inside the user's module.
        kind: the layer's class.
        consequence: what Seepage will do.
        why: the reason.
        fix: what the user can do about it.
    """

    layer: str
    kind: str
    consequence: Consequence
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.layer or '(the module)'} [{self.kind}] {self.consequence}: {self.why}. {self.fix}."


@dataclass(frozen=True)
class Rule:
    """What there is to say about a kind of layer; the first rule that fits a layer speaks.

    Args:
        kinds: classes of layers.
        consequence: as in `Concern`.
        why: likewise.
        fix: likewise.
        applies: whether it holds for this very layer.
    """

    kinds: tuple[type[Any], ...]
    consequence: Consequence
    why: str
    fix: str
    applies: Callable[[Any], bool] = lambda layer: True


# Tried with torch 2.13: convolutions, linear layers, pooling, GroupNorm, LSTM and eval-mode BatchNorm need no rule.
RULES = (
    Rule(
        (LazyModuleMixin,),
        Consequence.REFUSE,
        "its parameters have no shape yet",
        "Run one batch through the module before you hand it over",
        lambda layer: bool(layer.has_uninitialized_params()),
    ),
    Rule(
        (_BatchNorm,),
        Consequence.NOTE,
        "in train mode each example's gradient depends on the whole batch, and running statistics are sent or kept",
        "Nothing to do; set `batch_norm = 'eval'` in the recipe if the clients freeze the statistics",
    ),
    Rule(
        (_InstanceNorm,),
        Consequence.REFUSE,
        "it writes running statistics in place, which a double gradient cannot follow",
        "Build it with track_running_stats=False, or use nn.GroupNorm",
        lambda layer: bool(layer.track_running_stats),
    ),
    Rule(
        (nn.AlphaDropout, nn.FeatureAlphaDropout),
        Consequence.LOOP,
        "its masks come from torch's global generator",
        "Replace it by nn.Dropout",
    ),
    Rule(
        (_DropoutNd,),
        Consequence.NOTE,
        "the client draws masks that no attacker can know, so the attack simulates the client without them",
        "Nothing to do; with p = 0 the leak would be larger",
        lambda layer: layer.p > 0,
    ),
    Rule(
        (nn.GRU, nn.GRUCell, nn.RNN),
        Consequence.LOOP,
        "torch has no batching rule for this recurrent cell, so lanes run one after another",
        "Use nn.LSTM, or accept the slower loop; the numbers are the same",
    ),
    Rule(
        (nn.MultiheadAttention,),
        Consequence.NOTE,
        "fused attention kernels have no second derivative, so the plain 'math' kernel is used; its dropout is off",
        "Nothing to do",
    ),
    Rule(
        (nn.Embedding, nn.EmbeddingBag),
        Consequence.REFUSE,
        "its input is an integer, so no gradient reaches the data",
        "Hand over the part of the module behind the embedding and attack embedded inputs",
    ),
)


def known_concerns(module: nn.Module) -> list[Concern]:
    """What the registry says about the layers of `module`.

    Example:
        >>> for concern in known_concerns(nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2))):
        ...     print(concern.layer, concern.consequence)
        1 loop
    """
    found = []
    for path, layer in module.named_modules():
        rule = next((rule for rule in RULES if isinstance(layer, rule.kinds)), None)
        if rule is not None and rule.applies(layer):
            found.append(Concern(path, type(layer).__name__, rule.consequence, rule.why, rule.fix))
    return found
