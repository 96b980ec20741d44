"""Captures from Flower: a mod for clients and a wrapper for strategies (https://flower.ai, flwr 1.41).

```python
app = ClientApp(mods=[CaptureMod("captures", examples=my_data, secrets="secrets"), *other_mods])
strategy = captured(FedAvg(), "captures")
```

Both write one capture per run, round and client (`captures/RUN/round-0001/…`), under the names that Flower's records
have; `seepage attack` sorts them into parameters and buffers of the module. Neither changes a message, and neither lets
a capture that cannot be written stop the federation: that is a warning in Flower's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from seepage.capture import Capture, Exchange, Kind, Secret, write_capture, write_secret
from seepage.spec import Examples
from seepage.task import Params

try:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.common import parameters_to_ndarrays
    from flwr.common.logger import log
    from flwr.server.strategy import Strategy as LegacyStrategy
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise ImportError(
        f"seepage.frameworks.flower needs Flower 1.41 or later ({error}); pip install 'seepage[flower]'"
    ) from error

__all__ = ["CaptureMod", "CapturedLegacyStrategy", "CapturedStrategy", "captured"]

COUNTS = ("num-examples", "num_examples")
"""Under which keys a reply says how many examples the client trained on."""

Load = Callable[[Context], "Examples | tuple[Tensor, Tensor]"]


@dataclass(frozen=True)
class CaptureMod:
    """A client-side mod that captures what came in and what goes out.

    Place it first in `mods`: the first mod is the outermost, so that clipping, noise and compression by the others are
    captured as they are sent.

    Args:
        folder: where captures go; made absolute at once, since Flower may run clients elsewhere.
        examples: the client's examples, as inputs (as the module eats them) and targets, from the `Context` of the app;
            called after training, for scoring alone. Without it no secret is kept.
        secrets: where they are sealed, one file per client, outside of `folder`.
        sends: what the app answers: new weights, an update (before − after) or a gradient.

    Note:
        With secure aggregation a client sends masked numbers that nobody can read: there is nothing to capture here,
        and the log says so. Wrap the strategy with `captured` to capture the sum that the server sees.
    """

    folder: Path | str
    examples: Load | None = None
    secrets: Path | str | None = None
    sends: Kind = "weights"

    def __post_init__(self) -> None:
        if (self.examples is None) != (self.secrets is None):
            raise ValueError(
                "expected `examples` and `secrets` together: what to seal, and where; got only one of them"
            )
        object.__setattr__(self, "folder", Path(self.folder).absolute())
        if self.secrets is not None:
            secrets = Path(self.secrets).absolute()
            if secrets.is_relative_to(self.folder):
                raise ValueError(
                    f"expected `secrets` outside of {self.folder}, got {secrets}; give them their own folder"
                )
            object.__setattr__(self, "secrets", secrets)

    def __call__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """Hand the message on, and keep what it asked and what is answered."""
        if not str(message.metadata.message_type).startswith("train"):
            return call_next(message, context)
        # Before the client runs: it may work in place on what it was sent.
        before = _quietly("read what came in", lambda: _tensors(message.content)) or {}
        number = _round(message)
        reply = call_next(message, context)
        _quietly("capture this round", lambda: self._keep(before, number, reply, context))
        return reply

    def _keep(self, before: Params, number: int, reply: Message, context: Context) -> None:
        if reply.has_error() or not before:
            return
        answer = _tensors(reply.content)
        if not answer:
            log(WARNING, "seepage: no arrays leave this client; with secure aggregation, capture at the server")
            return
        client, run = str(context.node_id), str(context.run_id)
        exchange = Exchange(number, before, answer, self.sends, {}, None, _count(reply.content))
        write_capture(Path(self.folder) / run / _folder(number) / client, [Capture(client, (exchange,))])
        if self.examples is not None and self.secrets is not None:
            loaded = self.examples(context)
            held = loaded if isinstance(loaded, Examples) else Examples(*loaded)
            write_secret(Path(self.secrets) / run / f"{client}.safetensors", Secret(client, held))


@overload
def captured(strategy: Strategy, folder: Path | str, sends: Kind = ...) -> CapturedStrategy: ...
@overload
def captured(strategy: LegacyStrategy, folder: Path | str, sends: Kind = ...) -> CapturedLegacyStrategy: ...
def captured(strategy: Any, folder: Path | str, sends: Kind = "weights") -> Any:
    """The same strategy, with every reply of every client captured as the server sees it.

    Args:
        strategy: of `flwr.serverapp.strategy`, or of `flwr.server.strategy` (also with secure aggregation).
        folder: where captures go.
        sends: what clients answer: new weights, an update (before − after) or a gradient.
    """
    if isinstance(strategy, Strategy):
        return CapturedStrategy(strategy, Path(folder).absolute(), sends)
    if isinstance(strategy, LegacyStrategy):
        return CapturedLegacyStrategy(strategy, Path(folder).absolute(), sends)
    raise TypeError(
        f"expected a strategy of flwr.serverapp.strategy or flwr.server.strategy, got {type(strategy).__name__}"
    )


@dataclass
class CapturedStrategy(Strategy):
    """A strategy whose clients' replies are captured, without truth."""

    inner: Strategy
    folder: Path
    sends: Kind = "weights"
    _sent: dict[int, Params] = field(default_factory=dict, repr=False)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        """As the strategy does; what is sent out is remembered."""
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        _quietly("read what goes out", lambda: self._remember(messages))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """As the strategy does; what came back is captured before."""
        replies = list(replies)
        _quietly(f"capture round {server_round}", lambda: self._keep(server_round, replies))
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        """As the strategy does."""
        messages: Iterable[Message] = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the strategy does."""
        self.inner.summary()

    def start(self, *args: Any, **options: Any) -> Any:
        """As the strategy does, by its own loop where it has one."""
        return type(self.inner).start(self, *args, **options)

    def __getattr__(self, name: str) -> Any:
        # Only what is not found here; a strategy's own loop may ask for its own attributes.
        return getattr(self.__dict__["inner"], name)

    def _remember(self, messages: Sequence[Message]) -> None:
        same: dict[int, Params] = {}  # one global model for all: read once, and stored once
        for message in messages:
            records = tuple(message.content.array_records.values())
            known = id(records[0]) if len(records) == 1 else id(message)
            if known not in same:
                same[known] = _tensors(message.content)
            self._sent[message.metadata.dst_node_id] = same[known]

    def _keep(self, number: int, replies: Sequence[Message]) -> None:
        captures = []
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error() or not self._sent.get(node) or not (answer := _tensors(reply.content)):
                continue
            exchange = Exchange(number, self._sent[node], answer, self.sends, {}, None, _count(reply.content))
            captures.append(Capture(str(node), (exchange,)))
        self._sent.clear()
        if captures:
            write_capture(self.folder / str(replies[0].metadata.run_id) / _folder(number), captures)


@dataclass
class CapturedLegacyStrategy(LegacyStrategy):
    """A strategy of `flwr.server.strategy` whose clients' replies are captured, without truth.

    Where secure aggregation hands over one sum for all clients, that sum is captured as what it is: their aggregate.
    """

    inner: LegacyStrategy
    folder: Path
    sends: Kind = "weights"
    _sent: dict[str, Params] = field(default_factory=dict, repr=False)

    def initialize_parameters(self, client_manager: Any) -> Any:
        """As the strategy does."""
        return self.inner.initialize_parameters(client_manager)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """As the strategy does; what is sent out is remembered."""
        asked = self.inner.configure_fit(server_round, parameters, client_manager)
        _quietly("read what goes out", lambda: self._remember(asked))
        return asked

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """As the strategy does; what came back is captured before."""
        _quietly(f"capture round {server_round}", lambda: self._keep(server_round, results))
        return self.inner.aggregate_fit(server_round, results, failures)

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """As the strategy does."""
        return self.inner.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """As the strategy does."""
        return self.inner.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """As the strategy does."""
        return self.inner.evaluate(server_round, parameters)

    def _remember(self, asked: Sequence[tuple[Any, Any]]) -> None:
        same: dict[int, Params] = {}
        for client, fit in asked:
            if id(fit.parameters) not in same:
                same[id(fit.parameters)] = _listed(fit.parameters)
            self._sent[client.cid] = same[id(fit.parameters)]

    def _keep(self, number: int, results: Sequence[tuple[Any, Any]]) -> None:
        answered = [(client.cid, fit) for client, fit in results if client.cid in self._sent]
        if not answered:
            return
        if len(answered) > 1 and len({id(fit.parameters) for _, fit in answered}) == 1:
            members = tuple(str(client) for client, _ in answered)
            total = sum(fit.num_examples for _, fit in answered)
            seen = [("aggregate", members, answered[0][0], answered[0][1].parameters, total)]
        else:
            seen = [(str(client), (), client, fit.parameters, fit.num_examples) for client, fit in answered]
        captures = [
            Capture(name, (Exchange(number, self._sent[client], _listed(sent), self.sends, {}, None, count),), members)
            for name, members, client, sent, count in seen
        ]
        self._sent.clear()
        write_capture(self.folder / _folder(number), captures)


T = TypeVar("T")


def _quietly(what: str, action: Callable[[], T]) -> T | None:
    """A federation must not stop for want of a capture."""
    try:
        return action()
    except Exception as error:
        log(WARNING, "seepage: could not %s: %s: %s", what, type(error).__name__, error)
        return None


def _tensors(content: RecordDict) -> Params:
    """All arrays of a message, copied; their own names where they come in one record."""
    records = {name: record for name, record in content.array_records.items() if len(record)}
    return {
        key if len(records) == 1 else f"{name}.{key}": torch.from_numpy(np.array(array.numpy()))
        for name, record in records.items()
        for key, array in record.items()
    }


def _listed(parameters: Any) -> Params:
    return {str(i): torch.from_numpy(np.array(array)) for i, array in enumerate(parameters_to_ndarrays(parameters))}


def _count(content: RecordDict) -> int | None:
    found = [record[key] for record in content.metric_records.values() for key in COUNTS if key in record]
    return int(str(found[0])) if found else None


def _round(message: Message) -> int:
    """As the strategy numbers it; 0 where it does not."""
    told = [c["server-round"] for c in message.content.config_records.values() if "server-round" in c]
    group = str(message.metadata.group_id)
    return int(str(told[0])) if told else int(group) if group.isdigit() else 0


def _folder(number: int) -> str:
    return f"round-{number:04d}"
