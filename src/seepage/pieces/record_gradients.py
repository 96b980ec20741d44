"""What each record of a table adds to a gradient, for every value that its sensitive column may have.

A linear layer's gradient is δ aᵀ for each record, with what entered the layer and what came back to it. Products
between the gradients of many records are products of these factors: no gradient of a single record is ever formed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from seepage.defences.clip import clip_factor
from seepage.engine.factors import linear_factors
from seepage.finding import NotApplicable
from seepage.task import Params, Task

__all__ = ["Factors", "record_gradients"]


@dataclass(frozen=True, eq=False)
class Factors:
    """Gradients of many records, one row each, layer by layer.

    Args:
        weights: names of the layers' weights.
        biases: names of their biases, `None` where there is none.
        entering: what entered each layer, (rows, width).
        returning: the derivative of each row's own loss behind the layer, (rows, units).
    """

    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    entering: tuple[Tensor, ...]
    returning: tuple[Tensor, ...]

    def products(self) -> Tensor:
        """Inner products between the gradients of all rows, (rows, rows)."""
        whole = self.entering[0].new_zeros(len(self.entering[0]), len(self.entering[0]))
        for bias, a, delta in zip(self.biases, self.entering, self.returning, strict=True):
            part = a @ a.T
            if bias is not None:
                part += 1
            whole.addcmul_(part, delta @ delta.T)
        return whole

    def clipped(self, norm: float | None) -> Factors:
        """Each row's gradient scaled down to a Euclidean norm of at most `norm`; as they are without one."""
        if norm is None:
            return self
        square = torch.zeros_like(self.entering[0][:, 0])
        for bias, a, delta in zip(self.biases, self.entering, self.returning, strict=True):
            square = square + ((a**2).sum(1) + (bias is not None)) * (delta**2).sum(1)
        scale = clip_factor(square, norm)[:, None]
        return Factors(self.weights, self.biases, self.entering, tuple(scale * delta for delta in self.returning))

    def along(self, direction: Params) -> Tensor:
        """Inner products of the rows' gradients with one vector of parameters, (rows,)."""
        whole = torch.zeros_like(self.entering[0][:, 0])
        for weight, bias, a, delta in zip(self.weights, self.biases, self.entering, self.returning, strict=True):
            whole = whole + ((delta @ direction[weight]) * a).sum(1)
            if bias is not None:
                whole = whole + delta @ direction[bias]
        return whole

    def __getitem__(self, rows: slice) -> Factors:
        cut = (tuple(part[rows] for part in parts) for parts in (self.entering, self.returning))
        return Factors(self.weights, self.biases, *cut)


class _Normalise(torch.autograd.Function):
    """Rows normalised by mean and spread of the first `company` rows, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, company: int) -> Tensor:
        mean, variance = x[:company].mean(0), x[:company].var(0, correction=0)
        scale = torch.rsqrt(variance + eps)
        out = (x - mean) * scale
        ctx.company = company
        ctx.save_for_backward(out, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        out, scale = ctx.saved_tensors
        (bar,) = cotangents
        first = slice(0, ctx.company)
        # What a row does to mean and spread comes back to it from all of its company.
        return scale * (bar - bar[first].mean(0) - out * (bar[first] * out[first]).mean(0)), None, None


class _InCompany(nn.Module):
    """BatchNorm in train mode for rows that are looked at one by one in the company of a whole table."""

    def __init__(self, norm: _BatchNorm, company: int) -> None:
        super().__init__()
        self.eps, self.company = norm.eps, company
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Normalise.apply(x, self.eps, self.company)  # type: ignore[no-untyped-call]
        if self.weight is not None:
            out = out * self.weight
        return out if self.bias is None else out + self.bias


def record_gradients(
    task: Task,
    params: Params,
    company: Tensor,
    candidates: Sequence[Tensor],
    y: Tensor,
    *,
    buffers: Params | None = None,
    train: bool = False,
) -> Factors:
    """The gradient of each record under each candidate, of all linear layers.

    Args:
        task: the module and its loss.
        params: for one client.
        company: the records as they are believed to be, (n, …); train-mode BatchNorm takes its statistics from them.
        candidates: the same records with one value in the sensitive column of all of them, each (n, …).
        y: their labels, (n,).
        buffers: for one client.
        train: mode of the module; dropout is left out.

    Returns:
        Rows candidate by candidate, (candidates × n).

    Raises:
        NotApplicable: when the module has no linear layer with one row per record.

    Example:
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(2, 2), DataSpec((2,), classes=2))
        >>> zeros, ones = torch.zeros(3, 2), torch.ones(3, 2)
        >>> record_gradients(task, task.params, zeros, [zeros, ones], torch.zeros(3).long()).products().shape
        torch.Size([6, 6])
    """
    rows = torch.cat([company, *candidates])
    labels = torch.cat([y] * (1 + len(candidates)))
    net = _alone(task.module, len(company) if train else None, train)
    held = {**(task.buffers if buffers is None else buffers), **params}
    seen = linear_factors(net, held, rows, lambda out: task.mean_loss(out, labels) * len(rows))
    if not seen:
        raise NotApplicable("expected a module with a linear layer that sees one row per record, got none")
    names = [f"{name}." if name else "" for name in seen]
    factors = Factors(
        tuple(f"{name}weight" for name in names),
        tuple(f"{name}bias" if f"{name}bias" in params else None for name in names),
        tuple(a for a, _ in seen.values()),
        tuple(delta for _, delta in seen.values()),
    )
    return factors[slice(len(company), None)]


def _alone(module: nn.Module, company: int | None, train: bool) -> nn.Module:
    """A copy in which rows do not disturb each other: no dropout, and BatchNorm by the first rows alone."""
    net = copy.deepcopy(module).train(train)
    for name, layer in list(net.named_modules()):
        if isinstance(layer, _DropoutNd):
            layer.eval()
        if isinstance(layer, _BatchNorm) and company is not None:
            parent = net.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _InCompany(layer, company))
    return net
