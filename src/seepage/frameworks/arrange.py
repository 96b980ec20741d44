"""From the names that a framework sends to the parameters and buffers of a module.

A framework sends a state dict, or a list of arrays, and does not say what in it is trained. The module knows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from seepage.capture import Capture, CaptureError, Exchange, Problem, Secret, read_capture, read_secret
from seepage.task import Params, Task

__all__ = ["arrange", "find_captures", "find_secrets"]

PREFIXES = ("module.", "_module.", "_orig_mod.")
"""What wrappers (DistributedDataParallel, Opacus, torch.compile) put before the names of a module."""


def find_captures(path: Path) -> list[Capture]:
    """All captures in a folder and below it, one per client, with its rounds in order.

    Args:
        path: a folder that `write_capture` wrote, or one that holds such folders, as the frameworks' recorders leave.

    Raises:
        CaptureError: when there is none, or one cannot be read.
    """
    folders = [path] if (path / "capture.json").exists() else [p.parent for p in sorted(path.rglob("capture.json"))]
    if not folders:
        what, fix = "expected a folder with a capture.json, or one that holds such folders, got none", "check the path"
        raise CaptureError([Problem(str(path), "capture.json", what, fix)])
    joined: dict[str, Capture] = {}
    for capture in (one for folder in folders for one in read_capture(folder)):
        before = joined.get(capture.client, replace(capture, exchanges=()))
        rounds = {exchange.round: exchange for exchange in (*before.exchanges, *capture.exchanges)}
        joined[capture.client] = replace(capture, exchanges=tuple(rounds[number] for number in sorted(rounds)))
    return list(joined.values())


def find_secrets(path: Path) -> dict[str, Secret]:
    """The secret of each client, from one file or from all `.safetensors` files in a folder and below it."""
    files = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
    return {secret.client: secret for secret in map(read_secret, files)}


def arrange(capture: Capture, task: Task) -> Capture:
    """The same capture with everything in its place: parameters, buffers and types as the module has them.

    Lists of arrays get the names of the module's state dict, or of its parameters where there are as many. Buffers that
    were not sent are taken from the module. What the module does not know stays where it is, for `examine` to name.

    Raises:
        CaptureError: when a list is neither as long as the state dict nor as the parameters.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), DataSpec((2,), classes=2))
        >>> sent = {str(i): t for i, t in enumerate(task.module.state_dict().values())}
        >>> exchange = arrange(Capture("a", (Exchange(1, sent, sent, "weights", {}),)), task).exchanges[0]
        >>> list(exchange.before), list(exchange.buffers_before)
        (['0.weight', '0.bias', '1.weight', '1.bias'], ['1.running_mean', '1.running_var', '1.num_batches_tracked'])
    """
    return replace(capture, exchanges=tuple(_arranged(e, task, capture.client) for e in capture.exchanges))


def _arranged(exchange: Exchange, task: Task, client: str) -> Exchange:
    where = f"client {client}, round {exchange.round}"
    before = _named({**exchange.before, **exchange.buffers_before}, task, f"{where}, before")
    answer = _named({**exchange.answer, **(exchange.buffers_after or {})}, task, f"{where}, answer")
    came = {name: tensor for name, tensor in answer.items() if name in task.buffers}
    return replace(
        exchange,
        before=_ordered(before, task),
        answer=_ordered(answer, task),
        buffers_before={name: before.get(name, own) for name, own in task.buffers.items()},
        # One that did not come back stayed with the client: the attacker goes on with the one that was sent out.
        buffers_after={name: came.get(name, before.get(name, own)) for name, own in task.buffers.items()}
        if came
        else None,
    )


def _named(tensors: Params, task: Task, where: str) -> Params:
    if tensors and all(name.isdigit() for name in tensors):
        tensors = _from_list([tensors[name] for name in sorted(tensors, key=int)], task, where)
    known = {**task.params, **task.buffers}
    return {_own(name, known): _like(tensor, known.get(_own(name, known))) for name, tensor in tensors.items()}


def _from_list(tensors: list[Tensor], task: Task, where: str) -> Params:
    choices = (list(task.module.state_dict()), [name for name, _ in task.module.named_parameters()], list(task.params))
    for names in choices:
        if len(names) == len(tensors):
            return dict(zip(names, tensors, strict=True))
    lengths = sorted({len(names) for names in choices})
    what = f"expected a list as long as the module's state dict or parameters ({lengths}), got {len(tensors)} arrays"
    raise CaptureError([Problem(where, "list", what, "give the module that was trained, or send arrays by name")])


def _own(name: str, known: Params) -> str:
    while name not in known and name.startswith(PREFIXES):
        name = name.partition(".")[2]
    return name


def _like(tensor: Tensor, own: Tensor | None) -> Tensor:
    """In the module's precision: a framework may send half of it, and averages BatchNorm's counters to fractions."""
    if own is None or tensor.dtype == own.dtype or not tensor.is_floating_point():
        return tensor
    return (tensor if own.is_floating_point() else tensor.round()).to(own.dtype)


def _ordered(tensors: Params, task: Task) -> Params:
    """Parameters in the module's order, then what the module does not know."""
    ours = {name: tensors[name] for name in task.params if name in tensors}
    return {**ours, **{name: t for name, t in tensors.items() if name not in ours and name not in task.buffers}}
