"""Defences: values that say what a client does differently, composed with `chain`."""

from seepage.defences.base import Defence, NoDefence, chain
from seepage.defences.clip import Clip
from seepage.defences.clip_examples import ClipExamples
from seepage.defences.clip_layers import ClipLayers
from seepage.defences.dp_sgd import DpSgd
from seepage.defences.fed_cdp import FedCdp
from seepage.defences.gradient_noise import GradientNoise
from seepage.defences.laplacian_noise import LaplacianNoise
from seepage.defences.local_dp import LocalDp
from seepage.defences.mixup import Mixup
from seepage.defences.noise import GaussianNoise
from seepage.defences.precode import Precode
from seepage.defences.prune import RandomPruning
from seepage.defences.qsgd import QSGD
from seepage.defences.sign import Sign
from seepage.defences.soteria import Soteria
from seepage.defences.top_k import TopK
from seepage.defences.uniform_quantise import UniformQuantise
from seepage.defences.weight_noise import WeightNoise
from seepage.defences.weight_sparsify import WeightSparsify

__all__ = [
    "DEFENCES",
    "QSGD",
    "Clip",
    "ClipExamples",
    "ClipLayers",
    "Defence",
    "DpSgd",
    "FedCdp",
    "GaussianNoise",
    "GradientNoise",
    "LaplacianNoise",
    "LocalDp",
    "Mixup",
    "NoDefence",
    "Precode",
    "RandomPruning",
    "Sign",
    "Soteria",
    "TopK",
    "UniformQuantise",
    "WeightNoise",
    "WeightSparsify",
    "chain",
]

DEFENCES: dict[str, type[Defence]] = {
    kind.name: kind
    for kind in (
        NoDefence,
        GaussianNoise,
        LaplacianNoise,
        Clip,
        ClipLayers,
        ClipExamples,
        LocalDp,
        DpSgd,
        FedCdp,
        TopK,
        UniformQuantise,
        QSGD,
        Sign,
        WeightNoise,
        WeightSparsify,
        GradientNoise,
        RandomPruning,
        Mixup,
        Soteria,
        Precode,
    )
}
