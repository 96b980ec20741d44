"""A federation against a loop written by hand."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from common.nets import batch_resnet, cnn, flat, image_task, images, mlp, numbers
from seepage import local
from seepage.defences.base import Defence, NoDefence
from seepage.defences.noise import GaussianNoise
from seepage.local import Answer, answer, local_update, updates_together
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, aggregate, join_rounds, overhear, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task

RNG = Stream.from_seed(1)
CLIENTS = [images(n, seed=n) for n in (2, 5, 3)]
RECIPE = Recipe(SGD(0.2, momentum=0.5), epochs=2, batch_size=2)


@pytest.mark.parametrize("net", [mlp, cnn])
def test_federated_averaging_is_the_loop_of_its_paper(net) -> None:
    task = image_task(net)
    got = list(play(task, CLIENTS, RECIPE, Federation(rounds=3), RNG))
    module = copy.deepcopy(task.module)
    for number in range(3):
        weights = []
        for i, examples in enumerate(CLIENTS):
            local = copy.deepcopy(module).train()
            optimiser = torch.optim.SGD(local.parameters(), 0.2, momentum=0.5)
            stream = RNG / "round" / number / "client" / str(i)
            schedule = RECIPE.schedule(examples.x, examples.y, RECIPE.orders(len(examples), stream / "orders"))
            for x, y in zip(schedule.x, schedule.y, strict=True):
                optimiser.zero_grad()
                nn.functional.cross_entropy(local(x), y).backward()
                optimiser.step()
            weights.append(local.state_dict())
        total = sum(len(c) for c in CLIENTS)
        module.load_state_dict(
            {name: sum(len(c) / total * w[name] for c, w in zip(CLIENTS, weights, strict=True)) for name in weights[0]}
        )
        for name, p in module.named_parameters():
            torch.testing.assert_close(got[number].params[name], p.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("repeats", [False, True])
def test_draws_of_a_round_repeat_by_place_where_that_is_asked_for(repeats: bool) -> None:
    same = [images(4, seed=1)] * 5  # and a server that does not move: what differs was drawn
    federation = Federation(rounds=2, per_round=3, server_lr=0.0, repeats=repeats)
    rounds = list(play(image_task(mlp), same, RECIPE, federation, RNG, defence=GaussianNoise(0.1)))
    assert rounds[0].sampled != rounds[1].sampled
    first, second = ([capture.exchanges[0].update for capture in one.captures] for one in rounds)
    alike = [all(a[name].equal(b[name]) for name in a) for a in first for b in second]
    assert alike == [repeats and place in (0, 4, 8) for place in range(9)]  # each with its like alone, if at all


def test_clients_count_by_their_examples() -> None:
    answers = [
        Answer({"w": numbers(3, seed=i)}, {"mean": numbers(2, seed=9 + i), "count": torch.tensor(c)}, n)
        for i, (n, c) in enumerate([(1, 2), (6, 3), (3, 9)])
    ]
    whole = aggregate(answers)
    assert whole.examples == 10
    torch.testing.assert_close(whole.update["w"], sum(a.examples / 10 * a.update["w"] for a in answers))
    torch.testing.assert_close(whole.buffers["mean"], sum(a.examples / 10 * a.buffers["mean"] for a in answers))
    assert whole.buffers["count"].equal(torch.tensor(5))  # 4.7, rounded: a counter stays a whole number


def test_what_no_client_changed_stays_as_it_is() -> None:
    same = numbers(50)
    thirds = [Answer({"w": same}, {"frozen": same}, n) for n in (1, 1, 1)]
    assert aggregate(thirds).buffers["frozen"].equal(same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_aggregation_keeps_names_order_and_types(dtype: torch.dtype) -> None:
    answers = [Answer({"b": torch.ones(2, dtype=dtype), "a": torch.ones(1, dtype=dtype)}, {}, n) for n in (1, 2)]
    whole = aggregate(answers)
    assert list(whole.update) == ["b", "a"]
    assert whole.update["a"].dtype == dtype


def test_clients_are_sampled_without_repetition_and_all_get_their_turn() -> None:
    task, clients = image_task(), [images(1, seed) for seed in range(6)]
    rounds = list(play(task, clients, Recipe(), Federation(rounds=30, per_round=2), RNG))
    turns = Counter(i for r in rounds for i in r.sampled)
    assert all(len(set(r.sampled)) == 2 and len(r.captures) == 2 for r in rounds)
    assert set(turns) == set(range(6))
    assert len({r.sampled for r in rounds}) > 5
    assert [tuple(c.client for c in r.captures) for r in rounds] == [tuple(map(str, r.sampled)) for r in rounds]


def test_a_federation_is_repeated_by_its_stream() -> None:
    def end(seed: int) -> torch.Tensor:
        rounds = list(play(image_task(), CLIENTS, RECIPE, Federation(2, per_round=2), Stream.from_seed(seed)))
        return flat(rounds[-1].params)

    assert end(0).equal(end(0))
    assert not end(0).equal(end(1))


def test_each_exchange_holds_the_global_model_and_one_clients_answer() -> None:
    task = image_task()
    first, second = play(task, CLIENTS, RECIPE, Federation(rounds=2), RNG, names=["ada", "bob", "cyd"])
    for round_, before in ((first, task.params), (second, first.params)):
        for i, (name, capture) in enumerate(zip(["ada", "bob", "cyd"], round_.captures, strict=True)):
            (exchange,) = capture.exchanges
            stream = RNG / "round" / round_.number / "client" / name
            expected = answer(task, before, CLIENTS[i], RECIPE, NoDefence(), stream)
            assert (capture.client, exchange.round, exchange.kind) == (name, round_.number, "update")
            assert exchange.examples == len(CLIENTS[i])
            assert flat(exchange.before).equal(flat(before))
            assert flat(exchange.update).equal(flat(expected.update))
            assert round_.secrets[i].client == name
            assert round_.secrets[i].examples is CLIENTS[i]


def test_weights_carry_the_same_update() -> None:
    task = image_task()
    (updates,) = play(task, CLIENTS, RECIPE, Federation(), RNG)
    (weights,) = play(task, CLIENTS, replace(RECIPE, sends="weights"), Federation(), RNG)
    for one, other in zip(updates.captures, weights.captures, strict=True):
        (u,), (w,) = one.exchanges, other.exchanges
        assert w.kind == "weights"
        assert not flat(w.answer).equal(flat(u.answer))
        torch.testing.assert_close(flat(w.update), flat(u.update), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(flat(updates.params), flat(weights.params))


def test_an_aggregate_is_the_weighted_mean_and_hides_the_answers() -> None:
    task = image_task(batch_resnet)
    recipe = Recipe(SGD(0.1))
    (each,) = play(task, CLIENTS, recipe, Federation(), RNG)
    (hidden,) = play(task, CLIENTS, recipe, Federation(visible="aggregate"), RNG)
    (capture,), (secret,) = hidden.captures, hidden.secrets
    assert capture.client == secret.client == "0+1+2"
    assert capture.members == ("0", "1", "2")
    assert len(secret.examples) == 10
    (exchange,) = capture.exchanges
    assert exchange.examples == 10
    singles = [c.exchanges[0] for c in each.captures]
    mean = sum(len(c) / 10 * flat(e.update) for c, e in zip(CLIENTS, singles, strict=True))
    torch.testing.assert_close(flat(exchange.update), mean)
    for name, buffer in exchange.buffers_after.items():
        if buffer.is_floating_point():
            expected = sum(len(c) / 10 * e.buffers_after[name] for c, e in zip(CLIENTS, singles, strict=True))
            torch.testing.assert_close(buffer, expected)
    for single in singles:
        assert not torch.allclose(flat(exchange.answer), flat(single.answer))
    torch.testing.assert_close(flat(each.params), flat(hidden.params))


def test_buffers_are_averaged_and_sent_on_only_where_clients_send_them() -> None:
    task, recipe = image_task(batch_resnet), Recipe(SGD(0.1))
    first, second = play(task, CLIENTS, recipe, Federation(rounds=2), RNG)
    name = "0.first_norm.running_mean"
    mean = sum(len(c) / 10 * k.exchanges[0].buffers_after[name] for c, k in zip(CLIENTS, first.captures, strict=True))
    torch.testing.assert_close(first.buffers[name], mean)
    assert second.captures[0].exchanges[0].buffers_before[name].equal(first.buffers[name])
    silent = list(play(task, CLIENTS, replace(recipe, sends_buffers=False), Federation(rounds=2), RNG))
    assert all(c.exchanges[0].buffers_after is None for r in silent for c in r.captures)
    assert silent[-1].buffers[name].equal(task.buffers[name])


def test_clients_that_send_gradients_are_full_batch_descent_on_all_examples() -> None:
    task = image_task(cnn)
    federation = Federation(rounds=4, server_lr=0.3)
    end = list(play(task, CLIENTS, Recipe(sends="gradient"), federation, RNG))[-1]
    everything, module = Examples.join(CLIENTS), copy.deepcopy(task.module)
    optimiser = torch.optim.SGD(module.parameters(), 0.3)
    for _ in range(4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(everything.x), everything.y).backward()
        optimiser.step()
    for name, p in module.named_parameters():
        torch.testing.assert_close(end.params[name], p.detach(), rtol=1e-10, atol=1e-12)


def test_the_server_steps_along_the_mean_update() -> None:
    task = image_task()
    (half,) = play(task, CLIENTS, RECIPE, Federation(server_lr=0.5), RNG)
    (whole,) = play(task, CLIENTS, RECIPE, Federation(), RNG)
    start = flat(task.params)
    torch.testing.assert_close(start - flat(half.params), (start - flat(whole.params)) / 2)


def test_training_starts_where_it_is_told_to() -> None:
    task = image_task(batch_resnet)
    first, second = play(task, CLIENTS, Recipe(SGD(0.1)), Federation(rounds=2), RNG)
    other = {name: p * 0 + 0.01 for name, p in task.params.items()}
    (elsewhere,) = play(task, CLIENTS, Recipe(SGD(0.1)), Federation(), RNG, params=other, buffers=first.buffers)
    (exchange,) = elsewhere.captures[0].exchanges
    assert flat(exchange.before).equal(flat(other))
    assert flat(exchange.buffers_before).equal(flat(first.buffers))
    assert second.number == 1


def test_accuracy_is_measured_on_held_out_examples_and_rises() -> None:
    centres = 3 * numbers(3, 4)
    y = torch.arange(3).repeat(20)
    examples = Examples(centres[y] + 0.1 * numbers(60, 4, seed=1), y)
    task = Task(nn.Linear(4, 3).double(), DataSpec((4,), classes=3))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    parts = [examples[order[i::3]] for i in range(3)]
    recipe = Recipe(Adam(0.05), epochs=5, batch_size=5)
    rounds = list(play(task, parts[:2], recipe, Federation(rounds=3), RNG, held_out=parts[2]))
    assert rounds[-1].accuracy == task.accuracy(rounds[-1].params, parts[2].x, parts[2].y)
    assert rounds[-1].accuracy == 1.0
    assert next(play(task, parts, recipe, Federation(), RNG)).accuracy is None


def test_rounds_of_one_client_are_joined_in_order() -> None:
    rounds = list(play(image_task(), CLIENTS, RECIPE, Federation(rounds=4, per_round=2), RNG))
    joined = join_rounds([c for r in rounds for c in r.captures])
    assert {c.client for c in joined} == {"0", "1", "2"}
    for capture in joined:
        numbers_ = [e.round for e in capture.exchanges]
        assert numbers_ == [r.number for r in rounds if int(capture.client) in r.sampled]


def test_groups_are_seen_each_as_the_mean_of_its_members() -> None:
    task, clients = image_task(), [images(n, seed=n) for n in (2, 3, 2, 4)]
    (each,) = play(task, clients, RECIPE, Federation(), RNG)
    (pairs,) = play(task, clients, RECIPE, Federation(visible="aggregate", group=2), RNG)
    assert [capture.members for capture in pairs.captures] == [("0", "1"), ("2", "3")]
    assert [len(secret.examples) for secret in pairs.secrets] == [5, 6]
    first, second = (flat(capture.exchanges[0].update) for capture in each.captures[:2])
    torch.testing.assert_close(flat(pairs.captures[0].exchanges[0].update), (2 * first + 3 * second) / 5)
    assert flat(each.params).equal(flat(pairs.params))  # what is seen changes nothing
    with pytest.raises(ValueError, match="divide the 4 clients of a round, got 3"):
        next(play(task, clients, RECIPE, Federation(visible="aggregate", group=3), RNG))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds.*at least 1.*0"),
        ({"visible": "none"}, "visible.*'each' or 'aggregate'.*'none'"),
        ({"per_round": 0}, "per_round.*at least 1.*0"),
        ({"group": 0}, "group.*at least 1.*0"),
    ],
)
def test_a_federation_that_makes_no_sense_is_refused(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Federation(**wrong)


def test_more_clients_per_round_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 3.*got 4"):
        next(play(image_task(), CLIENTS, RECIPE, Federation(per_round=4), RNG))


@pytest.mark.parametrize("recipe", [RECIPE, Recipe(sends="gradient"), Recipe(Adam(0.01), epochs=3, batch_size=2)])
@pytest.mark.parametrize("net", [mlp, batch_resnet])
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_clients_that_train_together_answer_as_they_do_alone(net, recipe: Recipe, at_once: int, monkeypatch) -> None:
    task = image_task(net)
    monkeypatch.setattr(local, "NUMBERS_AT_ONCE", at_once * sum(p.numel() for p in task.params.values()))
    clients = [images(n, seed=i) for i, n in enumerate((4, 2, 4, 4))]
    alone, together = (
        list(play(task, clients, recipe, Federation(rounds=2, together=how), RNG)) for how in (False, True)
    )
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(flat(one.params), flat(other.params), rtol=1e-9, atol=1e-12)
        for a, b in zip(one.captures, other.captures, strict=True):
            assert a.client == b.client
            torch.testing.assert_close(flat(a.exchanges[0].answer), flat(b.exchanges[0].answer), rtol=1e-9, atol=1e-12)
        assert all(a.orders.equal(b.orders) for a, b in zip(one.secrets, other.secrets, strict=True))


@pytest.mark.parametrize("net", [mlp, batch_resnet])
def test_clients_with_models_and_batches_of_their_own_train_together_as_alone(net) -> None:
    task, recipe = image_task(net), Recipe(SGD(0.1, momentum=0.9), epochs=2, batch_size=2)
    shift = [{n: p + 0.01 * i for n, p in task.params.items()} for i in range(3)]
    starts = [(params, task.buffers) for params in shift]
    held = [images(n, seed=i) for i, n in enumerate((4, 3, 4))]  # the second has a batch of one
    schedules = [recipe.schedule(c.x, c.y) for c in held]
    together = updates_together(task, starts, schedules, recipe)
    for (params, buffers), schedule, (update, _) in zip(starts, schedules, together, strict=True):
        alone = local_update(task, params, schedule, recipe, buffers=buffers)
        torch.testing.assert_close(flat(update), flat(alone), rtol=1e-9, atol=1e-12)


def test_modules_that_draw_random_numbers_do_not_train_together() -> None:
    task = image_task(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)))
    with pytest.raises(ValueError, match="let its clients train one by one"):
        next(play(task, CLIENTS, RECIPE, Federation(together=True), RNG))


@pytest.mark.parametrize("defence", [NoDefence(), GaussianNoise(std=0.1)])
@pytest.mark.parametrize(
    ("federation", "which"),
    [
        (Federation(), range(1, 3)),
        (Federation(per_round=4), range(2)),
        (Federation(per_round=4, visible="aggregate", group=2), range(1, 2)),
        (Federation(visible="aggregate"), range(1)),
    ],
)
def test_what_is_overheard_is_what_is_played(defence: Defence, federation: Federation, which: range) -> None:
    task, clients = image_task(mlp), [images(n, seed=n) for n in (2, 5, 3, 4, 2)]
    heard = overhear(task, clients, RECIPE, federation, RNG, which, defence=defence)
    (seen,) = play(task, clients, RECIPE, federation, RNG, defence=defence)
    chosen = slice(which.start, which.stop)
    assert len(heard) == len(which)
    for (capture, secret), shown, known in zip(heard, seen.captures[chosen], seen.secrets[chosen], strict=True):
        assert (capture.client, capture.members, secret.sizes) == (shown.client, shown.members, known.sizes)
        torch.testing.assert_close(capture.exchanges[0].answer, shown.exchanges[0].answer, rtol=0, atol=0)
        torch.testing.assert_close(secret.examples.x, known.examples.x, rtol=0, atol=0)
