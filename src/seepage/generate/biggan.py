"""BigGAN-deep from public weights.

Brock, Donahue and Simonyan, 2019, "Large scale GAN training for high fidelity natural image synthesis"
(https://arxiv.org/abs/1809.11096), appendix B. Weights are those that Hugging Face converted from the authors'
(`biggan-deep-128`, `-256` and `-512`), whose names of tensors are read here; the form of the network is read off them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["BigGAN"]

EPSILON = 1e-4


class BigGAN:
    """Images of ImageNet's classes from standard normal numbers.

    Args:
        tensors: the state dict.

    Note:
        Weights are divided by their spectral norms once, when they are read. Means and variances of activations are
        stored for 51 truncations of the latent numbers; those without truncation are used.

    Raises:
        KeyError: when a tensor is missing.
        RuntimeError: when one does not fit the others.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._weights = _without_spectral_norm(tensors)
        kinds = {key.split(".")[2] for key in tensors if key.startswith("generator.layers.")}
        self._layers = [f"generator.layers.{i}" for i in sorted(map(int, kinds))]
        self._blocks = [layer for layer in self._layers if f"{layer}.conv_0.weight" in self._weights]
        self.latent, self.classes = self._weights["embeddings.weight"].shape
        self.side = 4 * 2 ** (len(self._blocks) // 2)
        # Without numbers, so that a tensor that is missing or does not fit is noticed at once.
        shapes = torch.zeros((1, self.latent), device="meta")
        self.to(shapes)(shapes, torch.zeros(1, dtype=torch.long, device="meta"))

    @staticmethod
    def recognises(tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are weights of BigGAN-deep, by a name that no other network has."""
        return "generator.gen_z.weight_orig" in tensors

    def to(self, like: Tensor) -> BigGAN:
        """The same with weights of the type and device of a tensor."""
        moved = object.__new__(BigGAN)
        moved.__dict__ = {**self.__dict__, "_weights": {k: w.to(like) for k, w in self._weights.items()}}
        return moved

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        """Images (n, 3, side, side) in [0, 1] from (n, latent) and class numbers (n,)."""
        kind = functional.embedding(y, self._weights["embeddings.weight"].mT)
        told = torch.cat([z, kind], 1)
        x = self._linear("generator.gen_z", told)
        # The weights come from a framework that keeps channels last.
        x = x.reshape(len(z), 4, 4, -1).permute(0, 3, 1, 2)
        for layer in self._layers:
            x = self._block(layer, x, told) if layer in self._blocks else self._attention(layer, x)
        x = functional.relu(self._normalised("generator.bn", x))
        x = self._convolution("generator.conv_to_rgb", x)[:, :3]  # the others were never trained
        return (1 + torch.tanh(x)) / 2

    def _block(self, name: str, x: Tensor, told: Tensor) -> Tensor:
        """A residual bottleneck; every second one doubles the size."""
        doubles = self._blocks.index(name) % 2 == 1
        out = x
        for i in range(4):
            out = functional.relu(self._normalised(f"{name}.bn_{i}", out, told))
            if doubles and i == 1:
                out = functional.interpolate(out, scale_factor=2.0, mode="nearest")
            out = self._convolution(f"{name}.conv_{i}", out)
        kept = x[:, : out.shape[1]]
        return out + (functional.interpolate(kept, scale_factor=2.0, mode="nearest") if doubles else kept)

    def _attention(self, name: str, x: Tensor) -> Tensor:
        """Every place looks at all others, at half resolution."""
        ask = self._convolution(f"{name}.snconv1x1_theta", x).flatten(2)  # (n, c / 8, places)
        offer = functional.max_pool2d(self._convolution(f"{name}.snconv1x1_phi", x), 2).flatten(2)
        content = functional.max_pool2d(self._convolution(f"{name}.snconv1x1_g", x), 2).flatten(2)
        looks = torch.softmax(ask.mT @ offer, -1)  # (n, places, places / 4)
        seen = (content @ looks.mT).reshape(len(x), -1, *x.shape[2:])
        return x + self._weights[f"{name}.gamma"] * self._convolution(f"{name}.snconv1x1_o_conv", seen)

    def _normalised(self, name: str, x: Tensor, told: Tensor | None = None) -> Tensor:
        mean, variance = (self._weights[f"{name}.running_{which}"][-1] for which in ("means", "vars"))
        x = (x - mean[:, None, None]) / (variance[:, None, None] + EPSILON).sqrt()
        if told is None:
            return x * self._weights[f"{name}.weight"][:, None, None] + self._weights[f"{name}.bias"][:, None, None]
        scale, offset = (self._linear(f"{name}.{which}", told)[..., None, None] for which in ("scale", "offset"))
        return x * (1 + scale) + offset

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _convolution(self, name: str, x: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        return functional.conv2d(x, weight, self._weights.get(f"{name}.bias"), padding=weight.shape[-1] // 2)


def _without_spectral_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """W / σ with σ = uᵀWv of the stored vectors; what has no such vectors stays as it is."""
    plain: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name, _, last = key.rpartition(".")
        if last == "weight_orig":
            u, v = tensors[f"{name}.weight_u"], tensors[f"{name}.weight_v"]
            plain[f"{name}.weight"] = tensor / (u @ tensor.flatten(1) @ v)
        elif last not in ("weight_u", "weight_v"):
            plain[key] = tensor
    return plain
