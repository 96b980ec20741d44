"""The papers' networks, sized for the data at hand and initialised from a stream.

>>> import torch
>>> from seepage.spec import DataSpec
>>> from seepage.streams import Stream
>>> net = build("lenet-zhu", DataSpec((3, 32, 32), classes=10), Stream.from_seed(0))
>>> net(torch.zeros(2, 3, 32, 32)).shape
torch.Size([2, 10])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from seepage.models import cnn, convnet, lenet, linear, mlp, resnet, text, vgg
from seepage.models.initialisation import RULES, initialise
from seepage.models.shapes import choose
from seepage.spec import DataSpec
from seepage.streams import Stream

__all__ = ["MODELS", "Network", "build", "options"]


@dataclass(frozen=True)
class Network:
    """An entry of the registry.

    Args:
        make: from a `DataSpec` and options to a module; its first weights do not matter.
        init: the paper's initialisation, a key of `seepage.models.initialisation.RULES`.
    """

    make: Callable[..., nn.Module]
    init: str = "torch"


MODELS: dict[str, Network] = {
    "linear": Network(linear.linear),
    "mlp": Network(mlp.mlp),
    "lenet-zhu": Network(lenet.lenet_zhu, "uniform-half"),
    "lenet-yue": Network(lenet.lenet_yue),
    "cnn-femnist": Network(cnn.cnn_femnist, "lecun-normal"),
    "cnn-cifar": Network(cnn.cnn_cifar, "lecun-normal"),
    "convnet": Network(convnet.convnet),
    "vgg7": Network(vgg.vgg7),
    "text-encoder": Network(text.text_encoder, "lecun-normal"),
    "text-decoder": Network(text.text_decoder, "lecun-normal"),
    "text-lstm": Network(text.text_lstm),
    "text-bag": Network(text.text_bag),
    **{name: Network(make, "kaiming") for name, make in resnet.RESNETS.items()},
}


def options(name: str) -> dict[str, object]:
    """The options of a network, with the value that each has unless told otherwise.

    Example:
        >>> options("lenet-zhu")
        {'activation': 'sigmoid', 'init': 'uniform-half'}
    """
    network = choose("name", name, MODELS)
    known = inspect.signature(network.make).parameters.values()
    given: dict[str, object] = {p.name: p.default for p in known if p.kind is p.KEYWORD_ONLY}
    return {**given, "init": network.init}


def build(name: str, spec: DataSpec, rng: Stream, **given: object) -> nn.Module:
    """A network by name, in train mode, on the CPU.

    Its weights depend on `rng` alone, and the global random state of PyTorch is left as it was.

    Args:
        name: one of `MODELS`.
        spec: shape of the input, and number of classes or targets.
        rng: decides the first weights.
        **given: see `options`; every network also takes `init`, one of `seepage.models.initialisation.RULES`.

    Raises:
        ValueError: for an unknown name, option or value, or for inputs that the network cannot take.

    Example:
        >>> spec, rng = DataSpec((4,), classes=2), Stream.from_seed(0)
        >>> build("mlp", spec, rng, hidden=(8,), activation="tanh")
        Sequential(
          (flatten): Flatten(start_dim=1, end_dim=-1)
          (linear1): Linear(in_features=4, out_features=8, bias=True)
          (act1): Tanh()
          (linear2): Linear(in_features=8, out_features=2, bias=True)
        )
    """
    known = options(name)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"expected options of {name!r} among {sorted(known)}, got {unknown}")
    chosen = {**known, **given}
    rule = choose("init", chosen.pop("init"), RULES)
    # On the meta device constructors draw nothing, so the global random state stays, and nothing is computed twice.
    with torch.device("meta"):
        module = MODELS[name].make(spec, **chosen)
    return initialise(module.to_empty(device="cpu"), rule, rng.generator())
