"""Soteria: take out of one layer's gradient what tells most about the input.

Sun, Li, Wang, Yang, Li and Chen, 2021, "Soteria: provable defense against privacy leakage in federated learning from
representation perspective" (https://arxiv.org/abs/2012.06043); as a defence in Yue et al., 2023, "Gradient obfuscation
gives a false sense of security in federated learning" (https://arxiv.org/abs/2206.04055), section 5.1.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import jvp

from seepage.defences.base import Defence
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.task import Params, Task

__all__ = ["Soteria"]


@dataclass(frozen=True)
class Soteria(Defence):
    """Zero the columns of a linear layer's gradient that belong to features which tell most about the input.

    A feature rᵢ that enters the defended layer and hardly changes with the input for its size tells most to who
    inverts the layers before it: those with the smallest ‖∂rᵢ/∂x‖ / (|rᵢ| + 0.1), summed over the batch, are pruned.

    Args:
        share: of the features that are pruned.
        layer: path of the defended linear layer in the module; the first one where left empty.
        draws: random directions v from which ‖∂rᵢ/∂x‖² is estimated as the mean of (∂rᵢ/∂x · v)².

    Note:
        The released code prunes 1 % (`as_code`); yue2023 has 80 %, "the highest protection level" (`as_paper`). The
        0.1 is the code's, not the text's: without it a feature that ReLU cut off in all examples would be 0 / 0, with
        it such features go first, though they tell nothing. Sun et al. compute every ∂rᵢ/∂x by a backward pass of its
        own, 65,536 of them for the LeNet of yue2023; here all come from `draws` forward derivatives. Features are
        judged by the global model as it was received, and what is sent after several steps is pruned once.

        The columns that are missing can be seen. An attacker who knows the defence leaves them out of the comparison;
        one who does not takes the zeros for a gradient.
    """

    name: ClassVar[str] = "soteria"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as_paper": {"share": 0.8}, "as_code": {"share": 0.01}}

    share: float = 0.8
    layer: str = ""
    draws: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"expected `share` in [0, 1), got {self.share}")
        if self.draws < 1:
            raise ValueError(f"expected `draws` of at least 1, got {self.draws}")

    def at_client(
        self, task: Task, recipe: Recipe, params: Params, buffers: Params, examples: Examples, rng: Stream
    ) -> Defence:
        """With the features of this client's examples that are kept."""
        layer = self._defended(task.module)
        change = self._change(task, layer, params, buffers, examples.x, rng)
        kept = torch.ones_like(change, dtype=torch.bool)
        kept[change.topk(int(self.share * len(change)), largest=False).indices] = False
        return Pruned(f"{layer}.weight", kept)

    def given(self, sent: Params) -> Defence:
        """Columns of zeros in the message are those that were pruned."""
        linear = [name for name, tensor in sent.items() if tensor.dim() == 2]
        defended = f"{self.layer}.weight" if self.layer else next(iter(linear), "")
        return Pruned(defended, (sent[defended] != 0).any(0)) if defended in sent else self

    def _defended(self, module: nn.Module) -> str:
        linear = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        layer = self.layer or next(iter(linear), "")
        if layer not in linear or not layer:
            raise ValueError(f"the defence 'soteria': expected `layer` to be one of {linear}, got {self.layer!r}")
        return layer

    def _change(self, task: Task, layer: str, params: Params, buffers: Params, x: Tensor, rng: Stream) -> Tensor:
        features = _entering(task, layer, params, buffers)
        with torch.no_grad():
            values = features(x)  # (n, width)
            squares = torch.zeros_like(values)
            for i in range(self.draws):
                direction = (rng / i).normal(*x.shape, dtype=x.dtype, device=x.device)
                squares += jvp(features, (x,), (direction,))[1].square() / self.draws
        return (squares.sqrt() / (values.abs() + 0.1)).sum(0)


class _Entered(Exception):
    """The layer was reached."""


def _entering(task: Task, layer: str, params: Params, buffers: Params) -> Callable[[Tensor], Tensor]:
    """What enters a layer of the module, (n, width), as a function of inputs; later layers are not run."""
    net, found = copy.deepcopy(task.module).eval(), []

    def stop(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])
        raise _Entered

    net.get_submodule(layer).register_forward_pre_hook(stop)

    def features(x: Tensor) -> Tensor:
        with contextlib.suppress(_Entered):
            torch.func.functional_call(net, {**buffers, **params}, (x,))
        return found.pop()

    return features


@dataclass(frozen=True, eq=False)
class Pruned(Defence):
    """Some columns of one tensor's gradient are zero."""

    name: ClassVar[str] = "pruned"

    tensor: str
    kept: Tensor = field(repr=False)

    def on_update(self, update: Params, rng: Stream | None) -> Params:
        """Zero the columns that are not kept."""
        return {name: u * self.kept if name == self.tensor else u for name, u in update.items()}
