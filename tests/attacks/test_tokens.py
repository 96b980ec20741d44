"""Texts come back exactly from the gradients of transformers, or it is said why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.federation import view_of
from seepage.attacks import ATTACKS, CountLabels, Dager, InvertingGradients, TokenBag
from seepage.attacks.base import READ_TOKENS
from seepage.attacks.tokens import _separated, _unused
from seepage.audit.experiment import parse
from seepage.audit.run import run
from seepage.defences import Clip, Defence, GaussianNoise, TopK
from seepage.finding import NotApplicable
from seepage.models import build
from seepage.pieces.token_layers import entrances
from seepage.recipe import SGD, Recipe
from seepage.report import write_report
from seepage.report.headline import headline
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import ModuleError, Task
from seepage.threat import THREATS, Fact, NotKnown, ThreatModel

RNG = Stream.from_seed(3)
GRADIENT = Recipe(sends="gradient")
SPEC = DataSpec((6,), classes=3, vocabulary=30)


def task_of(name: str, spec: DataSpec = SPEC, dtype: torch.dtype = torch.float64, **options: Any) -> Task:
    given = {"width": 64, **options} if name in ("text-encoder", "text-decoder") else options
    return Task(build(name, spec, Stream.from_seed(1), **given).to(dtype), spec)


def texts(n: int, spec: DataSpec = SPEC, seed: int = 0) -> Examples:
    """Texts of different lengths, none of them the beginning of another: token 1 ends each and is nowhere else."""
    g = torch.Generator().manual_seed(seed)
    (length,), vocabulary = spec.shape, spec.vocabulary or 0
    x = torch.randint(2, vocabulary, (n, length), generator=g)
    for row in x:
        end = int(torch.randint(1, length, (1,), generator=g))
        row[end], row[end + 1 :] = 1, 0
    return Examples(x, torch.randint(spec.classes or 1, (n,), generator=g))


def rows(x: Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in x.tolist()}


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", ["text-encoder", "text-decoder"])
@given(n=st.integers(1, 2), length=st.integers(2, 6), vocabulary=st.integers(12, 40), seed=st.integers(0, 50))
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])  # shrinking would take minutes
def test_texts_come_back_exactly(name: str, norm: str, n: int, length: int, vocabulary: int, seed: int) -> None:
    spec = DataSpec((length,), classes=3, vocabulary=vocabulary)
    task, secret = task_of(name, spec, norm=norm, heads=2), texts(n, spec, seed)
    finding = Dager()(view_of(task, {"ada": secret}, GRADIENT), RNG)
    assert rows(secret.x) <= rows(finding.inputs[0])
    assert float(finding.objective[0]) <= 1
    assert finding.tokens[0].nonzero().flatten().tolist() == sorted(set(secret.x.flatten().tolist()) - {0})


@pytest.mark.parametrize("name", ["text-encoder", "text-decoder"])
def test_single_precision_and_one_step_of_training_are_enough(name: str) -> None:
    secret = {"ada": texts(2, seed=1), "bob": texts(2, seed=2)}
    for recipe in (GRADIENT, Recipe(SGD(0.1), sends="weights")):
        finding = Dager(embeddings=False)(view_of(task_of(name, dtype=torch.float32), secret, recipe), RNG)
        assert finding.tokens is None
        for found, examples in zip(finding.inputs, secret.values(), strict=True):
            assert rows(found) == rows(examples.x)


def test_batches_of_an_encoder_come_back_where_every_token_passes_at_every_place() -> None:
    secret, task = texts(4, seed=5), task_of("text-encoder", dtype=torch.float32)
    finding = Dager(embeddings=False)(view_of(task, {"ada": secret}, GRADIENT), RNG)
    assert rows(finding.inputs[0]) == rows(secret.x)
    assert float(finding.objective[0]) <= 1


def test_a_text_held_twice_is_answered_once() -> None:
    once = texts(1)
    finding = Dager()(view_of(task_of("text-decoder"), {"ada": Examples.join([once, once])}, GRADIENT), RNG)
    assert rows(finding.inputs[0]) == {*rows(once.x), (-1,) * 6}


def test_torchs_own_layers_are_met_as_well() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(30, 64), nn.Parameter(torch.randn(6, 64))
            layer = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.tokens(x) + self.places).mean(1))

    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        task = Task(Own().double(), SPEC)
    assert entrances(task, task.params, torch.ones(2, 6).long())[0].weights == (
        "body.layers.0.self_attn.in_proj_weight",
    )
    secret = Examples(torch.randint(1, 30, (2, 6), generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))
    finding = Dager()(view_of(task, {"ada": secret}, GRADIENT), RNG)
    assert rows(finding.inputs[0]) == rows(secret.x)


@pytest.mark.parametrize("defence", [GaussianNoise(1e-5), TopK(0.3)], ids=str)
def test_a_changed_update_is_refused_with_the_reason(defence: Defence) -> None:
    view = view_of(task_of("text-decoder"), {"ada": texts(2)}, GRADIENT, defence=defence)
    with pytest.raises(NotApplicable, match=r"rank below 64, got 6.*the update was changed"):
        Dager()(view, RNG)


def test_clipping_does_not_help() -> None:
    secret = texts(2)
    view = view_of(task_of("text-decoder"), {"ada": secret}, GRADIENT, defence=Clip(0.01))
    assert rows(Dager()(view, RNG).inputs[0]) == rows(secret.x)


def test_more_tokens_than_width_are_refused_with_the_reason() -> None:
    task = task_of("text-decoder", width=16)
    with pytest.raises(NotApplicable, match=r"rank below 16, got 1[56]: the client has up to 72 tokens"):
        Dager()(view_of(task, {"ada": texts(12)}, GRADIENT), RNG)


def test_one_client_too_many_does_not_silence_the_others() -> None:
    task, few = task_of("text-decoder", width=32), texts(8, seed=4)
    few.x[:, 2:] = 0  # 16 tokens where the other has more than the layers are wide
    crowd = Examples(torch.randint(2, 30, (8, 6), generator=torch.Generator().manual_seed(9)), few.y)
    finding = Dager()(view_of(task, {"ada": few, "crowd": crowd}, GRADIENT), RNG)
    assert rows(few.x) <= rows(finding.inputs[0])
    assert (finding.inputs[1] == -1).all()
    assert finding.objective[1] == float("inf")


@pytest.mark.parametrize("name", ["text-lstm", "text-bag"])
def test_other_networks_give_away_a_bag_and_no_order(name: str) -> None:
    secret = texts(3)
    view = view_of(task_of(name), {"ada": secret}, GRADIENT)
    with pytest.raises(NotApplicable, match=r"expected a transformer.*'token-bag'"):
        Dager()(view, RNG)
    bag = TokenBag()(view, RNG).tokens[0]
    assert bag.nonzero().flatten().tolist() == sorted(set(secret.x.flatten().tolist()) - {0})


def test_only_noise_as_large_as_the_gradient_hides_the_bag() -> None:
    """Rows of tokens that do not occur are moved by noise alone, all about as far: others stand out."""
    task, secret = task_of("text-bag"), texts(2)
    for std in (1e-6, 1e-4):
        bag = TokenBag()(view_of(task, {"ada": secret}, GRADIENT, defence=GaussianNoise(std)), RNG).tokens[0]
        assert bag.nonzero().flatten().tolist() == sorted(set(secret.x.flatten().tolist()) - {0})
    with pytest.raises(NotApplicable, match="stand out, got none that does"):
        TokenBag()(view_of(task, {"ada": secret}, GRADIENT, defence=GaussianNoise(1.0)), RNG)


def test_a_frozen_embedding_has_no_bag() -> None:
    module = build("text-bag", SPEC, RNG)
    module.tokens.weight.requires_grad_(False)
    with pytest.raises(NotApplicable, match="a trained embedding"):
        TokenBag()(view_of(Task(module, SPEC), {"ada": texts(2)}, GRADIENT), RNG)


def test_a_frozen_embedding_does_not_protect_texts() -> None:
    module, secret = build("text-decoder", SPEC, RNG, width=64), texts(2)
    module.tokens.weight.requires_grad_(False)
    finding = Dager()(view_of(Task(module, SPEC), {"ada": secret}, GRADIENT), RNG)
    assert finding.tokens is None
    assert rows(finding.inputs[0]) == rows(secret.x)


def test_an_empty_update_is_refused() -> None:
    view = view_of(task_of("text-decoder"), {"ada": texts(2)}, GRADIENT)
    nothing = {name: torch.zeros_like(update) for name, update in view.update.items()}
    empty = replace(view, rounds=(replace(view.rounds[-1], update=nothing),))
    for attack in (Dager(), Dager(embeddings=False)):
        with pytest.raises(NotApplicable, match="empty"):
            attack(empty, RNG)
    assert not TokenBag()(empty, RNG).tokens.any()


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - READ_TOKENS))
def test_attacks_that_differentiate_inputs_refuse_tokens(name: str) -> None:
    threat = ThreatModel("everything", frozenset(Fact))
    view = view_of(task_of("text-bag"), {"ada": texts(2)}, GRADIENT, threat=threat)
    with pytest.raises((NotApplicable, NotKnown)) as refusal:
        ATTACKS[name]()(view, RNG)
    if isinstance(refusal.value, NotApplicable):
        assert "token" in str(refusal.value)


def test_the_refusal_names_the_attacks_that_read_tokens() -> None:
    with pytest.raises(NotApplicable, match=r"'inverting-gradients' differentiates, got token ids.*'dager'"):
        InvertingGradients()(view_of(task_of("text-bag"), {"ada": texts(1)}, GRADIENT), RNG)


def test_labels_are_counted_for_text_too() -> None:
    secret = texts(6)
    finding = CountLabels()(view_of(task_of("text-encoder"), {"ada": secret}, GRADIENT), RNG)
    assert sorted(finding.labels[0].tolist()) == sorted(secret.y.tolist())


def test_the_number_of_texts_is_asked_for() -> None:
    view = view_of(task_of("text-decoder"), {"ada": texts(1)}, GRADIENT, threat=ThreatModel("nothing", frozenset()))
    with pytest.raises(NotKnown):
        Dager()(view, RNG)
    assert TokenBag()(view, RNG).tokens.any()
    assert Fact.COUNT in THREATS["honest-server"].facts


def test_numbers_have_no_tokens() -> None:
    spec = DataSpec((4,), classes=2)
    task = Task(nn.Linear(4, 2), spec)
    view = view_of(task, {"ada": Examples(torch.ones(1, 4), torch.tensor([0]))}, GRADIENT)
    for attack in (TokenBag(), Dager()):
        with pytest.raises(NotApplicable, match="text"):
            attack(view, RNG)
    with pytest.raises(ModuleError, match="integer"):
        Task(nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(8, 2)), spec)
    with pytest.raises(ValueError, match="`vocabulary` of 2 or more"):
        DataSpec((2, 3), classes=2, vocabulary=9)


def test_an_audit_of_text_says_what_came_back(tmp_path: Path) -> None:
    experiment = parse(
        {
            "data": {"name": "sentences"},
            "clients": {"count": 2, "examples": 2},
            "model": {"name": "text-decoder", "options": {"width": 64}},
            "recipe": {"sends": "gradient"},
            "attack": ["dager", "token-bag", "inverting-gradients"],
            "defence": ["none", {"name": "gaussian-noise", "std": 1e-3}],
        },
        "here",
    )
    frame = run(experiment, tmp_path, device=torch.device("cpu")).read()
    found = frame[(frame["attack"] == "dager") & (frame["defence"] == "none")]
    assert set(found["diagnosis"]) == {"recovered"}
    for metric in ("token_accuracy", "rouge1", "rouge2", "token_bag"):
        assert (found[found["metric"] == metric]["value"] == 1).all(), metric
    refused = frame[(frame["metric"] == "none") & (frame["attack"] == "inverting-gradients")]
    assert refused["outcome"].str.contains("token ids").all()
    assert "100 % of the tokens of 4 texts came back in their places" in headline(frame, 20.0).sentence
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Tokens in place" in page
    assert "Bags of tokens" in page


def test_texts_that_another_brought_along_come_last() -> None:
    """Rounded weights let a true text with one token missing pass, nearer than another true text."""
    true, cut, other = (torch.tensor(text) for text in ([1, 5, 6, 2], [1, 5, 6, 0], [1, 7, 8, 2]))
    separate, brought_along = _separated([(0.4, cut), (0.5, other), (0.01, true)])
    assert [text.tolist() for text in separate] == [true.tolist(), other.tolist()]
    assert [text.tolist() for text in brought_along] == [cut.tolist()]


def test_tokens_that_no_text_has_speak_against_it() -> None:
    bag = torch.tensor([False, True, True, True, True])
    assert _unused([torch.tensor([1, 2, 0])], bag) == 0.5
    assert _unused([torch.tensor([1, 2]), torch.tensor([3, 4])], bag) == 0.0
    assert _unused([torch.tensor([1])], None) == 0.0
