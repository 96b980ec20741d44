"""Meeting the user's module politely: which layers batch, which differentiate twice, and what is done about the rest.

Every attack differentiates a gradient, for many clients at once. `check` finds, before any work is spent, the layers
that stand in the way, says why, and names the fix; `purify` makes the copy of the module that Seepage computes with,
in which layers that write to themselves (BatchNorm in train mode, dropout), or whose second derivative torch gets wrong
under `vmap` (LayerNorm, InstanceNorm), are replaced by twins that do not.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

__all__ = [
    "Concern",
    "Consequence",
    "fresh_statistics",
    "known_concerns",
    "plain_attention",
    "pure_dropout_rng",
    "purify",
]


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


class PureBatchNorm(nn.Module):
    """BatchNorm in train mode that returns its new running statistics instead of writing them in place.

    `nn.BatchNorm` updates its buffers as a side effect, which neither `vmap` nor a double gradient can follow.
    The new values are left in `fresh`, and `Task.forward` hands them on as outputs of a pure function.
    """

    running_mean: Tensor | None  # a buffer, as in `nn.BatchNorm`

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))
        self.fresh: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = x.numel() // x.shape[1]
        if count < 2:
            raise ValueError(
                "expected more than one value per channel in train-mode BatchNorm, "
                f"got input of shape {tuple(x.shape)}; "
                "use a larger batch, or `batch_norm = 'eval'` in the recipe if the client freezes its statistics"
            )
        mean = x.mean(axes)
        variance = x.var(axes, correction=0)
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        y = (x - mean.reshape(shape)) * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)

    def _remember(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        if self.running_mean is None:
            return
        # A layer that is used twice in one forward pass goes on from what it has just seen.
        now = self.fresh or dict(self.named_buffers())
        seen = now["num_batches_tracked"] + 1
        rate = 1 / seen.to(mean.dtype) if self.momentum is None else self.momentum
        self.fresh = {
            "running_mean": now["running_mean"] + rate * (mean - now["running_mean"]),
            "running_var": now["running_var"] + rate * (unbiased_variance - now["running_var"]),
            "num_batches_tracked": seen,
        }


class PureLayerNorm(nn.Module):
    """LayerNorm in plain operations.

    Where autograd differentiates the result of `vmap(grad(…))`, the batching rule of torch's own kernel takes mean and
    variance for constants, and the second derivative is silently wrong (pytorch/functorch#534).
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.normalized_shape, self.eps = norm.normalized_shape, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        y = _standardised(x, [-1 - axis for axis in range(len(self.normalized_shape))], self.eps)
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


class PureInstanceNorm(nn.Module):
    """InstanceNorm in plain operations, for the reason given in `PureLayerNorm`."""

    def __init__(self, norm: _InstanceNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        y = _standardised(x, list(range(2, x.dim())), self.eps)
        shape = [-1] + [1] * (x.dim() - 2)
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)


def _standardised(x: Tensor, axes: list[int], eps: float) -> Tensor:
    variance = x.var(axes, correction=0, keepdim=True)
    return (x - x.mean(axes, keepdim=True)) * torch.rsqrt(variance + eps)


class PureDropout(nn.Module):
    """Dropout whose masks come from a stream handed in, and which is off when there is none.

    A client hands in its own stream; an attacker cannot know the masks and simulates the client without them.
    """

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.whole_channels = p, whole_channels
        self.rng: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rng is None or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.whole_channels else x.shape
        keep = torch.rand(shape, generator=self.rng).to(x.device) >= self.p
        return x * keep / (1 - self.p)


def purify(module: nn.Module, train: bool) -> nn.Module:
    """A copy of `module` in train or eval mode whose forward pass changes nothing.

    Example:
        >>> net = purify(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), train=True)
        >>> type(net[1]).__name__
        'PureBatchNorm'
    """
    pure = copy.deepcopy(module).train(train)
    twins: dict[nn.Module, nn.Module] = {}  # a layer in two places stays one layer
    for parent, name, layer in list(_children(pure)):
        if isinstance(layer, _BatchNorm) and _normalises_by_batch(layer, train):
            setattr(parent, name, twins.setdefault(layer, PureBatchNorm(layer)))
        # Others' kinds of these two may do more: torchvision's LayerNorm2d swaps axes. `Task.check` tries them.
        elif isinstance(layer, nn.LayerNorm) and type(layer).forward is nn.LayerNorm.forward:
            setattr(parent, name, twins.setdefault(layer, PureLayerNorm(layer)))
        elif isinstance(layer, _InstanceNorm) and type(layer).forward is _InstanceNorm.forward:
            setattr(parent, name, twins.setdefault(layer, PureInstanceNorm(layer)))
        elif isinstance(layer, _DropoutNd) and not isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
            whole = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
            setattr(parent, name, twins.setdefault(layer, PureDropout(layer.p, whole).train(train)))
        elif isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
            layer.dropout = 0.0
    if isinstance(pure, _BatchNorm) and _normalises_by_batch(pure, train):
        return PureBatchNorm(pure)
    return pure


def _normalises_by_batch(layer: _BatchNorm, train: bool) -> bool:
    return train or layer.running_mean is None


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in module.modules():
        # Not `named_children`, which passes over a layer's second place.
        for name, child in parent._modules.items():
            if child is not None:
                yield parent, name, child


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Attention by matrix products alone: fused kernels have no second derivative, and some no batching rule."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def fresh_statistics(module: nn.Module) -> dict[str, Tensor]:
    """The running statistics that the last forward pass of a purified module would have written."""
    fresh = {}
    for path, layer in module.named_modules():
        if isinstance(layer, PureBatchNorm) and layer.fresh:
            fresh.update({f"{path}.{name}" if path else name: value for name, value in layer.fresh.items()})
            layer.fresh = {}  # a tensor of a finished transformation must not outlive it
    return fresh


def pure_dropout_rng(module: nn.Module, rng: torch.Generator | None) -> None:
    """Hand `rng` to every dropout layer of a purified module."""
    for layer in module.modules():
        if isinstance(layer, PureDropout):
            layer.rng = rng


Rule = Callable[[nn.Module], tuple[Consequence, str, str] | None]


def _batch_norm(layer: nn.Module) -> tuple[Consequence, str, str]:
    return (
        Consequence.NOTE,
        "in train mode each example's gradient depends on the whole batch, and running statistics are sent or kept",
        "Nothing to do; set `batch_norm = 'eval'` in the recipe if the clients freeze the statistics",
    )


def _dropout(layer: nn.Module) -> tuple[Consequence, str, str]:
    return (
        Consequence.NOTE,
        "the client draws masks that no attacker can know, so the attack simulates the client without them",
        "Nothing to do; with p = 0 the leak would be larger",
    )


def _loop_rnn(layer: nn.Module) -> tuple[Consequence, str, str]:
    return (
        Consequence.LOOP,
        "torch has no batching rule for this recurrent cell, so lanes run one after another",
        "Use nn.LSTM, or accept the slower loop; the numbers are the same",
    )


def _attention(layer: nn.Module) -> tuple[Consequence, str, str]:
    return (
        Consequence.NOTE,
        "fused attention kernels have no second derivative, so the plain 'math' kernel is used; its dropout is off",
        "Nothing to do",
    )


def _lazy(layer: nn.Module) -> tuple[Consequence, str, str] | None:
    if not layer.has_uninitialized_params():  # type: ignore[operator]
        return None
    return (
        Consequence.REFUSE,
        "its parameters have no shape yet",
        "Run one batch through the module before you hand it over",
    )


def _instance_norm(layer: nn.Module) -> tuple[Consequence, str, str] | None:
    if not getattr(layer, "track_running_stats", False):
        return None
    return (
        Consequence.REFUSE,
        "it writes running statistics in place, which a double gradient cannot follow",
        "Build it with track_running_stats=False, or use nn.GroupNorm",
    )


def _embedding(layer: nn.Module) -> tuple[Consequence, str, str]:
    return (
        Consequence.REFUSE,
        "its input is an integer, so no gradient reaches the data",
        "Hand over the part of the module behind the embedding and attack embedded inputs",
    )


def _alpha_dropout(layer: nn.Module) -> tuple[Consequence, str, str]:
    return (Consequence.LOOP, "its masks come from torch's global generator", "Replace it by nn.Dropout")


# Tried with torch 2.13: convolutions, linear layers, pooling, GroupNorm, LayerNorm, LSTM and eval-mode BatchNorm
# need no rule.
RULES: tuple[tuple[type[Any] | tuple[type[Any], ...], Rule], ...] = (
    (LazyModuleMixin, _lazy),
    (_BatchNorm, _batch_norm),
    (_InstanceNorm, _instance_norm),
    ((nn.AlphaDropout, nn.FeatureAlphaDropout), _alpha_dropout),
    (_DropoutNd, _dropout),
    ((nn.GRU, nn.GRUCell, nn.RNN), _loop_rnn),
    (nn.MultiheadAttention, _attention),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
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
        for kinds, rule in RULES:
            if isinstance(layer, kinds):
                verdict = rule(layer)
                if verdict is not None:
                    found.append(Concern(path, type(layer).__name__, *verdict))
                break
    return found
