"""Layers that change nothing: the copy of the user's module that Seepage computes with.

Layers that write to themselves (BatchNorm in train mode, dropout), or whose second derivative torch gets wrong under
`vmap` (LayerNorm, InstanceNorm), are replaced by twins that do not, and those that are slow under `vmap` (convolution,
average pooling, BatchNorm in eval mode) by twins that are not.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from seepage.engine.convolution import LaneConv2d
from seepage.engine.pooling import LaneAvgPool2d

__all__ = ["Drawing", "fresh_statistics", "plain_attention", "pure_dropout_rng", "purify"]


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


class FrozenBatchNorm(nn.Module):
    """BatchNorm in eval mode as what it is, one factor and one summand per channel.

    The second derivative of torch's own layer is made of some twenty passes over the activations.
    """

    running_mean: Tensor  # buffers, as in `nn.BatchNorm`
    running_var: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        shape = [-1] + [1] * (x.dim() - 2)
        factor = torch.rsqrt(self.running_var + self.eps)
        if self.weight is not None:
            factor = factor * self.weight
        summand = -self.running_mean * factor
        if self.bias is not None:
            summand = summand + self.bias
        return x * factor.reshape(shape) + summand.reshape(shape)


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


class Drawing(nn.Module):
    """A layer that draws from a stream handed in, and draws nothing when there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.rng: torch.Generator | None = None
        self.fresh: dict[str, Tensor] = {}  # as in `PureBatchNorm`


class PureDropout(Drawing):
    """Dropout whose masks come from a stream handed in, and which is off when there is none.

    A client hands in its own stream; an attacker cannot know the masks and simulates the client without them.
    """

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.whole_channels = p, whole_channels

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
        elif isinstance(layer, _BatchNorm) and type(layer).forward is _BatchNorm.forward:
            setattr(parent, name, twins.setdefault(layer, FrozenBatchNorm(layer)))
        elif isinstance(layer, nn.Conv2d) and LaneConv2d.fits(layer):
            setattr(parent, name, twins.setdefault(layer, LaneConv2d(layer)))
        elif isinstance(layer, nn.AvgPool2d) and LaneAvgPool2d.fits(layer):
            setattr(parent, name, twins.setdefault(layer, LaneAvgPool2d(layer)))
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
    """The buffers, such as running statistics, that the last forward pass of a purified module would have written."""
    fresh = {}
    for path, layer in module.named_modules():
        if isinstance(layer, PureBatchNorm | Drawing) and layer.fresh:
            fresh.update({f"{path}.{name}" if path else name: value for name, value in layer.fresh.items()})
            layer.fresh = {}  # a tensor of a finished transformation must not outlive it
    return fresh


def pure_dropout_rng(module: nn.Module, rng: torch.Generator | None) -> None:
    """Hand `rng` to every layer of a purified module that draws, as dropout does."""
    for layer in module.modules():
        if isinstance(layer, Drawing):
            layer.rng = rng
