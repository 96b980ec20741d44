"""The network, the data of each ward, and what Seepage is told about both."""

from torch import nn

import seepage


def network() -> nn.Module:
    """Sigmoid LeNet-style network for 28 × 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(8 * 7 * 7, 10),
    )


def task() -> seepage.Task:
    """For `seepage attack --model ward.model:task`: the network, and what the data look like."""
    return seepage.Task(network(), seepage.load_data("fashion-mnist").spec)


def examples(ward: int) -> seepage.Examples:
    """Two images for each ward."""
    return seepage.load_data("fashion-mnist").train[2 * ward : 2 * ward + 2]
