"""What the networks share: sizes that follow from the data, and activations by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from seepage.spec import DataSpec

__all__ = ["ACTIVATIONS", "activation_named", "channels", "choose", "flat_size", "outputs"]

Choice = TypeVar("Choice")

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def choose(option: str, name: object, choices: dict[str, Choice]) -> Choice:
    """The entry called `name`, or an error with the list of choices."""
    if not isinstance(name, str) or name not in choices:
        raise ValueError(f"expected `{option}` to be one of {sorted(choices)}, got {name!r}")
    return choices[name]


def activation_named(name: str) -> nn.Module:
    """A fresh activation layer.

    Example:
        >>> activation_named("tanh")
        Tanh()
    """
    return choose("activation", name, ACTIVATIONS)()


def outputs(spec: DataSpec) -> int:
    """How many numbers the last layer gives: one per class, or one per regression target.

    Example:
        >>> outputs(DataSpec((4,), classes=3)), outputs(DataSpec((4,), targets=2))
        (3, 2)
    """
    return spec.classes if spec.classes is not None else spec.targets


def channels(spec: DataSpec) -> int:
    """The channels of an image; a table has none, and is refused."""
    if not spec.is_image:
        raise ValueError(
            f"expected images of shape (channels, height, width) for a convolutional network, got shape {spec.shape}; "
            "use 'mlp' or 'linear' for tables"
        )
    return spec.shape[0]


def flat_size(features: nn.Module, spec: DataSpec) -> int:
    """How many numbers come out of `features` for one example; found on the meta device, so nothing is computed.

    Raises:
        ValueError: when the images are too small for the network.

    Example:
        >>> flat_size(nn.MaxPool2d(2), DataSpec((3, 8, 8)))
        48
    """
    message = f"expected larger images for this network, got shape {spec.shape}, of which nothing is left"
    try:
        with torch.no_grad():
            # Evaluation mode, because batch normalisation refuses to learn from a single value.
            out = copy.deepcopy(features).to("meta").eval()(torch.empty(1, *spec.shape, device="meta"))
    except RuntimeError as error:
        raise ValueError(f"{message} ({str(error).splitlines()[0]})") from error
    size: int = out.numel()
    if size == 0:
        raise ValueError(message)
    return size
