"""The last layer of a client: its parameters, its update, and what enters it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.finding import NotApplicable
from seepage.pieces.gradients import gradients_in
from seepage.pieces.labels.guess import LabelsHidden
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["Client", "client_of", "scale_of", "stand_ins"]

PART = 500  # inputs in one forward pass


@dataclass(frozen=True, eq=False)
class Client:
    """One client of a view, with the head's tensors by name.

    Args:
        view: where it is from.
        name: of the client.
        params: the global model's parameters.
        buffers: the global model's buffers.
        after: the parameters that the client answered with; the global ones if it sent a gradient.
        buffers_after: likewise.
        weight: of the head, in the global model, (classes, width).
        bias: likewise, (classes,), if there is one.
        weight_update: before − after, or the gradient.
        bias_update: likewise.
    """

    view: View
    name: str
    params: Params
    buffers: Params
    after: Params
    buffers_after: Params
    weight: Tensor
    bias: Tensor | None
    weight_update: Tensor
    bias_update: Tensor | None

    def predictions(self, x: Tensor, *, after: bool = False) -> Tensor:
        """Probabilities of the classes, (inputs, classes)."""
        return self._outputs(self.after if after else self.params, x, after).softmax(-1)

    def activity(self, x: Tensor, *, after: bool = False) -> Tensor:
        """The sum of what enters the head, O in geng2021, for each input: the output of a head of ones."""
        head = self._head(torch.ones_like(self.weight))
        return self._outputs({**(self.after if after else self.params), **head}, x, after)[:, 0]

    def features(self, x: Tensor) -> Tensor:
        """What enters the head of the global model, (inputs, width), seen through heads that let some units pass."""
        classes, width = self.weight.shape
        units = torch.eye(width, dtype=self.weight.dtype, device=self.weight.device)
        parts = []
        for some in units.split(classes):
            window = torch.cat([some, some.new_zeros(classes - len(some), width)])
            parts.append(self._outputs({**self.params, **self._head(window)}, x, False)[:, : len(some)])
        return torch.cat(parts, 1)

    def _head(self, weight: Tensor) -> Params:
        head = self.view.task.head
        return {f"{head}.weight": weight} | ({} if self.bias is None else {f"{head}.bias": torch.zeros_like(self.bias)})

    def _outputs(self, params: Params, x: Tensor, after: bool) -> Tensor:
        task, train = self.view.task, self.view.assumed_recipe.train
        buffers = self.buffers_after if after else self.buffers
        with torch.no_grad():
            return torch.cat([task.forward(params, part, buffers=buffers, train=train)[0] for part in x.split(PART)])


def client_of(view: View, client: int) -> Client:
    """The client at a position of the client axis.

    Raises:
        LabelsHidden: where there is no head that is trained and gives the scores of the classes.
    """
    task = view.task
    if task.spec.classes is None:
        raise LabelsHidden(
            "expected classes, which leave their mark on the last layer, got regression targets; "
            "attack under a threat model that grants labels"
        )
    weight, bias = f"{task.head}.weight", f"{task.head}.bias"
    if weight not in view.update:
        raise LabelsHidden(
            "expected a module that ends in nn.Linear with one trained output per class, got "
            f"{'another ending' if task.head is None else 'a frozen one'}; "
            "attack under a threat model that grants labels"
        )
    seen = view.rounds[-1]
    params, buffers, update = ({k: v[client] for k, v in d.items()} for d in (seen.params, seen.buffers, seen.update))
    moved = view.kind != "gradient"
    after = {name: p - update[name] if moved else p for name, p in params.items()}
    told = moved and seen.buffers_after is not None
    return Client(
        view,
        view.clients[client],
        params,
        buffers,
        after,
        {**buffers, **{k: v[client] for k, v in (seen.buffers_after or {}).items()}} if told else buffers,
        params[weight],
        params.get(bias),
        update[weight],
        update.get(bias),
    )


def scale_of(view: View) -> float:
    """What to divide an update by for the mean gradient of its steps; see `gradients_in`.

    Raises:
        NotKnown: for an update under a threat model that hides the steps.
        LabelsHidden: for clients whose update is not proportional to their gradients.
    """
    try:
        return gradients_in(view)
    except NotApplicable as error:
        raise LabelsHidden(
            "expected clients that use SGD, whose update is proportional to their gradients, got "
            f"{type(view.steps.each.optimiser).__name__}; use the method 'rlu', which simulates the optimiser"
        ) from error


def stand_ins(view: View, count: int, rng: Stream) -> Tensor:
    """Inputs in place of the client's: public ones where they are granted, else standard normal numbers, (…, *shape).

    For text, tokens drawn at random. Fewer than `count` where there are not so many public ones.
    """
    if view.knows(Fact.PUBLIC_DATA):
        public = view.public.x
        return public[torch.randperm(len(public), generator=rng.generator())[:count].to(public.device)]
    like = next(iter(view.update.values()))
    if (vocabulary := view.task.spec.vocabulary) is not None:
        shape = (count, *view.task.spec.shape)
        return torch.randint(1, vocabulary, shape, generator=rng.generator()).to(like.device)
    return rng.normal(count, *view.task.spec.shape, dtype=like.dtype, device=like.device)
