"""Defences: values that say what a client does differently, composed with `chain`."""

from seepage.defences.base import Defence, NoDefence, chain
from seepage.defences.clip import Clip
from seepage.defences.noise import GaussianNoise
from seepage.defences.top_k import TopK
from seepage.defences.weight_noise import WeightNoise
from seepage.defences.weight_sparsify import WeightSparsify

__all__ = [
    "DEFENCES",
    "Clip",
    "Defence",
    "GaussianNoise",
    "NoDefence",
    "TopK",
    "WeightNoise",
    "WeightSparsify",
    "chain",
]

DEFENCES: dict[str, type[Defence]] = {
    kind.name: kind for kind in (NoDefence, GaussianNoise, Clip, TopK, WeightNoise, WeightSparsify)
}
