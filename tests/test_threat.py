"""The one door: what is granted passes, and nothing else can be reached."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.nets import CLASSES, IMAGE, batch_resnet, flat, image_task, images, mlp, numbers, seeded
from common.walk import assert_no_path_to, reachable
from seepage.capture import Capture, Exchange, Secret, read_secret, write_secret
from seepage.defences import Clip, GaussianNoise, NoDefence, chain
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, Sensitive, Setting, ThreatModel, View, observe, target_records

RECIPE = Recipe(SGD(0.1), epochs=2, batch_size=2)
DEFENCE = chain(Clip(1.0), GaussianNoise(0.001))
PUBLIC = images(4, seed=50)
READS = {
    Fact.COUNT: lambda view: view.count,
    Fact.RECIPE: lambda view: view.recipe,
    Fact.STEPS: lambda view: view.steps,
    Fact.LABELS: lambda view: view.labels,
    Fact.MEMBER_LABELS: lambda view: view.member_labels,
    Fact.BATCH_LABELS: lambda view: view.batch_labels,
    Fact.DEFENCE: lambda view: view._fact(Fact.DEFENCE),
    Fact.PUBLIC_DATA: lambda view: view.public,
    Fact.PUBLIC_COLUMNS: lambda view: view.records,
    Fact.TARGETS: lambda view: view.targets,
}
SENSITIVE = Sensitive("first", slice(0, 1), torch.tensor([[-1.0], [1.0]]))
# These grant records themselves, and are walked with more care below.
RECORDS = {Fact.PUBLIC_COLUMNS, Fact.TARGETS}

Pairs = list[tuple[Capture, Secret]]


def federation(
    task: Task, clients: list[Examples] | None = None, recipe: Recipe = RECIPE, rounds: int = 1, defence: Any = DEFENCE
) -> Pairs:
    clients = clients or [images(3, seed) for seed in range(2)]
    played = list(play(task, clients, recipe, Federation(rounds), Stream.from_seed(0), defence=defence))
    captures = join_rounds([c for r in played for c in r.captures])
    return list(zip(captures, played[0].secrets, strict=True))


def seen(threat: ThreatModel, task: Task | None = None, pairs: Pairs | None = None, **setting: Any) -> View:
    task = task or image_task()
    pairs = pairs or federation(task)
    return observe(
        pairs, Setting(task, RECIPE, DEFENCE, **{"public": PUBLIC, "sensitive": SENSITIVE, **setting}), threat
    )


every_threat = pytest.mark.parametrize("threat", THREATS.values(), ids=lambda threat: threat.name)


@every_threat
@pytest.mark.parametrize("fact", Fact)
def test_a_fact_passes_if_and_only_if_it_is_granted(threat: ThreatModel, fact: Fact) -> None:
    view = seen(threat)
    assert view.knows(fact) is (fact in threat.known)
    if fact in threat.known:
        READS[fact](view)
        return
    with pytest.raises(NotKnown) as refusal:
        READS[fact](view)
    assert repr(threat.name) in str(refusal.value)
    assert repr(fact.value) in str(refusal.value)
    assert all(repr(granted.value) in str(refusal.value) for granted in threat.facts)
    assert refusal.value.fact is fact


def test_every_fact_is_read_by_this_test_and_explained() -> None:
    assert set(READS) == set(Fact)
    assert all(fact.about for fact in Fact)
    assert all(threat.about and THREATS[name] is threat for name, threat in THREATS.items())


def test_granted_facts_are_the_true_ones() -> None:
    pairs = federation(image_task())
    view = seen(THREATS["all-knowing-server"], pairs=pairs)
    assert view.count == 3
    assert view.recipe == view.assumed_recipe == RECIPE
    assert view.assumed_defence == chain(Clip(1.0), NoDefence())
    assert view.public.x.equal(PUBLIC.x)
    assert view.public.y.equal(PUBLIC.y)
    assert view.labels.shape == (2, 3)


@pytest.mark.parametrize("name", ["step-counting-server", "honest-server"])
def test_steps_do_not_tell_how_they_are_cut(name: str) -> None:
    view = seen(THREATS[name])
    assert view.steps.number == RECIPE.steps(3) == 4
    assert view.steps.each == Recipe(RECIPE.optimiser)
    assert view.steps == Recipe(RECIPE.optimiser, epochs=4, shuffle=False).local_steps(3)
    assert view.steps.cut(2, 2) == RECIPE


def test_whoever_is_told_the_steps_alone_has_no_way_to_the_recipe() -> None:
    view = seen(THREATS["step-counting-server"])
    recipes = [thing for thing in reachable(view) if isinstance(thing, Recipe)]
    assert recipes == [view.steps.each]


@pytest.mark.parametrize(("sizes", "known"), [([3, 3], True), ([3, 4], True), ([3, 5], False)])
def test_steps_of_an_aggregate_are_those_of_each_member(sizes: list[int], known: bool) -> None:
    task = image_task()
    pairs = aggregates(sizes, 2, task)
    view = seen(THREATS["step-counting-server"], task, pairs)
    assert view.knows(Fact.STEPS) is known
    assert not known or view.steps.number == 4
    without = [(capture, None) for capture, _ in pairs]  # nobody says how large the members are
    assert not seen(THREATS["step-counting-server"], task, without).knows(Fact.STEPS)


def test_an_attacker_who_knows_nothing_assumes_a_gradient_and_no_defence() -> None:
    view = seen(ThreatModel("nobody", frozenset()))
    assert view.assumed_recipe == Recipe(sends="gradient")
    assert view.assumed_defence == NoDefence()


def test_messages_are_stacked_clients_first_and_rounds_in_order() -> None:
    task = image_task(batch_resnet)
    pairs = federation(task, rounds=3)
    view = seen(THREATS["eavesdropper"], task, pairs)
    assert view.clients == ("0", "1")
    assert view.kind == "update"
    assert [r.round for r in view.rounds] == [0, 1, 2]
    for i, (capture, _) in enumerate(pairs):
        for r, exchange in zip(view.rounds, capture.exchanges, strict=True):
            assert flat({n: t[i] for n, t in r.update.items()}).equal(flat(exchange.update))
            assert flat({n: t[i] for n, t in r.params.items()}).equal(flat(exchange.before))
            assert flat({n: t[i] for n, t in r.buffers.items()}).equal(flat(exchange.buffers_before))
            assert flat({n: t[i] for n, t in r.buffers_after.items()}).equal(flat(exchange.buffers_after))
    assert view.update is view.rounds[-1].update
    assert view.params is view.rounds[-1].params
    assert view.buffers is view.rounds[-1].buffers


@pytest.mark.parametrize(("sends", "kind"), [("gradient", "gradient"), ("update", "update"), ("weights", "update")])
def test_weights_are_seen_as_the_update_they_make(sends: str, kind: str) -> None:
    task = image_task()
    pairs = federation(task, recipe=Recipe(SGD(0.1), sends=sends), defence=None)  # type: ignore[arg-type]
    view = seen(THREATS["eavesdropper"], task, pairs)
    assert view.kind == kind
    assert flat({n: t[1] for n, t in view.update.items()}).equal(flat(pairs[1][0].exchanges[0].update))


# Labels.


def test_labels_are_sorted_copies() -> None:
    clients = [
        Examples(numbers(4, *IMAGE, seed=s), torch.tensor(y)) for s, y in enumerate([[2, 0, 1, 0], [1, 2, 1, 0]])
    ]
    task = image_task()
    pairs = federation(task, clients)
    view = seen(THREATS["label-aware-server"], task, pairs)
    assert view.labels.tolist() == [[0, 0, 1, 2], [0, 1, 1, 2]]
    view.labels.zero_()
    assert pairs[0][1].examples.y.tolist() == [2, 0, 1, 0]


def test_sorted_labels_are_copies_even_where_they_were_in_order() -> None:
    task = image_task()
    client = Examples(numbers(3, *IMAGE), torch.tensor([0, 1, 2]))
    pairs = federation(task, [client])
    view = seen(THREATS["label-aware-server"], task, pairs)
    assert view.labels.untyped_storage().data_ptr() != client.y.untyped_storage().data_ptr()


@pytest.mark.parametrize("targets", [1, 2])
def test_targets_of_a_regression_lose_their_order_too(targets: int) -> None:
    task = Task(seeded(lambda: nn.Linear(4, targets)), DataSpec((4,), targets=targets))
    y = torch.tensor([[3.0, 1.0], [1.0, 9.0], [2.0, 5.0], [1.0, 2.0]]).double()[:, :targets]
    pairs = federation(task, [Examples(numbers(4, 4), y)])
    view = seen(THREATS["label-aware-server"], task, pairs, public=None)
    expected = [[1.0, 2.0], [1.0, 9.0], [2.0, 5.0], [3.0, 1.0]]  # pairs of one example stay together
    assert view.labels.tolist() == [[row[:targets] for row in expected]]


# Refusals at the door.


def test_clients_with_unequal_counts_are_refused_clearly() -> None:
    task = image_task()
    pairs = federation(task, [images(3), images(5)])
    with pytest.raises(ValueError, match=r"share the number of examples, got \[3, 5\]"):
        seen(THREATS["eavesdropper"], task, pairs)


def test_clients_seen_in_other_rounds_or_kinds_are_refused_clearly() -> None:
    task = image_task()
    (a, s), (b, t) = federation(task, defence=None)
    later = replace(b, exchanges=(replace(b.exchanges[0], round=7),))
    with pytest.raises(ValueError, match=r"share the observed rounds, got \[\(0,\), \(7,\)\]"):
        seen(THREATS["eavesdropper"], task, [(a, s), (later, t)])
    other = replace(b, exchanges=(replace(b.exchanges[0], kind="gradient"),))
    with pytest.raises(ValueError, match=r"share the kind of answer, got \['gradient', 'update'\]"):
        seen(THREATS["eavesdropper"], task, [(a, s), (other, t)])


def test_nothing_to_observe_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one capture"):
        observe([], Setting(image_task(), RECIPE), THREATS["eavesdropper"])


def test_labels_cannot_be_granted_without_a_secret() -> None:
    task = image_task()
    pairs = [(capture, None) for capture, _ in federation(task)]
    with pytest.raises(ValueError, match=r"'label-aware-server' grants labels.*hand the secret in"):
        observe(pairs, Setting(task, RECIPE), THREATS["label-aware-server"])
    assert observe(pairs, Setting(task, RECIPE), THREATS["honest-server"]).count == 3


def test_a_count_that_nobody_says_is_asked_for() -> None:
    task = image_task()
    capture = Capture("ada", (Exchange(0, task.params, task.params, "update", {}),))
    with pytest.raises(ValueError, match=r"client ada.*does not say it.*examples="):
        observe([(capture, None)], Setting(task, RECIPE), THREATS["eavesdropper"])
    assert observe([(capture, Secret("ada", images(2)))], Setting(task, RECIPE), THREATS["eavesdropper"]).count == 2


def test_public_data_that_do_not_exist_are_not_known_and_the_message_says_so() -> None:
    view = seen(THREATS["informed-server"], public=None)
    assert not view.knows(Fact.PUBLIC_DATA)
    with pytest.raises(NotKnown, match=r"'informed-server' grants 'public data', but there is none"):
        view.public  # noqa: B018


# No way to the secret.


class Hoarder(nn.Module):
    """A user's module that keeps what passes through it, as many do for looking at activations."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.kept: list[Tensor] = []
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        self.kept.append(x.detach())
        return self.body(x)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))


MODULES = {"mlp": mlp, "resnet": batch_resnet, "dropout and BatchNorm": dropping, "keeps its inputs": Hoarder}


@pytest.mark.parametrize("threat", [t for t in THREATS.values() if not t.facts & RECORDS], ids=lambda t: t.name)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("sends", ["gradient", "update", "weights"])
def test_no_path_leads_from_a_view_to_the_secret(threat: ThreatModel, name: str, sends: str) -> None:
    task = image_task(MODULES[name])  # clients and attacker share the task
    task.check()  # so that this is behind us, as in a real run
    steps = {"epochs": 2, "batch_size": 2} if sends != "gradient" else {}
    recipe = Recipe(SGD(0.1), sends=sends, **steps)  # type: ignore[arg-type]
    pairs = federation(task, [images(4, s) for s in range(2)], recipe, rounds=2)
    view = seen(threat, task, pairs)
    assert_no_path_to([secret for _, secret in pairs], view)


def test_public_columns_pass_without_the_sensitive_one_and_targets_without_their_owners() -> None:
    pairs = federation(image_task())
    view = seen(THREATS["column-aware-server"], pairs=pairs)
    held = torch.stack([secret.examples.x for _, secret in pairs])
    assert view.records.x[..., 1:].equal(held[..., 1:])
    assert not view.records.x[..., 0].any()
    assert view.records.y.equal(torch.stack([secret.examples.y for _, secret in pairs]))
    hidden = held[..., 0].flatten()
    for thing in reachable(view):
        if isinstance(thing, Tensor) and thing.is_floating_point():
            assert not torch.isin(hidden, thing.double().reshape(-1)).any()
    assert_no_path_to([secret for _, secret in pairs], view)


def test_a_column_is_filled_in_and_read_back() -> None:
    view = seen(THREATS["column-aware-server"])
    values = SENSITIVE.values[torch.tensor([1, 0, 1])]
    filled = view.records.filled(0, values[:, None, None, :].expand(3, 1, 6, 1))
    assert SENSITIVE.read(filled)[:, 0, 0].tolist() == [1, 0, 1]
    assert not view.records.x[..., 0].any()


def test_columns_need_a_secret_to_come_from() -> None:
    pairs = [(capture, None) for capture, _ in federation(image_task())]
    with pytest.raises(ValueError, match="public columns, which come from the secret"):
        seen(THREATS["column-aware-server"], pairs=pairs)  # type: ignore[arg-type]


def test_targets_are_known_to_their_owners_alone() -> None:
    shared, own = torch.zeros(1, 2), torch.arange(8.0).reshape(4, 2)
    ada = Examples(torch.cat([own[:2], shared]), torch.tensor([1, 1, 0]))
    bob = Examples(torch.cat([shared, own[2:]]), torch.tensor([0, 0, 1]))
    targets, holds = target_records([ada, bob])
    assert len(targets) == 5  # what both have is asked for once
    for x, y, who in zip(targets.x, targets.y, holds.T, strict=True):
        has = [bool(((e.x == x).all(1) & (e.y == y)).any()) for e in (ada, bob)]
        assert who.tolist() == has
    again, _ = target_records([Examples(ada.x.flip(0), ada.y.flip(0)), bob])
    assert again.x.equal(targets.x)  # the order in which a client keeps them passes nothing


def test_no_path_leads_to_the_secret_after_a_client_failed() -> None:
    task = image_task(dropping)
    secret = Secret("ada", images(4))
    with pytest.raises(ValueError, match="more than one value"):
        federation(task, [images(4, 1)[:1]], Recipe(SGD(0.1)))
    view = seen(THREATS["all-knowing-server"], task, federation(task, [secret.examples], Recipe(SGD(0.1))))
    assert_no_path_to([secret, Secret("bob", images(4, 1))], view)
    assert not any(getattr(thing, "fresh", None) for thing in reachable(view) if isinstance(thing, nn.Module))


def test_a_view_holds_only_what_its_fields_say() -> None:
    assert {field.name for field in fields(View)} == {
        "threat", "task", "clients", "kind", "rounds", "_granted", "folder",
    }  # fmt: skip
    view = seen(THREATS["eavesdropper"])
    with pytest.raises(TypeError):
        view._granted[Fact.LABELS] = torch.zeros(1)  # type: ignore[index]


def test_what_an_attacker_does_to_a_view_stays_in_the_view() -> None:
    task = image_task(batch_resnet)
    pairs = federation(task)
    view = seen(THREATS["all-knowing-server"], task, pairs)
    kept = [flat(pairs[0][0].exchanges[0].answer).clone(), PUBLIC.x.clone(), flat(task.buffers).clone()]
    for thing in list(reachable((view.rounds, view._granted))):
        if isinstance(thing, Tensor):
            thing.zero_()
    assert kept[0].equal(flat(pairs[0][0].exchanges[0].answer))
    assert kept[1].equal(PUBLIC.x)
    assert kept[2].equal(flat(task.buffers))


def test_the_attackers_task_works_like_the_federations() -> None:
    task = image_task(Hoarder)
    view = seen(THREATS["eavesdropper"], task, federation(task))
    x = numbers(2, *IMAGE, seed=9)
    assert view.task.forward(view.task.params, x)[0].equal(task.forward(task.params, x)[0])
    assert view.task.spec == task.spec
    assert view.task.batched == task.batched


# The walk itself finds what it is meant to find.


class Box:
    __slots__ = ("inside",)

    def __init__(self, inside: object) -> None:
        self.inside = inside


def closing_over(thing: object) -> Any:
    return lambda: thing


@pytest.mark.parametrize(
    "hide",
    [
        lambda s: s,
        lambda s: {"a": [(s,)]},
        Box,
        closing_over,
        lambda s: s.examples,
        lambda s: s.examples.x,
        lambda s: s.examples.x[1:, :, 2:],
        lambda s: s.examples.y.view(2, 2),
        lambda s: s.examples.x.numpy(),
        lambda s: s.examples.x.clone(),
        lambda s: s.examples.x[2].clone().reshape(-1),
        lambda s: (s.examples.x.clone().requires_grad_() ** 2).sum(),
        lambda s: Stream.from_seed(0),
        lambda s: torch.Generator(),
    ],
)
def test_the_walk_finds_a_hidden_secret(hide: Any) -> None:
    secret = Secret("ada", images(4))
    holder = nn.Linear(2, 2)
    holder.hidden = hide(secret)
    with pytest.raises(AssertionError, match=r"of the client|a Stream|a Generator"):
        assert_no_path_to([secret], {"view": holder})


def test_the_walk_passes_over_the_innocent() -> None:
    assert_no_path_to([Secret("ada", images(4))], {"net": seeded(batch_resnet), "other": images(4, seed=8).x})


def test_batch_labels_are_those_of_each_batch_in_the_order_of_training_and_no_more() -> None:
    examples = Examples(images(5).x, torch.tensor([2, 1, 0, 1, 0]))
    recipe = Recipe(SGD(0.1), epochs=2, batch_size=2)
    pairs = federation(image_task(), [examples], recipe, defence=NoDefence())
    ((_, secret),) = pairs
    view = observe(pairs, Setting(image_task(), recipe), THREATS["batch-aware-server"])
    assert view.batch_labels.shape == (1, 2, 5)
    for order, labels in zip(secret.orders, view.batch_labels[0], strict=True):
        expected = [sorted(examples.y[batch].tolist()) for batch in order.split(2)]
        assert [batch.tolist() for batch in labels.split(2)] == expected
    assert not torch.equal(*secret.orders)  # each epoch has its own order


def aggregates(sizes: list[int], group: int, task: Task) -> Pairs:
    clients = [images(n, seed) for seed, n in enumerate(sizes)]
    (only,) = play(task, clients, RECIPE, Federation(visible="aggregate", group=group), Stream.from_seed(0))
    return list(zip(only.captures, only.secrets, strict=True))


def test_member_labels_are_those_of_each_client_of_an_aggregate(tmp_path: Path) -> None:
    task = image_task()
    pairs = aggregates([3, 3, 3, 3], 2, task)
    for _, secret in pairs:
        write_secret(tmp_path / secret.client, secret)
    pairs = [(capture, read_secret(tmp_path / secret.client)) for capture, secret in pairs]
    view = observe(pairs, Setting(task, RECIPE), THREATS["member-aware-server"])
    expected = [sorted(images(3, seed).y.tolist()) for seed in range(4)]
    assert view.member_labels.shape == (2, 2, 3)
    assert view.member_labels.flatten(0, 1).tolist() == expected


@pytest.mark.parametrize("shapes", [[([2, 4], 2)], [([3, 3], 2), ([2, 2, 2], 3)]], ids=["sizes", "numbers"])
def test_members_that_do_not_stack_keep_their_labels(shapes: list[tuple[list[int], int]]) -> None:
    task = image_task()
    pairs = [pair for sizes, group in shapes for pair in aggregates(sizes, group, task)]
    view = observe(pairs, Setting(task, RECIPE), THREATS["member-aware-server"])
    assert view.labels.shape == (len(pairs), 6)
    with pytest.raises(NotKnown, match="but there is none in this federation"):
        _ = view.member_labels


def test_sizes_of_members_sum_to_the_examples() -> None:
    with pytest.raises(ValueError, match="`sizes` that sum to 4 examples"):
        Secret("ada+bob", images(4), sizes=(2, 3))


def test_batch_labels_that_nobody_recorded_are_not_known() -> None:
    pairs = [(capture, replace(secret, orders=None)) for capture, secret in federation(image_task())]
    view = seen(THREATS["batch-aware-server"], pairs=pairs)
    assert not view.knows(Fact.BATCH_LABELS)
    with pytest.raises(NotKnown, match="but there is none in this federation"):
        _ = view.batch_labels


def test_a_global_model_that_all_received_is_held_once() -> None:
    task = image_task()
    view = seen(THREATS["eavesdropper"], task)
    assert all(p.shape[0] == 2 and p.stride(0) == 0 for p in view.params.values())
    pairs = federation(task)
    other = pairs[1][0].exchanges[0]
    moved = replace(other, before={name: p + 1 for name, p in other.before.items()})
    pairs[1] = (replace(pairs[1][0], exchanges=(moved,)), pairs[1][1])
    apart = seen(THREATS["eavesdropper"], task, pairs).params
    for name, p in task.params.items():
        torch.testing.assert_close(apart[name], torch.stack([p, p + 1]))
