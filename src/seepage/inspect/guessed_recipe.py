"""The recipe of an attacker who is told none: one step, of SGD or of Adam, as the update looks.

Adam moves most weights by its learning rate, which is the size of the largest entry. That of SGD is read off the last
layer's bias. The gradient of a bias before softmax is the mean of (probabilities − label). A client's bias moved by the
learning rate times that; the probabilities are those of the global model on inputs of the right kind, and labels are
whole numbers. The learning rate that makes label counts come out whole is the guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from seepage.capture import Exchange
from seepage.inspect.nature import Nature, mostly_adaptive
from seepage.recipe import SGD, Adam, Recipe
from seepage.streams import Stream
from seepage.task import Task

__all__ = ["guess_rate", "guess_recipe"]

INPUTS = 256
RANGE = torch.logspace(-0.2, 0.2, 401, dtype=torch.float64)  # around the first estimate, half a per cent apart


def guess_recipe(exchanges: Sequence[Exchange], natures: Sequence[Nature], task: Task, rng: Stream) -> Recipe | None:
    """One step with the clients' median learning rate; `None` where SGD has no last bias to tell it from.

    A sign that compression left is taken for what it is to an attacker, the first step of Adam.

    Args:
        exchanges: of the clients, arranged as the module has them.
        natures: of the same.
        task: the module.
        rng: for inputs to look at the global model with.
    """
    mode = "eval" if any(nature.train_mode is False for nature in natures) else "train"
    if exchanges[0].kind == "gradient":
        return Recipe(sends="gradient", batch_norm=mode)  # type: ignore[arg-type]
    if mostly_adaptive(natures):
        lr = median(nature.largest for nature in natures)
        return Recipe(Adam(lr=lr), sends=exchanges[0].kind, batch_norm=mode)  # type: ignore[arg-type]
    rates = [guess_rate(exchange, task, rng, train=mode == "train") for exchange in exchanges]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return None
    return Recipe(SGD(lr=median(known)), sends=exchanges[0].kind, batch_norm=mode)  # type: ignore[arg-type]


def guess_rate(exchange: Exchange, task: Task, rng: Stream, *, train: bool = True) -> float | None:
    """The learning rate of one step, or what several together come to.

    Args:
        exchange: with the update.
        task: the module.
        rng: for inputs.
        train: whether the module runs in train mode.
    """
    bias = None if task.head is None else exchange.update.get(f"{task.head}.bias")
    if bias is None or exchange.examples is None or not bias.any():
        return None
    usual = _probabilities(exchange, task, rng, train)
    moved = bias.detach().cpu().double()
    # A class that no example has moved by the rate times its probability; those that moved furthest up have none.
    absent = moved > 0
    if not absent.any():
        return None
    first = float((moved[absent] / usual[absent]).median())
    # A step cannot move biases by more than twice the rate.
    rates = (RANGE * first).clamp(min=float(moved.abs().sum()) / 2)
    counts = exchange.examples * (usual - moved / rates[:, None])  # (rates, classes)
    doubt = (counts - counts.round().clamp(min=0)).square().sum(1)
    return float(rates[doubt.argmin()])


def _probabilities(exchange: Exchange, task: Task, rng: Stream, train: bool) -> Tensor:
    """Mean over made-up inputs inside of the range of the data, or of random tokens, (classes,)."""
    like = next(iter(exchange.before.values()))
    shape, generator = (INPUTS, *task.spec.shape), (rng / "inputs").generator()
    if task.spec.vocabulary is not None:
        x = torch.randint(1, task.spec.vocabulary, shape, generator=generator).to(like.device)
    else:
        low, high = task.spec.box(like)
        x = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64).to(like)
    buffers = {**task.buffers, **exchange.buffers_before}
    with torch.no_grad():
        out, _ = task.forward(exchange.before, x, buffers=buffers, train=train)
    return out.double().softmax(-1).mean(0).cpu()
