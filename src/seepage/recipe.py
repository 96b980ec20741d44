"""What local training is: optimiser, epochs, batches, and what is sent afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from seepage.knobs import added
from seepage.streams import Stream

__all__ = ["SGD", "Adam", "LocalOptimiser", "LocalSteps", "Recipe", "Schedule"]

Slots = tuple[Tensor, ...]


class LocalOptimiser(Protocol):
    """How a client turns a gradient into a step, one parameter at a time, element by element."""

    linear: ClassVar[bool]  # whether a step is affine in the gradient

    @property
    def lr(self) -> float:
        """Learning rate."""
        ...

    def init(self, theta: Tensor) -> Slots:
        """The state before the first step."""
        ...

    @property
    def followed(self) -> LocalOptimiser:
        """The same as one simulates it who looks for the data along the derivative of what it sends."""
        ...

    def step(self, t: int, theta: Tensor, gradient: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """Parameters and state after step `t` (0, 1, …)."""
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as `torch.optim.SGD` does it.

    Example:
        >>> SGD(lr=0.5).step(0, torch.ones(2), torch.ones(2), ())[0]
        tensor([0.5000, 0.5000])
    """

    linear: ClassVar[bool] = True
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def followed(self) -> SGD:
        """Itself, whose steps are affine in the gradient."""
        return self

    def init(self, theta: Tensor) -> Slots:
        """A zero velocity where there is momentum."""
        return (torch.zeros_like(theta),) if self.momentum else ()

    def step(self, t: int, theta: Tensor, gradient: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """θ ← θ − lr·(g + weight decay), through the velocity where there is momentum."""
        if self.weight_decay:
            gradient = gradient + self.weight_decay * theta
        if not self.momentum:
            return torch.add(theta, gradient, alpha=-self.lr), ()  # one pass over all parameters
        velocity = self.momentum * slots[0] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return torch.add(theta, direction, alpha=-self.lr), (velocity,)


@dataclass(frozen=True)
class Adam:
    """Adam as `torch.optim.Adam` does it (weight decay is added to the gradient).

    Args:
        lr: learning rate.
        betas: decay of the first and the second moment.
        eps: added to the root of the second moment.
        weight_decay: of all parameters.
        smooth: the second moment of an entry is raised by that of its tensor's mean, times the square of this.

    Note:
        Adam divides a gradient by its own size. A first step has next to no derivative where there is a gradient, and
        one of 1/eps where there is none, which drowns all others: whoever follows it finds nothing. With `smooth` it is
        g / √(g² + smooth²·mean g²), which bends as far as that mean. Of 20 images of two clients (FEMNIST, 5 × 5 × 10,
        150 iterations, images of no table) none came back from Adam as it is, 18 with 0.1, and 17 to 19 with 0.03 to
        0.3 or with a number that fell to 0.01.

    Example:
        >>> first = Adam(lr=1.0).step(0, torch.zeros(2), torch.tensor([3.0, 1.0]), (torch.zeros(2), torch.zeros(2)))
        >>> first[0]
        tensor([-1.0000, -1.0000])
    """

    linear: ClassVar[bool] = False
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    smooth: float = added(0.0)

    @property
    def followed(self) -> Adam:
        """Smooth enough to be followed."""
        return self if self.smooth else replace(self, smooth=0.1)

    def init(self, theta: Tensor) -> Slots:
        """Zero first and second moments."""
        return torch.zeros_like(theta), torch.zeros_like(theta)

    def step(self, t: int, theta: Tensor, gradient: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """One bias-corrected Adam step."""
        first, second = self.betas
        if self.weight_decay:
            gradient = gradient + self.weight_decay * theta
        m = first * slots[0] + (1 - first) * gradient
        v = second * slots[1] + (1 - second) * gradient**2
        raised = v + self.smooth**2 * v.mean() if self.smooth else v
        # The root has no derivative at zero, where parameters that never saw a gradient stay: there it is taken as 0.
        alive = raised > 0
        root = torch.where(alive, torch.where(alive, raised, 1).sqrt(), 0) / (1 - second ** (t + 1)) ** 0.5
        return theta - self.lr / (1 - first ** (t + 1)) * m / (root + self.eps), (m, v)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The batches of local training in order: step `t` sees `x[t]` and `y[t]`."""

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Recipe:
    """What a client does between receiving the global model and answering.

    Args:
        optimiser: `SGD` or `Adam`.
        epochs: passes over the client's examples (E).
        batch_size: examples per step (m); `None` is the full batch. The last batch of an epoch may be shorter.
        shuffle: whether each epoch visits the examples in a new random order.
        sends: `"gradient"` (one full-batch gradient, no step: FedSGD), `"update"` (before − after) or `"weights"`.
        batch_norm: mode of the module's normalisation layers, and of dropout, while the client trains.
        sends_buffers: whether buffers such as running statistics travel with the answer.

    Example:
        >>> Recipe(epochs=2, batch_size=4).steps(10)
        6
    """

    optimiser: SGD | Adam = field(default_factory=SGD)
    epochs: int = 1
    batch_size: int | None = None
    shuffle: bool = True
    sends: Literal["gradient", "update", "weights"] = "update"
    batch_norm: Literal["train", "eval"] = "train"
    sends_buffers: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"expected `epochs` of at least 1, got {self.epochs}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"expected `batch_size` of at least 1 or none for the full batch, got {self.batch_size}")
        for name, choices in (("sends", ("gradient", "update", "weights")), ("batch_norm", ("train", "eval"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"expected `{name}` to be one of {choices}, got {getattr(self, name)!r}")
        if self.sends == "gradient" and (self.epochs != 1 or self.batch_size is not None):
            raise ValueError(
                "a client that sends a gradient takes no step: expected `epochs = 1` and no `batch_size`, "
                f"got epochs = {self.epochs} and batch_size = {self.batch_size}; use sends = 'update' for local steps"
            )

    @property
    def train(self) -> bool:
        """Whether the module runs in train mode."""
        return self.batch_norm == "train"

    def steps(self, n: int) -> int:
        """Local steps (U) on `n` examples."""
        return self.epochs * -(-n // min(self.batch_size or n, n))

    @property
    def followed(self) -> Recipe:
        """The same as one simulates it who looks for the data along the derivative of what clients send."""
        return replace(self, optimiser=self.optimiser.followed)

    def local_steps(self, n: int) -> LocalSteps:
        """What is left of the recipe for someone who counts the steps on `n` examples, and is told no more of them."""
        return LocalSteps(self.steps(n), replace(self, epochs=1, batch_size=None, shuffle=True))

    def orders(self, n: int, rng: Stream) -> Tensor:
        """The order of examples in each epoch, as a client draws it: (epochs, n)."""
        if not self.shuffle:
            return torch.arange(n).expand(self.epochs, n)
        return torch.stack(
            [torch.randperm(n, generator=(rng / "epoch" / epoch).generator()) for epoch in range(self.epochs)]
        )

    def schedule(self, x: Tensor, y: Tensor, orders: Tensor | None = None) -> Schedule:
        """Cut examples into the batches of all epochs, the same examples in each.

        Args:
            x: inputs, (n, …).
            y: targets, (n, …).
            orders: (epochs, n) as from `orders`; as stored when absent.

        Example:
            >>> schedule = Recipe(epochs=2, batch_size=2).schedule(torch.arange(3.0), torch.arange(3))
            >>> [batch.tolist() for batch in schedule.x]
            [[0.0, 1.0], [2.0], [0.0, 1.0], [2.0]]
        """
        size = self.batch_size or len(x)
        epochs = [(x, y)] * self.epochs if orders is None else [(x[order], y[order]) for order in orders.to(x.device)]
        return Schedule(
            tuple(batch for epoch, _ in epochs for batch in epoch.split(size)),
            tuple(batch for _, epoch in epochs for batch in epoch.split(size)),
        )


@dataclass(frozen=True)
class LocalSteps:
    """Local training of which nobody says how its steps are cut into epochs and batches.

    Args:
        number: of steps (U).
        each: how one of them is done: the optimiser, the mode of normalisation layers, and what is sent afterwards.

    Example:
        >>> seen = Recipe(SGD(0.5), epochs=5, batch_size=10).local_steps(50)
        >>> seen.number, seen == Recipe(SGD(0.5), epochs=25, batch_size=50).local_steps(50)
        (25, True)
        >>> seen.cut(25, 50).steps(50)
        25
    """

    number: int
    each: Recipe

    def cut(self, epochs: int, batch_size: int) -> Recipe:
        """The recipe of one who believes in so many epochs, and in batches of that size."""
        return replace(self.each, epochs=epochs, batch_size=batch_size)
