"""A small network, and the images of a ward."""

from __future__ import annotations

import torch
from torch import nn

import seepage as sp
from seepage.data import load


class Net(nn.Module):
    """A network with sigmoids; NVFlare wants a class that it can make by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Sigmoid(), nn.Linear(24, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        scores: torch.Tensor = self.layers(x)
        return scores


def task() -> sp.Task:
    """For `--model`."""
    return sp.Task(Net(), load("fashion-mnist").spec)


def examples(site: str) -> sp.Examples:
    """Two images for each site."""
    number = int(site.rpartition("-")[2])
    return load("fashion-mnist").train[2 * number : 2 * number + 2]
