"""A federation by FedAvg: a server, many clients, rounds, and what of it can be seen.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, 2017, "Communication-efficient learning of deep networks from
decentralized data" (https://arxiv.org/abs/1602.05629).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from seepage.capture import Capture, Exchange, Secret
from seepage.defences.base import Defence, NoDefence
from seepage.knobs import added
from seepage.local import Answer, answer, answer_together, better_together
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = ["Federation", "Round", "aggregate", "join_rounds", "overhear", "play", "trained_together"]


@dataclass(frozen=True)
class Federation:
    """How rounds are played.

    Args:
        rounds: how many.
        per_round: clients sampled in each round; `None` is all of them.
        visible: `"each"` answer, or only their `"aggregate"`, which is what secure aggregation leaves visible.
        server_lr: step of the server along the mean update; for clients that send gradients it is the learning rate.
        group: how many answers go into one aggregate, where aggregates are seen; `None` is all of a round.
        together: clients without a defence that have equally many examples train in one program, as they do on a GPU
            in any case where the module allows it.
        repeats: every round repeats the draws of the others, batches and noise: the i-th client of a round draws what
            the i-th of any other does. So does the released training of dimitrov2022, which passes each round the same
            key; what is drawn then adds up over rounds where fresh noise averages out.
    """

    rounds: int = 1
    per_round: int | None = None
    visible: Literal["each", "aggregate"] = "each"
    server_lr: float = 1.0
    group: int | None = None
    together: bool = False
    repeats: bool = added(False)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"expected `rounds` of at least 1, got {self.rounds}")
        if self.per_round is not None and self.per_round < 1:
            raise ValueError(f"expected `per_round` of at least 1, or none for all clients, got {self.per_round}")
        if self.visible not in ("each", "aggregate"):
            raise ValueError(f"expected `visible` to be 'each' or 'aggregate', got {self.visible!r}")
        if self.group is not None and self.group < 1:
            raise ValueError(f"expected `group` of at least 1, or none for all clients of a round, got {self.group}")


@dataclass(frozen=True, eq=False)
class Round:
    """One round of a federation.

    Args:
        number: 0, 1, …
        sampled: positions of the clients that answered.
        captures: what was visible, one exchange each.
        secrets: the examples behind each capture, in the same order.
        params: the global model afterwards.
        buffers: its buffers afterwards.
        accuracy: of the global model afterwards on held-out data; `None` without any.
    """

    number: int
    sampled: tuple[int, ...]
    captures: tuple[Capture, ...]
    secrets: tuple[Secret, ...]
    params: Params
    buffers: Params
    accuracy: float | None


def aggregate(answers: Sequence[Answer]) -> Answer:
    """The mean of the answers weighted by their numbers of examples.

    Example:
        >>> one = Answer({"w": torch.tensor([1.0])}, {}, 1)
        >>> three = Answer({"w": torch.tensor([5.0])}, {}, 3)
        >>> aggregate([one, three]).update["w"], aggregate([one, three]).examples
        (tensor([4.]), 4)
    """
    total = sum(a.examples for a in answers)

    def mean(parts: Sequence[Params]) -> Params:
        weighted = {}
        for name, like in parts[0].items():
            whole = like.double()
            for part, a in zip(parts, answers, strict=True):
                # Differences, so that what no client changed (a frozen parameter) stays as it is to the last bit.
                whole = whole + (part[name].double() - like.double()) * (a.examples / total)
            # Counters such as num_batches_tracked are whole numbers and stay so.
            weighted[name] = (whole if like.is_floating_point() else whole.round()).to(like.dtype)
        return weighted

    return Answer(mean([a.update for a in answers]), mean([a.buffers for a in answers]), total)


def play(
    task: Task,
    clients: Sequence[Examples],
    recipe: Recipe,
    federation: Federation,
    rng: Stream,
    *,
    defence: Defence | None = None,
    names: Sequence[str] | None = None,
    held_out: Examples | None = None,
    params: Params | None = None,
    buffers: Params | None = None,
    first: int = 0,
) -> Iterator[Round]:
    """Play the rounds one by one.

    Args:
        task: what is learnt.
        clients: their examples.
        recipe: how they train.
        federation: how many rounds, who is sampled, what is visible.
        rng: of the whole federation; each client and round draws from a stream of its own.
        defence: what clients do differently.
        names: of the clients; numbers when absent.
        held_out: examples to measure accuracy on after each round.
        params: the global model to begin with; the module's own when absent.
        buffers: likewise.
        first: number of the round to begin with, to go on with a federation whose model until then is given.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(2, 2), DataSpec((2,), classes=2))
        >>> clients = [Examples(torch.eye(2) * k, torch.arange(2)) for k in (1.0, 2.0, 3.0)]
        >>> [r.sampled for r in play(task, clients, Recipe(), Federation(2, per_round=2), Stream.from_seed(0))]
        [(0, 1), (0, 1)]
    """
    game = _Game(task, clients, recipe, federation, rng, defence or NoDefence(), names)
    params = task.params if params is None else params
    buffers = task.buffers if buffers is None else buffers
    for number in range(first, federation.rounds):
        sampled = game.sample(number)
        answers = game.train(number, sampled, params, buffers)
        whole = aggregate(answers)
        captures, secrets = game.show(number, sampled, answers, params, buffers, whole)
        params = {name: p - federation.server_lr * whole.update[name] for name, p in params.items()}
        if recipe.sends_buffers:
            buffers = whole.buffers
        accuracy = None if held_out is None else task.accuracy(params, held_out.x, held_out.y, buffers=buffers)
        yield Round(number, sampled, captures, secrets, params, buffers, accuracy)


def overhear(
    task: Task,
    clients: Sequence[Examples],
    recipe: Recipe,
    federation: Federation,
    rng: Stream,
    which: range,
    *,
    defence: Defence | None = None,
    names: Sequence[str] | None = None,
    params: Params | None = None,
    buffers: Params | None = None,
) -> list[tuple[Capture, Secret]]:
    """The messages at positions `which` of the first round, as `play` gives them: nobody else is trained.

    Where clients train in one program, whose last digits depend on how many they are, `play` has others.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(2, 2), DataSpec((2,), classes=2))
        >>> clients = [Examples(torch.eye(2) * k, torch.arange(2)) for k in (1.0, 2.0, 3.0)]
        >>> heard = overhear(task, clients, Recipe(), Federation(), Stream.from_seed(0), range(1, 3))
        >>> [capture.client for capture, _ in heard]
        ['1', '2']
    """
    game = _Game(task, clients, recipe, federation, rng, defence or NoDefence(), names)
    params = task.params if params is None else params
    buffers = task.buffers if buffers is None else buffers
    each = game.group if federation.visible == "aggregate" else 1
    sampled = game.sample(0)[which.start * each : which.stop * each]
    answers = game.train(0, sampled, params, buffers)
    return list(zip(*game.show(0, sampled, answers, params, buffers), strict=True))


class _Game:
    """What a round is made of: who answers, what they answer, what of it is visible."""

    def __init__(
        self,
        task: Task,
        clients: Sequence[Examples],
        recipe: Recipe,
        federation: Federation,
        rng: Stream,
        defence: Defence,
        names: Sequence[str] | None,
    ) -> None:
        self.task, self.clients, self.recipe, self.federation = task, clients, recipe, federation
        self.rng, self.defence = rng / "round", defence
        self.names = names or [str(i) for i in range(len(clients))]
        self.per_round = federation.per_round or len(clients)
        if self.per_round > len(clients):
            raise ValueError(
                f"expected `per_round` of at most {len(clients)}, the number of clients, got {self.per_round}"
            )
        self.group = federation.group or self.per_round
        if federation.visible == "aggregate" and self.per_round % self.group:
            raise ValueError(f"expected `group` to divide the {self.per_round} clients of a round, got {self.group}")

    def sample(self, number: int) -> tuple[int, ...]:
        drawn = torch.randperm(len(self.clients), generator=(self.rng / number / "sample").generator())
        return tuple(sorted(drawn[: self.per_round].tolist()))

    def train(self, number: int, sampled: Sequence[int], params: Params, buffers: Params) -> list[Answer]:
        task, recipe, defence = self.task, self.recipe, self.defence
        held = [self.clients[i] for i in sampled]
        if self.federation.repeats:
            rngs = [self.rng / "place" / place for place in range(len(sampled))]
        else:
            rngs = [self.rng / number / "client" / self.names[i] for i in sampled]
        if trained_together(task, params, self.federation, defence):
            return answer_together(task, params, held, recipe, rngs, buffers=buffers)
        return [
            answer(task, params, examples, recipe, defence, own, buffers=buffers)
            for examples, own in zip(held, rngs, strict=True)
        ]

    def show(
        self,
        number: int,
        sampled: Sequence[int],
        answers: Sequence[Answer],
        params: Params,
        buffers: Params,
        whole: Answer | None = None,
    ) -> tuple[tuple[Capture, ...], tuple[Secret, ...]]:
        """What is visible, and the secrets behind it; `whole` is the mean of all answers where it is known already."""
        names, clients, group = self.names, self.clients, self.group
        if self.federation.visible == "aggregate":
            shown: list[tuple[str, tuple[str, ...], Answer, Examples, tuple[int, ...]]] = []
            for at in range(0, len(sampled), group):
                members = tuple(names[i] for i in sampled[at : at + group])
                own = [clients[i] for i in sampled[at : at + group]]
                sizes = tuple(len(examples) for examples in own)
                summed = whole if whole is not None and group == len(sampled) else aggregate(answers[at : at + group])
                shown.append(("+".join(members), members, summed, Examples.join(own), sizes))
        else:
            shown = [(names[i], (), a, clients[i], ()) for i, a in zip(sampled, answers, strict=True)]
        seen = self.defence.on_global(params, self.rng / number / "global")
        captures = tuple(
            Capture(name, (_exchange(number, params, seen, buffers, a, self.recipe),), members)
            for name, members, a, *_ in shown
        )
        return captures, tuple(Secret(name, examples, a.orders, sizes) for name, _, a, examples, sizes in shown)


def trained_together(task: Task, params: Params, federation: Federation, defence: Defence) -> bool:
    """Whether the clients of a round train in one program."""
    return isinstance(defence, NoDefence) and (federation.together or better_together(task, params))


def _exchange(number: int, params: Params, seen: Params, buffers: Params, a: Answer, recipe: Recipe) -> Exchange:
    sent = a.update
    if recipe.sends == "weights":
        sent = {name: params[name] - update for name, update in a.update.items()}
    return Exchange(
        number,
        seen,
        sent,
        recipe.sends,
        buffers,
        a.buffers if recipe.sends_buffers and a.buffers else None,
        a.examples,
    )


def join_rounds(captures: Sequence[Capture]) -> list[Capture]:
    """One capture per client with all its rounds, in order of first appearance."""
    joined: dict[str, Capture] = {}
    for capture in captures:
        if capture.client in joined:
            whole = joined[capture.client]
            joined[capture.client] = replace(whole, exchanges=whole.exchanges + capture.exchanges)
        else:
            joined[capture.client] = capture
    return list(joined.values())
