"""Weights of networks that attacks bring with them: shipped ones by name, and a user's own by path."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage.untrusted import Refused, check_safetensors

__all__ = ["Shelf", "WeightsNotFound", "save_halved"]

SUFFIX = ".safetensors"


class WeightsNotFound(ValueError):
    """There are no weights of that name, and no file."""


@dataclass(frozen=True)
class Shelf:
    """Networks of one kind.

    Args:
        knob: what the option is called that names one of them.
        folder: of the shipped ones, inside of `seepage/weights`.
        made_by: the command that makes such files.
        optional: whether the option may be `"none"`.
    """

    knob: str
    folder: str
    made_by: str
    optional: bool = True

    def names(self) -> list[str]:
        """Of the networks that come with Seepage."""
        home = self._home()
        if not home.is_dir():
            return []
        return sorted(f.name.removesuffix(SUFFIX) for f in home.iterdir() if f.name.endswith(SUFFIX))

    def check(self, name: str) -> None:
        """Raise `WeightsNotFound` for what is neither shipped nor looks like a file, which may be made later."""
        if name not in self.names() and not name.endswith(SUFFIX):
            raise self._missing(name)

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors in single precision, and what the header of the file says.

        Raises:
            WeightsNotFound: when there is neither a shipped network of that name nor a file.
            ValueError: when the file cannot be read.
        """
        with self.explained(name), self._file(name) as path:
            check_safetensors(path)
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (no mapping)
                about = dict(file.metadata() or {})
        return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}, about

    @contextmanager
    def explained(self, name: str) -> Iterator[None]:
        """Say of whatever does not fit that the file is of another kind."""
        try:
            yield
        except (SafetensorError, RuntimeError, KeyError, Refused) as error:
            raise ValueError(
                f"`{self.knob}`: expected {name} to hold weights made by `{self.made_by}`, "
                f"got: {str(error).splitlines()[0]}"
            ) from error

    @contextmanager
    def _file(self, name: str) -> Iterator[Path]:
        if name in self.names():
            with importlib.resources.as_file(self._home() / f"{name}{SUFFIX}") as path:
                yield path
        elif Path(name).is_file():
            yield Path(name)
        else:
            raise self._missing(name)

    def _home(self) -> Traversable:
        home = importlib.resources.files("seepage") / "weights"
        return home / self.folder if self.folder else home

    def _missing(self, name: str) -> WeightsNotFound:
        choices = [*(["none"] if self.optional else []), *self.names()]
        named = f"one of {choices} or " if choices else ""
        return WeightsNotFound(
            f"`{self.knob}`: expected {named}the path of a file *{SUFFIX}, got {name!r}; "
            f"`{self.made_by}` makes such files"
        )


def save_halved(net: nn.Module, path: Path, about: dict[str, str]) -> None:
    """Write the weights, in half precision, which costs no quality and half of the megabytes.

    Args:
        net: the network.
        path: of the file, which is replaced.
        about: how it was trained, kept in the file's header.
    """
    tensors = {
        key: (tensor.half() if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for key, tensor in net.state_dict().items()
    }
    scratch = path.with_name(f".{path.name}")
    save_file(tensors, scratch, metadata=about)
    scratch.replace(path)
