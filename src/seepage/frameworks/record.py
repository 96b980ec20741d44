"""Captures from a plain PyTorch training loop.

```python
with record(model, "captures/round-1", client="ward 3", secret="secrets/ward-3.safetensors") as rec:
    rec.seal(images, labels)  # optional, for scoring
    train(model)
```
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from torch import Tensor, nn

from seepage.capture import Capture, Exchange, Kind, Secret, write_capture, write_secret
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.task import Params

__all__ = ["RECIPE", "Recorder", "record", "unwrapped", "write_recipe"]

RECIPE = "recipe.toml"
"""The file in a capture's folder that says how the client trained, where that was told."""

_WRAPPERS = {
    "GradSampleModule": "_module",  # Opacus
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",  # torch.compile
}


class Recorder:
    """One round of one client as it looks from outside; filled in while the client trains.

    Attributes:
        capture: what went over the wire; there once the `with` block has ended.
        secret: the sealed examples, if there are any.
    """

    def __init__(self, client: str, number: int, examples: int | None) -> None:
        self.secret: Secret | None = None
        self._capture: Capture | None = None
        self._client, self._number, self._examples = client, number, examples
        self._sent: tuple[Params, Params | None, Kind] | None = None

    @property
    def capture(self) -> Capture:
        """What went over the wire."""
        if self._capture is None:
            raise RuntimeError("expected the `with record(...)` block to have ended, got one that is still open")
        return self._capture

    def seal(self, x: Tensor, y: Tensor, orders: Tensor | None = None) -> None:
        """Keep the client's examples for scoring, apart from the capture.

        Args:
            x: inputs as the module eats them, (n, …).
            y: targets, (n, …).
            orders: in which order each epoch visited them, (epochs, n), if that is known.

        Raises:
            TypeError: for anything but tensors.
        """
        for name, given in (("x", x), ("y", y)):
            if not isinstance(given, Tensor):
                raise TypeError(
                    f"{name}: expected a tensor as the module eats it, got {type(given).__name__}; use torch.as_tensor"
                )
        orders = None if orders is None else orders.detach().cpu().clone()
        self.secret = Secret(self._client, Examples(x.detach().cpu().clone(), y.detach().cpu().clone()), orders)

    def send(self, tensors: Mapping[str, Tensor], kind: Kind = "weights", buffers: Params | None = None) -> None:
        """Say what really goes out, where that is not the module's weights: a gradient, or weights after a defence.

        Args:
            tensors: by parameter name.
            kind: whether they are new weights, an update (before − after) or a gradient.
            buffers: those that go with them; none when absent.
        """
        self._sent = (_copied(tensors.items()), None if buffers is None else _copied(buffers.items()), kind)

    def close(self, module: nn.Module, before: Params, buffers_before: Params) -> None:
        """Take down what goes out; called at the end of the block."""
        sent, buffers, kind = self._sent or (*state_of(module), "weights")
        count = len(self.secret.examples) if self._examples is None and self.secret is not None else self._examples
        exchange = Exchange(self._number, before, sent, kind, buffers_before, buffers or None, count)
        self._capture = Capture(self._client, (exchange,))


@contextmanager
def record(
    model: nn.Module,
    folder: Path | str | None = None,
    *,
    client: str = "client",
    number: int = 0,
    examples: int | None = None,
    recipe: Recipe | None = None,
    secret: Path | str | None = None,
) -> Iterator[Recorder]:
    """Capture what a client received and what it sends, around its local training.

    Args:
        model: the module, holding the global model on entry and the client's own at the end; wrappers of Opacus,
            DistributedDataParallel and torch.compile are looked through.
        folder: where the capture goes, whole or not at all; it must not exist yet. Without it nothing is written.
        client: its name.
        number: of the round.
        examples: how many the client says it trained on; the number of sealed ones when absent.
        recipe: how it trains, for attackers who are told; kept as `recipe.toml` in the folder.
        secret: file for the examples given to `Recorder.seal`, outside of `folder`.

    Note:
        Nothing is written when the block ends in an exception.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 2)
        >>> with record(model, examples=1) as rec:
        ...     with torch.no_grad():
        ...         model.bias -= 0.5
        >>> rec.capture.exchanges[0].update["bias"]
        tensor([0.5000, 0.5000])
    """
    folder, secret = (None if path is None else Path(path) for path in (folder, secret))
    if secret is not None and folder is not None and secret.absolute().is_relative_to(folder.absolute()):
        raise ValueError(f"expected `secret` outside of the capture {folder}, got {secret}; give it its own folder")
    if folder is not None and folder.exists():
        raise FileExistsError(f"{folder}: expected no such folder yet; remove it or choose another name")
    inner = unwrapped(model)
    before, buffers = state_of(inner)
    recorder = Recorder(client, number, examples)
    yield recorder
    recorder.close(inner, before, buffers)
    if folder is not None:
        write_capture(folder, [recorder.capture])
        if recipe is not None:
            write_recipe(folder / RECIPE, recipe)
    if recorder.secret is not None and secret is not None:
        write_secret(secret, recorder.secret)
    elif recorder.secret is not None and folder is not None:
        warnings.warn(
            "the sealed examples are not written anywhere: expected `secret=FILE` in record(…), got none; without "
            "that file nothing that an attack brings back can be scored",
            stacklevel=3,  # the caller's `with`, beyond contextlib's
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module inside of Opacus' GradSampleModule, DistributedDataParallel or torch.compile.

    Example:
        >>> unwrapped(nn.DataParallel(nn.Identity()))
        Identity()
    """
    while (inside := _WRAPPERS.get(type(model).__name__)) is not None:
        model = getattr(model, inside)
    return model


def state_of(module: nn.Module) -> tuple[Params, Params]:
    """Copies of what is trained, and of everything else that the output depends on, as `Task` tells them apart."""
    named = list(module.named_parameters())
    frozen = [(name, p) for name, p in named if not p.requires_grad]
    return _copied((n, p) for n, p in named if p.requires_grad), _copied([*module.named_buffers(), *frozen])


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe as the `[recipe]` table of an experiment, to be read again by `seepage attack --recipe`.

    Args:
        path: the file.
        recipe: what to write.
    """
    fields = asdict(recipe)
    tables = {
        "recipe": fields,
        "recipe.optimiser": {"kind": type(recipe.optimiser).__name__, **fields.pop("optimiser")},
    }
    # A JSON number, string, boolean or list is one of TOML, too; what is absent has no value there.
    lines = [
        line
        for name, table in tables.items()
        for line in (f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items() if v is not None))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _copied(named: Iterable[tuple[str, Tensor]]) -> Params:
    return {name: tensor.detach().cpu().clone() for name, tensor in named}
