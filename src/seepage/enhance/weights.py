"""Weights of enhancers: those that come with Seepage, by name, and a user's own, by path."""

from __future__ import annotations

from pathlib import Path

import torch

from seepage.enhance.network import Enhancer
from seepage.stored import Shelf, save_halved

__all__ = ["check_enhancer", "load_enhancer", "save_enhancer", "shipped"]

ENHANCERS = Shelf("enhancer", "", "seepage train enhancer")


def shipped() -> list[str]:
    """Names of the enhancers that come with Seepage."""
    return ENHANCERS.names()


def check_enhancer(name: str) -> None:
    """Raise `WeightsNotFound` for what is neither shipped nor looks like a file, which may be made later."""
    ENHANCERS.check(name)


def load_enhancer(name: str, device: torch.device | str = "cpu") -> Enhancer:
    """The enhancer of a name that `shipped` lists, or from a file.

    Raises:
        WeightsNotFound: when there is neither.
        ValueError: when the file holds something else.
    """
    tensors, _ = ENHANCERS.read(name)
    net = Enhancer()
    with ENHANCERS.explained(name):
        net.load_state_dict(tensors)
    return net.to(device).eval()


def save_enhancer(net: Enhancer, path: Path, about: dict[str, str]) -> None:
    """Write the weights, in half precision, with how they were made."""
    save_halved(net, path, about)
