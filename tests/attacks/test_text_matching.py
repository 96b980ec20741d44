"""Texts by matching updates over embeddings, orders and tokens: where exact attacks refuse, or the reason why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attacks.test_tokens import GRADIENT, RNG, SPEC, rows, task_of, texts
from common.federation import view_of
from seepage.attacks import LAMP, TAG, Dager
from seepage.attacks.lamp import _Search
from seepage.defences import GaussianNoise
from seepage.finding import NotApplicable
from seepage.metrics.text import rouge
from seepage.pieces.bigrams import SMOOTHING, Bigrams
from seepage.pieces.distances import layer_cosine
from seepage.pieces.embedded_texts import embedded, filled_places, noise_of_rows, simulation, with_places
from seepage.pieces.text_moves import new_orders, with_one_other
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, ThreatModel

LONG = Examples(torch.tensor([[5, 9, 2, 17, 8, 1]]), torch.tensor([2]))
SHORT = LAMP(steps=40, turns=2, moves=20, sweeps=6, lr=0.05)


@pytest.mark.parametrize("name", ["text-encoder", "text-decoder", "text-lstm", "text-bag"])
def test_embeddings_of_the_true_tokens_give_the_update_that_was_sent(name: str) -> None:
    """The network behind the lookup is the same network: its gradient at the true embeddings is the true one."""
    secret = texts(2)
    view = view_of(task_of(name, width=16), {"ada": secret}, GRADIENT)
    found = embedded(view)
    x, there = found.tables[0][secret.x], secret.x != 0
    params, buffers = ({n: t[0] for n, t in tree.items()} for tree in (found.params, found.buffers))
    sent = found.task.gradient(params, with_places(x, there, found.tables[0, 0]), secret.y, buffers=buffers)
    assert "inner.tokens.weight" not in sent
    assert set(sent) == set(found.update) == {f"inner.{n}" for n in view.update if n != "tokens.weight"}
    for key, gradient in found.update.items():
        torch.testing.assert_close(sent[key], gradient[0])


def test_learned_positions_tell_how_long_the_longest_text_is() -> None:
    secret = texts(3, seed=5)
    longest = int((secret.x != 0).sum(1).max())
    for name in ("text-encoder", "text-decoder"):
        for defence in (None, GaussianNoise(1e-4)):
            view = view_of(task_of(name), {"ada": secret}, GRADIENT, defence=defence)
            assert filled_places(view)[0].tolist() == [place < longest for place in range(6)]
    assert filled_places(view_of(task_of("text-lstm"), {"ada": secret}, GRADIENT)).all()


def test_a_text_comes_back_through_noise_that_ends_the_exact_attack() -> None:
    secret, task = LONG, task_of("text-encoder", dtype=torch.float32)
    view = view_of(task, {"ada": secret}, GRADIENT, defence=GaussianNoise(1e-3))
    with pytest.raises(NotApplicable, match="the update was changed"):
        Dager()(view, RNG)
    assert rows(SHORT(view, RNG).inputs[0]) == rows(secret.x)


def test_a_text_comes_back_after_several_local_steps() -> None:
    secret, steps = LONG, Recipe(SGD(0.1), epochs=3, sends="weights")
    view = view_of(task_of("text-encoder", dtype=torch.float32), {"ada": secret}, steps)
    finding = SHORT(view, RNG)
    assert rows(finding.inputs[0]) == rows(secret.x)
    assert float(finding.objective[0]) < 0.01 < float(finding.first_objective[0])


def test_the_words_of_an_lstm_come_back() -> None:
    secret = LONG
    view = view_of(task_of("text-lstm", dtype=torch.float32), {"ada": secret}, GRADIENT)
    found = SHORT(view, RNG).inputs[0, 0]
    assert rouge(found, secret.x[0], 1) == 1


def test_words_of_a_frozen_embedding_come_back_without_its_gradient() -> None:
    task, secret = task_of("text-encoder", dtype=torch.float32), LONG
    task.module.tokens.weight.requires_grad_(False)
    view = view_of(Task(task.module, SPEC), {"ada": secret}, GRADIENT)
    finding = SHORT(view, RNG)
    assert finding.tokens is None
    assert rouge(finding.inputs[0, 0], secret.x[0], 1) >= 0.5


def test_tag_finds_more_words_than_chance_does() -> None:
    def six_words(seed: int) -> Tensor:
        return torch.randperm(29, generator=torch.Generator().manual_seed(seed))[:6] + 1

    true, guessed = ([six_words(seed) for seed in seeds] for seeds in (range(8), range(8, 16)))
    secrets = {str(i): Examples(words[None], torch.tensor([i % 3])) for i, words in enumerate(true)}
    task = task_of("text-encoder", dtype=torch.float32, width=64, layers=1)
    finding = TAG(steps=300)(view_of(task, secrets, GRADIENT), RNG)

    def shared(found: list[Tensor]) -> float:
        return sum(rouge(one, other, 1) for one, other in zip(found, true, strict=True)) / len(true)

    assert shared([finding.inputs[i, 0] for i in range(8)]) > 0.4 > 1.5 * shared(guessed)
    assert (finding.objective < finding.first_objective).all()


def test_clients_do_not_see_each_other_and_a_seed_decides() -> None:
    task = task_of("text-encoder", dtype=torch.float64, width=16)
    secrets = {"ada": texts(1, seed=1), "bob": texts(1, seed=2)}
    attack = LAMP(steps=4, turns=2, moves=4, sweeps=1, starts=2)
    together = attack(view_of(task, secrets, GRADIENT), RNG)
    for i, name in enumerate(secrets):
        alone = attack(view_of(task, {name: secrets[name]}, GRADIENT), RNG)
        assert alone.inputs[0].equal(together.inputs[i])
        torch.testing.assert_close(alone.objective[0], together.objective[i])


def test_public_texts_are_a_language_model_where_they_are_granted() -> None:
    task, secret = task_of("text-bag"), LONG
    knowing = ThreatModel("reader", frozenset({Fact.COUNT, Fact.PUBLIC_DATA}))
    public = Examples(secret.x.repeat(5, 1), secret.y.repeat(5))
    view = view_of(task, {"ada": secret}, GRADIENT, threat=knowing, public=public)
    search = _Search.met(LAMP(), view, RNG)
    backwards = secret.x.flip(1)
    here, there = search._surprise(torch.stack([secret.x, backwards]))
    assert here < there  # the gradient of a bag does not know the order, the language does
    finding = replace(SHORT, steps=2, turns=1)(view, RNG)
    assert rouge(finding.inputs[0, 0], secret.x[0], 2) > 0.6


def test_bigrams_are_what_counting_by_hand_gives() -> None:
    usual = Bigrams.counted(torch.tensor([[1, 2, 0], [1, 1, 0]]), 3)
    # Both begin with 1. Of three 1s, one is followed by 2, one by 1 and one by the end; the 2 by the end.
    chances = [
        (seen + SMOOTHING * (times + SMOOTHING) / (6 + 3 * SMOOTHING)) / (before + SMOOTHING)
        for seen, times, before in [(2, 3, 2), (1, 1, 3), (1, 2, 1)]  # begins with 1, goes on with 2, ends
    ]
    expected = -torch.tensor(chances).log().mean()
    torch.testing.assert_close(usual.surprise(torch.tensor([[1, 2, 0]]))[0], expected)


def test_moves_are_orders_and_changes_of_one_place() -> None:
    rng = torch.Generator().manual_seed(0)
    orders = new_orders(5, 7, 41, rng)
    assert orders[0].tolist() == list(range(7))
    assert (orders.sort(1).values == torch.arange(7)).all()
    assert (orders[:, 5:] == torch.tensor([5, 6])).all()
    assert len(orders.unique(dim=0)) > 10
    assert new_orders(1, 3, 5, rng).tolist() == [[0, 1, 2]] * 5
    others = with_one_other(torch.tensor([4, 5, 0]), 2, torch.tensor([6]))
    assert others.tolist() == [[4, 5, 0], [4, 5, 6]]


def test_layers_that_say_nothing_do_not_count() -> None:
    guess = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([2.0])}
    target = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0])}
    assert float(layer_cosine(guess, target)) == pytest.approx(1 - 0.5**0.5)


def test_noise_is_measured_by_rows_that_nobody_uses() -> None:
    g = torch.Generator().manual_seed(0)
    noise = 0.3 * torch.randn(200, 64, generator=g)
    noise[7] += 2
    assert noise_of_rows(noise) == pytest.approx(0.3, rel=0.02)
    assert noise_of_rows(torch.randn(200, 64, generator=g) * torch.linspace(0, 1, 200)[:, None]) is None


def test_what_cannot_be_searched_is_refused_with_the_reason() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(30, 8)), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table[x].mean(-2))

    view = view_of(Task(Bare(), SPEC), {"ada": texts(1)}, GRADIENT)
    numbers = view_of(
        Task(nn.Linear(4, 2), DataSpec((4,), classes=2)),
        {"ada": Examples(torch.ones(1, 4), torch.tensor([0]))},
        GRADIENT,
    )
    silent = view_of(task_of("text-bag"), {"ada": texts(1)}, GRADIENT, threat=ThreatModel("nothing", frozenset()))
    for attack in (LAMP(), TAG()):
        with pytest.raises(NotApplicable, match=r"nn\.Embedding as large as the vocabulary"):
            attack(view, RNG)
        with pytest.raises(NotApplicable, match="expected text"):
            attack(numbers, RNG)
        with pytest.raises(NotKnown):
            attack(silent, RNG)
    with pytest.raises(ValueError, match="`turns` between 1 and `steps`"):
        LAMP(steps=3, turns=4)
    assert Fact.COUNT in THREATS["honest-server"].facts


def test_a_zero_update_ends_in_an_answer() -> None:
    view = view_of(task_of("text-encoder", width=16), {"ada": texts(1)}, GRADIENT)
    nothing = {name: torch.zeros_like(update) for name, update in view.update.items()}
    empty = replace(view, rounds=(replace(view.rounds[-1], update=nothing),))
    finding = LAMP(steps=2, turns=1, moves=2, sweeps=1)(empty, RNG)
    assert finding.inputs.shape == (1, 1, 6)
    assert simulation(empty, embedded(empty)) is not None
