"""Weights of enhancers: those that come with Seepage, by name, and a user's own, by path."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from seepage.enhance.network import Enhancer
from seepage.untrusted import Refused, check_safetensors

__all__ = ["EnhancerMissing", "check_enhancer", "load_enhancer", "save_enhancer", "shipped"]

SUFFIX = ".safetensors"


class EnhancerMissing(ValueError):
    """There is no enhancer of that name, and no file."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"`enhancer`: expected one of {['none', *shipped()]} or the path of a file *{SUFFIX}, got {name!r}; "
            "`seepage train enhancer` makes such files"
        )


def shipped() -> list[str]:
    """Names of the enhancers that come with Seepage."""
    folder = importlib.resources.files("seepage") / "weights"
    return sorted(f.name.removesuffix(SUFFIX) for f in folder.iterdir() if f.name.endswith(SUFFIX))


def check_enhancer(name: str) -> None:
    """Raise `EnhancerMissing` for what is neither shipped nor looks like a file, which may be made later."""
    if name not in shipped() and not name.endswith(SUFFIX):
        raise EnhancerMissing(name)


def load_enhancer(name: str, device: torch.device | str = "cpu") -> Enhancer:
    """The enhancer of a name that `shipped` lists, or from a file.

    Raises:
        EnhancerMissing: when there is neither.
        ValueError: when the file holds something else.
    """
    own = None if name in shipped() else Path(name)
    if own is not None and not own.is_file():
        raise EnhancerMissing(name)
    net = Enhancer()
    try:
        if own is None:
            data = (importlib.resources.files("seepage") / "weights" / f"{name}{SUFFIX}").read_bytes()
        else:
            check_safetensors(own)
            data = own.read_bytes()
        net.load_state_dict({key: tensor.float() for key, tensor in load(data).items()})
    except (SafetensorError, RuntimeError, Refused) as error:
        raise ValueError(
            f"`enhancer`: expected {name} to hold weights made by `seepage train enhancer`, "
            f"got: {str(error).splitlines()[0]}"
        ) from error
    return net.to(device).eval()


def save_enhancer(net: Enhancer, path: Path, about: dict[str, str]) -> None:
    """Write the weights, in half precision, which costs no quality and half of the megabytes.

    Args:
        net: the network.
        path: of the file, which is replaced.
        about: how it was trained, kept in the file's header.
    """
    tensors = {key: tensor.detach().cpu().half().contiguous() for key, tensor in net.state_dict().items()}
    scratch = path.with_name(f".{path.name}")
    save_file(tensors, scratch, metadata=about)
    scratch.replace(path)
