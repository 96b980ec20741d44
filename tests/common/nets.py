"""Tiny modules and made-up data, the same in every run and without a global seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from seepage.spec import DataSpec, Examples
from seepage.task import Params, Task

IMAGE = (1, 6, 6)
CLASSES = 3


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def whole_numbers(n: int, classes: int = CLASSES, seed: int = 0) -> Tensor:
    """Labels."""
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """What `build` makes, with parameters that depend on `seed` alone, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double()


def mlp(inputs: int = 36, classes: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, classes))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


class Residual(nn.Module):
    """A block of a residual network; `norm` is given the number of channels."""

    def __init__(self, norm: Callable[[int], nn.Module], inside: int, outside: int) -> None:
        super().__init__()
        # No bias before BatchNorm: its gradient is zero up to rounding, which Adam would blow up to full steps.
        self.first = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.first_norm = norm(outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.second_norm = norm(outside)
        self.short = nn.Conv2d(inside, outside, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.short(x))


def resnet(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        Residual(norm, 1, 2), Residual(norm, 2, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    )


def batch_resnet() -> nn.Module:
    return resnet(nn.BatchNorm2d)


def group_resnet() -> nn.Module:
    return resnet(lambda channels: nn.GroupNorm(1, channels))


class Recurrent(nn.Module):
    """A recurrent cell over a sequence, read at its end."""

    def __init__(self, cell: type[nn.RNNBase], inputs: int = 4) -> None:
        super().__init__()
        self.cell = cell(inputs, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def image_task(build: Callable[[], nn.Module] = mlp, seed: int = 0) -> Task:
    return Task(seeded(build, seed), DataSpec(IMAGE, classes=CLASSES))


def images(n: int, seed: int = 0, shape: tuple[int, ...] = IMAGE) -> Examples:
    return Examples(numbers(n, *shape, seed=seed), whole_numbers(n, seed=seed))


def made_of(module: nn.Module) -> Params:
    """A copy of everything in a module's state, to see later whether it changed."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def flat(params: Params) -> Tensor:
    return torch.cat([p.reshape(-1) for p in params.values()])


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).detach().norm() / expected.detach().norm())
