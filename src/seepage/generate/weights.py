"""Files of generators: those that `seepage train generator` made, and public weights of BigGAN-deep."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.generate.base import Generator
from seepage.generate.biggan import BigGAN
from seepage.generate.network import PictureDecoder
from seepage.stored import Shelf, WeightsNotFound, save_halved
from seepage.untrusted import Refused, check_checkpoint

__all__ = ["GENERATORS", "check_generator", "load_generator", "save_generator"]

GENERATORS = Shelf("generator", "generators", "seepage train generator", optional=False)
CHECKPOINTS = (".pth", ".pt", ".bin")


def check_generator(name: str) -> None:
    """Raise `WeightsNotFound` for what is neither shipped nor looks like a file, which may be made later."""
    if not name.endswith(CHECKPOINTS):
        GENERATORS.check(name)


def load_generator(name: str, like: Tensor) -> Generator:
    """The generator of a name that comes with Seepage, or from a file.

    Args:
        name: of the generator, or path of a file: safetensors that `seepage train generator` made, or weights of
            BigGAN-deep under the names that Hugging Face gave them, as safetensors or as a PyTorch checkpoint, of which
            nothing but tensors is read.
        like: a tensor of the type and device of the images.

    Raises:
        WeightsNotFound: when there is neither.
        ValueError: when the file holds something else.
    """
    tensors, about = _checkpoint(name) if name.endswith(CHECKPOINTS) else GENERATORS.read(name)
    with GENERATORS.explained(name):
        if BigGAN.recognises(tensors):
            return BigGAN(tensors).to(like)
        net = PictureDecoder(int(about["classes"]), int(about["side"]), int(about["latent"]))
        net.load_state_dict(tensors)
    return net.to(like.device, like.dtype).eval().requires_grad_(False)


def save_generator(net: PictureDecoder, path: Path, about: dict[str, str]) -> None:
    """Write the weights, in half precision, with how they were made."""
    form = {"classes": str(net.classes), "side": str(net.side), "latent": str(net.latent)}
    save_halved(net, path, {**about, **form})


def _checkpoint(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    path = Path(name)
    if not path.is_file():
        raise WeightsNotFound(f"`generator`: expected a file {name}, got none; check the path")
    try:
        check_checkpoint(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
            raise Refused("content", "expected a state dict", "save `module.state_dict()`")
    except (Refused, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"`generator`: expected {name} to hold tensors alone, got: {str(error).splitlines()[0]}"
        ) from error
    return {k: v.float() if v.is_floating_point() else v for k, v in content.items()}, {}
