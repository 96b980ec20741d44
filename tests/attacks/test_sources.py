"""Whose a record is, where clients differ enough for the answer to be known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.nets import numbers, seeded
from seepage.attacks import LMRA, SourceInference, SourceInversion, StandIn
from seepage.finding import NotApplicable
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, NotKnown, Setting, View, observe, target_records

RNG = Stream.from_seed(0)
RECIPE = Recipe(SGD(0.1), epochs=5)


def clients(apart: float) -> list[Examples]:
    """Three clients of different size that label by rules which differ by `apart`."""
    held = []
    for i, n in enumerate((12, 20, 20)):
        x = numbers(n, 6, seed=i)
        rule = numbers(6, seed=9) + apart * numbers(6, seed=10 + i)
        held.append(Examples(x, (x @ rule > 0).long()))
    return held


def seen(
    held: list[Examples], *, rounds: int = 3, threat: str = "source-seeking-server", recipe: Recipe = RECIPE
) -> View:
    net = seeded(lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)))
    task = Task(net, DataSpec((6,), classes=2))
    played = list(play(task, held, recipe, Federation(rounds), RNG))
    captures = join_rounds([c for r in played for c in r.captures])
    return observe(list(zip(captures, played[-1].secrets, strict=True)), Setting(task, recipe), THREATS[threat])


def share(sources: torch.Tensor, held: list[Examples]) -> float:
    _, holds = target_records(held)
    assert sources.shape == holds.shape
    return float(holds[sources.argmax(0), torch.arange(holds.shape[1])].double().mean())


@pytest.mark.parametrize("by", ["loss", "margin"])
@pytest.mark.parametrize("model", ["returned", "last-answer"])
def test_models_that_learnt_other_rules_tell_their_records_apart(model: str, by: str) -> None:
    held = clients(apart=3.0)
    found = SourceInference(model=model, by=by)(seen(held), RNG).sources  # type: ignore[arg-type]
    assert found is not None
    assert share(found, held) > 0.45  # of three


def test_the_vote_counts_rounds() -> None:
    held = clients(apart=3.0)
    view = seen(held, rounds=4)
    found = SourceInference()(view, RNG).sources
    assert found is not None
    assert found.floor().sum(0).eq(4).all()


def test_updates_tell_whose_records_they_are_even_of_one_rule() -> None:
    held = clients(apart=0.0)
    view = seen(held, recipe=Recipe(SGD(0.1)), rounds=6)
    solved = SourceInversion()(view, RNG).sources
    asked = SourceInference()(view, RNG).sources
    assert solved is not None
    assert asked is not None
    assert share(solved, held) > 0.9
    assert share(solved, held) > share(asked, held)


def test_one_client_has_nobody_to_be_confused_with() -> None:
    for attack in (SourceInference(), SourceInversion()):
        with pytest.raises(NotApplicable, match="at least two clients"):
            attack(seen(clients(0.0)[:1]), RNG)


def test_without_targets_there_is_no_question() -> None:
    view = seen(clients(0.0)[1:], threat="honest-server")
    for attack in (SourceInference(), SourceInversion()):
        with pytest.raises(NotKnown, match="target records"):
            attack(view, RNG)


def test_lmra_answers_a_model_of_each_client_that_leaves_the_rest_as_it_was_returned() -> None:
    view = seen(clients(3.0), rounds=6)
    still = LMRA(fit_epochs=50, epochs=0)(view, RNG).params
    moved = LMRA(fit_epochs=50, epochs=20)(view, RNG).params
    last = StandIn("last-answer")(view, RNG).params
    assert still is not None
    assert moved is not None
    assert last is not None
    for name, p in last.items():
        torch.testing.assert_close(still[name], p, rtol=1e-6, atol=1e-8)
        assert moved[name].shape == p.shape
    assert any(not torch.allclose(moved[name], p) for name, p in last.items())


def test_one_round_is_not_enough_to_learn_answers_from() -> None:
    with pytest.raises(NotApplicable, match="at least two observed rounds"):
        LMRA()(seen(clients(0.0), rounds=1), RNG)


def test_a_search_that_diverges_says_so() -> None:
    with pytest.raises(NotApplicable, match="not finite with lr = 1e\\+30; lower it"):
        LMRA(fit_epochs=5, epochs=20, lr=1e30)(seen(clients(3.0), rounds=4), RNG)
