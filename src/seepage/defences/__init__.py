"""Defences: values that say what a client does differently, composed with `chain`."""

from seepage.defences.base import Defence, NoDefence, chain
from seepage.defences.clip import Clip
from seepage.defences.gradient_noise import GradientNoise
from seepage.defences.noise import GaussianNoise
from seepage.defences.prune import RandomPruning
from seepage.defences.top_k import TopK
from seepage.defences.weight_noise import WeightNoise
from seepage.defences.weight_sparsify import WeightSparsify

__all__ = [
    "DEFENCES",
    "Clip",
    "Defence",
    "GaussianNoise",
    "GradientNoise",
    "NoDefence",
    "RandomPruning",
    "TopK",
    "WeightNoise",
    "WeightSparsify",
    "chain",
]

DEFENCES: dict[str, type[Defence]] = {
    kind.name: kind
    for kind in (NoDefence, GaussianNoise, Clip, TopK, WeightNoise, WeightSparsify, GradientNoise, RandomPruning)
}
