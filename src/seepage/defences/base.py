"""What a client does differently to leak less, and how defences compose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from seepage.defences.mechanism import Mechanism
from seepage.defences.wire import Wire
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Task

__all__ = ["Chain", "Defence", "NoDefence", "chain"]

Params = dict[str, Tensor]


class Defence:
    """Hooks into local training, each the identity unless a defence says otherwise.

    A defence is a frozen dataclass; its hooks are functions of tensors and of the client's own stream. With no stream
    (`rng=None`) a hook must be deterministic: that is how an attacker who knows the defence simulates it, and
    why `expected` exists.

    Attributes:
        name: as in tables and on the command line.
        presets: named sets of knobs, as attacks have them.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    per_example: ClassVar[bool] = False  # whether `on_example_gradient` does anything
    per_step: ClassVar[bool] = False  # whether `on_gradient` does anything
    changes_weights: ClassVar[bool] = False  # whether `on_weights` does anything
    repeats: ClassVar[bool] = False  # whether what is drawn at a step is drawn again at the same step of each epoch

    @property
    def expected(self) -> Defence:
        """This defence without its noise: all of it that an attacker who knows it can simulate."""
        return self

    @property
    def example_norm(self) -> float | None:
        """Where all that `on_example_gradient` does is to clip: the largest norm that it leaves."""
        return None

    @property
    def only_adds_to_examples(self) -> bool:
        """Whether all that `on_example_gradient` does is to add what does not depend on the gradient."""
        return False

    def example_scales(self, squares: Params) -> Params | None:
        """Where all that `on_example_gradient` does is to scale: what each tensor of each gradient is multiplied by.

        Args:
            squares: of each tensor of the examples' gradients, its squared norm, (examples,).
        """
        return None

    def fitted(self, params: Params) -> Defence:
        """Before training: this defence with what it must know of the model, such as where one layer ends."""
        return self

    def on_module(self, module: nn.Module, rng: Stream) -> nn.Module:
        """Before the federation begins: the module that all its members use, the attacker included."""
        return module

    def at_client(
        self, task: Task, recipe: Recipe, params: Params, buffers: Params, examples: Examples, rng: Stream
    ) -> Defence:
        """At the client, before training: this defence with what it reads off the client's own data."""
        return self

    def given(self, sent: Params) -> Defence:
        """This defence as it is simulated by an attacker who holds what it sent, which may tell how it chose.

        Called on `expected`; where a simulation ends at `sent` itself, the guess cannot be told from the truth.
        """
        return self

    def hidden(self, module: nn.Module, recipe: Recipe, count: int) -> dict[str, tuple[int, ...]]:
        """Numbers that a client draws inside the module, which an attack may search for beside its examples.

        Args:
            module: as `on_module` left it.
            recipe: how the client trains.
            count: on how many examples.

        Returns:
            The shape of each, by the name under which a simulation takes it among the buffers.
        """
        return {}

    def on_data(self, examples: Examples, rng: Stream | None) -> Examples:
        """Before training: the client's examples."""
        return examples

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """At each step: the flat gradient of one example, before the mean over the batch."""
        return gradient

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """At each step: the flat gradient of the batch, before the optimiser."""
        return gradient

    def on_update(self, update: Params, rng: Stream | None) -> Params:
        """After training: the update or gradient that is about to be sent."""
        return update

    def on_weights(self, weights: Params, rng: Stream | None) -> Params:
        """After `on_update`: the weights that are about to be sent, where a client sends weights or their change."""
        return weights

    def on_global(self, weights: Params, rng: Stream) -> Params:
        """What an observer sees of the global model; clients train from the real one all the same.

        The released code of zhao2023 defends both snapshots that its attacker compares.
        """
        return weights

    def promised_epsilon(self, recipe: Recipe, examples: int, delta: float = 1e-5, rounds: int = 1) -> float | None:
        """The ε of (ε, δ)-differential privacy that a client's examples have after its rounds; `None` without any."""
        return None

    def mechanism(self, recipe: Recipe, examples: int, rounds: int = 1) -> Mechanism | None:
        """What bounds any reconstruction after a client's rounds; `None` where noise hides no bounded length."""
        return None

    def wire(self, before: Wire) -> Wire:
        """How what is sent can be written after this defence, if it could be written as `before` without it."""
        return before

    def wire_bytes(self, sent: Params) -> int:
        """Bytes that a client puts on the wire.

        Args:
            sent: the message as the defence left it: an update or a gradient, or weights after a defence of weights.

        Example:
            >>> import torch
            >>> from seepage.defences import UniformQuantise
            >>> sent = {"w": torch.ones(1000)}
            >>> NoDefence().wire_bytes(sent), UniformQuantise(bits=3).wire_bytes(sent)
            (4000, 379)
        """
        return self.wire(Wire()).bytes(sent)


@dataclass(frozen=True)
class NoDefence(Defence):
    """The client does nothing special."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True)
class Chain(Defence):
    """Several defences, applied in order at each hook."""

    name: ClassVar[str] = "chain"
    parts: tuple[Defence, ...] = ()

    @property
    def per_example(self) -> bool:  # type: ignore[override]
        """Whether any part works on the gradients of single examples."""
        return any(part.per_example for part in self.parts)

    @property
    def per_step(self) -> bool:  # type: ignore[override]
        """Whether any part works on the gradient of each step."""
        return any(part.per_step for part in self.parts)

    @property
    def changes_weights(self) -> bool:  # type: ignore[override]
        """Whether any part works on the weights that are sent."""
        return any(part.changes_weights for part in self.parts)

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        """Whether any part draws the same in every epoch; then all of them do."""
        return any(part.repeats for part in self.parts)

    @property
    def expected(self) -> Defence:
        """Each part without its noise."""
        return Chain(tuple(part.expected for part in self.parts))

    @property
    def example_norm(self) -> float | None:
        """That of the one part that works on the gradients of single examples."""
        norms = [part.example_norm for part in self.parts if part.per_example]
        return norms[0] if len(norms) == 1 else None

    @property
    def only_adds_to_examples(self) -> bool:
        """Whether all parts do that work on the gradients of single examples."""
        return self.per_example and all(part.only_adds_to_examples for part in self.parts if part.per_example)

    def example_scales(self, squares: Params) -> Params | None:
        """Those of the one part that works on the gradients of single examples."""
        scaling = [part for part in self.parts if part.per_example]
        return scaling[0].example_scales(squares) if len(scaling) == 1 else None

    def fitted(self, params: Params) -> Defence:
        """Each part to the same model."""
        return Chain(tuple(part.fitted(params) for part in self.parts))

    def on_module(self, module: nn.Module, rng: Stream) -> nn.Module:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            module = part.on_module(module, rng / i)
        return module

    def at_client(
        self, task: Task, recipe: Recipe, params: Params, buffers: Params, examples: Examples, rng: Stream
    ) -> Defence:
        """Each part with the same data."""
        parts = enumerate(self.parts)
        return Chain(tuple(part.at_client(task, recipe, params, buffers, examples, rng / i) for i, part in parts))

    def given(self, sent: Params) -> Defence:
        """Each part, as far as the message after all of them tells."""
        return Chain(tuple(part.given(sent) for part in self.parts))

    def hidden(self, module: nn.Module, recipe: Recipe, count: int) -> dict[str, tuple[int, ...]]:
        """Those of all parts, unless one looks at single examples: a simulation would need theirs one by one."""
        if self.per_example:
            return {}
        return {name: shape for part in self.parts for name, shape in part.hidden(module, recipe, count).items()}

    def on_data(self, examples: Examples, rng: Stream | None) -> Examples:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            examples = part.on_data(examples, rng and rng / i)
        return examples

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            gradient = part.on_example_gradient(gradient, rng and rng / i)
        return gradient

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            gradient = part.on_gradient(gradient, rng and rng / i)
        return gradient

    def on_update(self, update: Params, rng: Stream | None) -> Params:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            update = part.on_update(update, rng and rng / i)
        return update

    def on_weights(self, weights: Params, rng: Stream | None) -> Params:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            weights = part.on_weights(weights, rng and rng / i)
        return weights

    def on_global(self, weights: Params, rng: Stream) -> Params:
        """Every part in order."""
        for i, part in enumerate(self.parts):
            weights = part.on_global(weights, rng / i)
        return weights

    def promised_epsilon(self, recipe: Recipe, examples: int, delta: float = 1e-5, rounds: int = 1) -> float | None:
        """That of the first part that has one; none where another part reads the examples, unhidden by noise."""
        promised = (part.promised_epsilon(recipe, examples, delta, rounds) for part in self._sole_readers())
        return next((epsilon for epsilon in promised if epsilon is not None), None)

    def mechanism(self, recipe: Recipe, examples: int, rounds: int = 1) -> Mechanism | None:
        """Likewise."""
        found = (part.mechanism(recipe, examples, rounds) for part in self._sole_readers())
        return next((mechanism for mechanism in found if mechanism is not None), None)

    def _sole_readers(self) -> list[Defence]:
        """The parts beside which no other one mixes the examples or chooses by them."""

        def reads(part: Defence) -> bool:
            return type(part).on_data is not Defence.on_data or type(part).at_client is not Defence.at_client

        return [part for part in self.parts if not any(reads(other) for other in self.parts if other is not part)]

    def wire(self, before: Wire) -> Wire:
        """Every part in order."""
        for part in self.parts:
            before = part.wire(before)
        return before


def chain(*parts: Defence) -> Defence:
    """Compose defences: what leaves one enters the next.

    Example:
        >>> from seepage.defences import Clip, GaussianNoise
        >>> chain(Clip(1.0), GaussianNoise(0.1)).expected
        Chain(parts=(Clip(norm=1.0), NoDefence()))
        >>> chain()
        NoDefence()
    """
    if not parts:
        return NoDefence()
    return parts[0] if len(parts) == 1 else Chain(parts)
