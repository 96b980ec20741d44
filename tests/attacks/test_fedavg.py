"""What FedAvg leakage, its baselines and its wrappers promise beyond the common suite."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from common.attack_suite import GRADIENT, RNG, clients, granting, inputs_of
from common.federation import view_of
from common.nets import batch_resnet, cnn, image_task, mlp, numbers, whole_numbers
from seepage.attacks import (
    FedAvg,
    FedSGD,
    FedSGDEpoch,
    NoPrior,
    SharedVariables,
    UnknownCount,
    UnknownSchedule,
    fedavg,
)
from seepage.attacks.fedavg import aligned_orders, epoch_schedule
from seepage.attacks.fedavg_unknown import misfit, schedules
from seepage.audit.values import build
from seepage.defences import TopK
from seepage.finding import Finding, NotApplicable
from seepage.local import local_update
from seepage.pieces.assign import combine, match_epochs
from seepage.pieces.labels import Geng, guess_labels
from seepage.pieces.orders import order_prior
from seepage.pieces.priors import squared_variation
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.spec import Examples
from seepage.streams import Stream
from seepage.threat import THREATS, Fact, Setting, ThreatModel, View, observe

KINDS = [FedAvg, NoPrior, SharedVariables, FedSGDEpoch, FedSGD]
COUNTED, BATCHED = THREATS["label-aware-server"], THREATS["batch-aware-server"]
LOCAL = Recipe(SGD(0.1), epochs=3, batch_size=2)
SHORT: dict[str, Any] = {"steps": 4, "lr": 0.05}


def seen(recipe: Recipe = LOCAL, n: int = 5, count: int = 1, threat: Any = COUNTED, **more: Any) -> View:
    return view_of(image_task(mlp), clients(count, n), recipe, threat=threat, **more)


def first_objective(attack: FedAvg, view: View) -> float:
    finding = attack(view, RNG)
    assert finding.first_objective is not None
    return float(finding.first_objective[0])


def first_dummies(view: View, epochs: int) -> Tensor:
    like = next(iter(view.update.values()))
    return (RNG / "start" / view.clients[0] / 0).normal(epochs, view.count, *view.task.spec.shape, dtype=like.dtype)


def dealt(view: View, **knobs: Any) -> Tensor:
    return FedAvg(**knobs)._dealt_labels(view, view.recipe.epochs, RNG / "labels")[0]


def trained(view: View, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Plain gradient descent, batch after batch, on examples of their own in each epoch; before − after."""
    task, recipe = view.task, view.recipe
    params = {name: p[0].clone() for name, p in view.params.items()}
    size = recipe.batch_size or x.shape[1]
    for epoch, labels in zip(x, y, strict=True):
        for begin in range(0, len(epoch), size):
            part = slice(begin, begin + size)
            gradient = task.gradient(params, epoch[part], labels[part], train=True)
            params = {name: p - recipe.optimiser.lr * gradient[name] for name, p in params.items()}
    return {name: p[0] - params[name] for name, p in view.params.items()}


@pytest.mark.parametrize("n", [1, 4, 5])
@pytest.mark.parametrize("size", [None, 1, 2, 7])
def test_the_schedule_is_the_recipe_s(n: int, size: int | None) -> None:
    recipe = Recipe(epochs=3, batch_size=size)
    x, y = numbers(n, 2), whole_numbers(n)
    expected = recipe.schedule(x, y)
    for inputs in (x.expand(3, -1, -1), x[None]):  # dummies of their own, and shared ones
        got = epoch_schedule(recipe, inputs, y.expand(3, -1))
        assert len(got) == len(expected) == recipe.steps(n)
        for one, other in zip((*got.x, *got.y), (*expected.x, *expected.y), strict=True):
            assert one.equal(other)


def test_the_schedule_in_given_orders_is_the_recipe_s_in_those_orders() -> None:
    recipe = Recipe(epochs=3, batch_size=2)
    x, y = numbers(5, 2), whole_numbers(5)
    orders = recipe.orders(5, Stream.from_seed(0))
    expected = recipe.schedule(x, y, orders)
    got = epoch_schedule(recipe, x[None], y[orders], orders)
    for one, other in zip((*got.x, *got.y), (*expected.x, *expected.y), strict=True):
        assert one.equal(other)


def test_aligned_orders_are_permutations_that_give_every_epoch_its_labels() -> None:
    y = whole_numbers(7)
    labels = torch.stack([y[torch.randperm(7, generator=torch.Generator().manual_seed(e))] for e in range(4)])
    orders = aligned_orders(torch.stack([labels, labels.flip(0)]))
    for of, order in zip((labels, labels.flip(0)), orders, strict=True):
        assert of[0][order].equal(of)
        assert order.sort(-1).values.equal(torch.arange(7).expand(4, -1))


def test_the_objective_is_that_of_the_released_code() -> None:
    view = seen(n=5)
    x, y = first_dummies(view, 3), dealt(view)[0]
    guess = trained(view, x, y)
    value = 0.0
    for name, u in view.update.items():
        depth = {"1": 0, "3": 1}[name.split(".")[0]]
        value += math.exp(-depth) * float(((guess[name] - u[0]) ** 2).sum()) / 0.1**2
    value /= 9  # batches of the dummies: three in each of three epochs
    flat = x.flatten(0, 1)
    value += 0.3 * float(((flat - flat.clamp(0, 1)) ** 2).sum() / 15)
    value += 0.2 * float(squared_variation(flat)) + 7.0 * float(order_prior(x))
    attack = FedAvg(order=7.0, tv=0.2, clip=0.3, steps=0)
    assert first_objective(attack, view) == pytest.approx(value, rel=1e-9)


def test_the_objective_of_the_text_is_the_cosine_with_its_scale() -> None:
    view = seen(n=4)
    guess = trained(view, first_dummies(view, 3), dealt(view)[0])
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (
        guess.values(), [u[0] for u in view.update.values()],
    ))  # fmt: skip
    cosine = 1 - float(torch.nn.functional.cosine_similarity(one, other, dim=0))
    attack = FedAvg(0.0, tv=0.0, clip=0.0, distance="cosine", layer_decay=0.0, scale=100.0, steps=0)
    assert first_objective(attack, view) == pytest.approx(100 * cosine, rel=1e-9)


def test_a_relative_distance_is_per_squared_length_of_the_observed_update() -> None:
    view = seen(n=4)
    plain: dict[str, Any] = {
        "order": 0.0,
        "tv": 0.0,
        "clip": 0.0,
        "ramp": (1.0, 1.0, 1),
        "layer_decay": 0.5,
        "steps": 0,
    }
    length = math.fsum(
        math.exp(-0.5 * {"1": 0, "3": 1}[name.split(".")[0]]) * float((u[0] ** 2).sum())
        for name, u in view.update.items()
    )
    distance = first_objective(FedAvg(**plain), view)  # per batch of the dummies, of gradients instead of steps
    relative = first_objective(FedAvg(**plain, distance="relative", scale=7.0), view)
    assert relative == pytest.approx(7 * distance * view.recipe.steps(view.count) * 0.1**2 / length, rel=1e-9)


def test_the_factor_on_the_distance_goes_geometrically_from_one_number_to_the_other() -> None:
    rising, falling = FedAvg(), FedAvg(ramp=(4.0, 2.0, 200))
    at = torch.tensor([0.0, 100.0, 200.0, 399.0])
    torch.testing.assert_close(rising._factor(at), torch.tensor([1.0, math.sqrt(2), 2.0, 2.0]))
    torch.testing.assert_close(falling._factor(at), torch.tensor([4.0, math.sqrt(8), 2.0, 2.0]))


def test_the_factor_grows_with_the_updates_that_were_made() -> None:
    view = seen(n=2)
    plain, ramped = (
        FedAvg(0.0, tv=0.0, clip=0.0, lr=1e-12, ramp=ramp, steps=2, decay="none") for ramp in ((1, 1, 1), (1, 0.25, 2))
    )
    # Dummies that do not move: the last of three evaluations has the smallest factor, and is the best.
    ratio = float(ramped(view, RNG).objective[0] / plain(view, RNG).objective[0])
    assert ratio == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({}, [0.995 ** (t / 10) for t in (0, 7, 10, 400)]),
        ({"rate": 0.997, "every": 20}, [0.997 ** (t / 20) for t in (0, 7, 10, 400)]),
        ({"decay": "cosine"}, [(1 + math.cos(math.pi * t / 400)) / 2 for t in (0, 7, 10, 400)]),
    ],
)
def test_the_step_size_decays(knobs: dict[str, Any], expected: list[float]) -> None:
    schedule: Any = FedAvg(**knobs)._optimiser()
    got = [float(schedule.factor_at(torch.tensor(float(t), dtype=torch.float64))) for t in (0, 7, 10, 400)]
    assert got == pytest.approx(expected, abs=1e-12)


def test_counted_labels_are_dealt_at_random_and_tiled_over_the_epochs() -> None:
    view = seen(n=12, count=2)
    tiled, drawn = dealt(view), dealt(view, split="random")
    for labels in (tiled, drawn):
        assert labels.shape == (2, 3, 12)
        assert labels.sort(-1).values.equal(view.labels[:, None].expand(-1, 3, -1))
    assert tiled[:, 0].equal(tiled[:, 2])
    assert not tiled[:, 0].equal(view.labels)
    assert not drawn[:, 0].equal(drawn[:, 2])
    finding = FedAvg(steps=0)(view, RNG)
    assert finding.labels.equal(tiled[:, 0])


@pytest.mark.parametrize("members", [1, 2])
def test_labels_that_are_not_drawn_ascend_in_every_epoch(members: int) -> None:
    view = seen(n=12, count=2)
    labels, _ = FedAvg(split="ascending", members=members)._dealt_labels(view, 3, RNG)
    assert labels.equal(view.labels[:, None].expand(-1, 3, -1))


@pytest.mark.parametrize("preset", [name for name in FedAvg.presets if name.startswith("as_")])
def test_both_readings_count_labels_as_the_released_code_does(preset: str) -> None:
    view = seen(n=8, threat=THREATS["honest-server"])
    found = FedAvg(**{**FedAvg.presets[preset], "steps": 0})(view, RNG).labels
    as_code = Geng("interpolated", formula="weight", rounding="code")
    assert found.sort(-1).values.equal(guess_labels(view, RNG / "labels", as_code)[0])


def test_known_batches_are_taken_as_they_are() -> None:
    view = seen(n=6, count=2, threat=BATCHED)
    assert dealt(view).equal(view.batch_labels)
    assert FedAvg(steps=0)(view, RNG).labels.equal(view.batch_labels[:, 0])


def test_shared_variables_visit_known_batches_with_the_right_labels() -> None:
    view = seen(n=5, threat=BATCHED)
    x, labels = first_dummies(view, 1)[0], view.batch_labels[0]
    guess = trained(view, x[aligned_orders(labels)], labels)
    value = sum(float(((guess[name] - u[0]) ** 2).sum()) for name, u in view.update.items()) / 0.1**2 / 3
    attack = SharedVariables(tv=0.0, clip=0.0, layer_decay=0.0, steps=0)
    assert first_objective(attack, view) == pytest.approx(value, rel=1e-9)


def test_hidden_labels_are_counted() -> None:
    view = seen(n=4, threat=THREATS["honest-server"])
    finding = FedAvg(steps=0)(view, RNG)
    assert finding.labels.shape == (1, 4)
    assert finding.confidence is not None


@pytest.mark.parametrize("size", [None, 2])
def test_for_one_epoch_all_that_differ_in_their_epochs_are_equal(size: int | None) -> None:
    view = seen(Recipe(SGD(0.1), batch_size=size))
    simulated, rest = (inputs_of(kind(**SHORT)(view, RNG)) for kind in (FedAvg, FedSGDEpoch))
    for kind in (NoPrior, SharedVariables):
        torch.testing.assert_close(inputs_of(kind(**SHORT)(view, RNG)), simulated)
    torch.testing.assert_close(inputs_of(FedSGD(**SHORT)(view, RNG)), rest)


def test_an_epoch_of_one_batch_is_one_step() -> None:
    view = seen(Recipe(SGD(0.1), epochs=3))
    one, other = (inputs_of(kind(**SHORT)(view, RNG)) for kind in (SharedVariables, FedSGDEpoch))
    torch.testing.assert_close(one, other)


def test_an_epoch_in_one_step_is_as_long_as_all_its_steps() -> None:
    view = seen(n=4)
    x, y = first_dummies(view, 1).expand(3, -1, -1, -1, -1), dealt(view)[0]
    longer = Recipe(SGD(0.2), epochs=3)
    guess = trained(replace(view, _granted={**view._granted, Fact.RECIPE: longer}), x, y)
    value = sum(float(((guess[name] - u[0]) ** 2).sum()) for name, u in view.update.items()) / 0.1**2 / 2
    attack = FedSGDEpoch(tv=0.0, clip=0.0, layer_decay=0.0, steps=0)
    assert first_objective(attack, view) == pytest.approx(value, rel=1e-9)


def test_one_gradient_stands_for_all_steps() -> None:
    view = seen(n=4)
    x, y = first_dummies(view, 1)[0], dealt(view)[0, 0]
    gradient = view.task.gradient({name: p[0] for name, p in view.params.items()}, x, y, train=True)
    value = sum(float(((6 * gradient[name] - u[0] / 0.1) ** 2).sum()) for name, u in view.update.items()) / 2
    attack = FedSGD(tv=0.0, clip=0.0, layer_decay=0.0, steps=0)
    assert first_objective(attack, view) == pytest.approx(value, rel=1e-6)


def test_epochs_are_matched_and_combined() -> None:
    view = seen(n=4)
    x, y = first_dummies(view, 3), dealt(view)[0]
    for knobs, of in (({}, None), ({"matching": "label", "combination": "median"}, y)):
        expected = combine(x, match_epochs(x, of), knobs.get("combination", "mean"))
        torch.testing.assert_close(inputs_of(FedAvg(steps=0, **knobs)(view, RNG))[0], expected)


def test_the_prior_brings_epochs_together() -> None:
    view, spreads = seen(n=3), []
    for order in (0.0, 1e3):
        attack = FedAvg(order, within="label", steps=60, lr=0.1)
        recipe, gain = attack._simulated(view)
        labels = dealt(view)
        x = attack._search(view, recipe, gain, labels, RNG).x[0, 0]
        spreads.append(float(order_prior(x, labels=labels[0])))
    assert spreads[1] < spreads[0] / 10


def test_a_scaled_prior_keeps_its_weight_at_ten_epochs_of_fifty() -> None:
    view = seen(n=5)
    plain = {"tv": 0.0, "clip": 0.0, "scale": 1e-12, "steps": 0}
    weak, full = (first_objective(FedAvg(2.0, scaled=scaled, **plain), view) for scaled in (True, False))  # type: ignore[arg-type]
    assert weak / full == pytest.approx(15 / 500, rel=1e-6)


def test_shared_variation_is_dealt_to_the_epochs() -> None:
    view = seen(n=5)  # three epochs
    plain = {"clip": 0.0, "scale": 1e-12, "steps": 0}
    shared, own = (first_objective(FedAvg(0.0, tv=0.3, shared_tv=share, **plain), view) for share in (True, False))  # type: ignore[arg-type]
    assert shared / own == pytest.approx(1 / 3, rel=1e-6)
    assert FedAvg(**FedAvg.presets["ours_cifar"]).shared_tv


def test_first_dummies_are_as_spread_as_asked() -> None:
    view = seen(Recipe(SGD(0.1), batch_size=2), n=4)
    torch.testing.assert_close(inputs_of(FedAvg(spread=0.1, steps=0)(view, RNG))[0], 0.1 * first_dummies(view, 1)[0])


@pytest.mark.parametrize(
    "knobs", [{"statistic": s, "pairs": d} for s in ("max", "conv-mean", "conv-max") for d in ("l1", "l2")]
)
def test_every_prior_is_minimised_for_all_clients_as_for_each(knobs: dict[str, Any]) -> None:
    attack = FedAvg(**knobs, **SHORT)
    together = inputs_of(attack(seen(n=3, count=2), RNG))
    alone = inputs_of(attack(seen(n=3), RNG))
    torch.testing.assert_close(together[:1], alone, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("changed", [{"chunk": 1}, {"keep_every": 1}, {"keep_every": 2}])
def test_knobs_of_memory_change_no_number(changed: dict[str, int]) -> None:
    view = seen(count=2)
    plain = FedAvg(starts=2, within="label", **SHORT)
    torch.testing.assert_close(
        inputs_of(replace(plain, **changed)(view, RNG)), inputs_of(plain(view, RNG)), rtol=1e-7, atol=1e-9
    )


def test_more_starts_never_explain_the_update_worse() -> None:
    view = seen(n=2, count=2)
    one, four = (FedAvg(starts=starts, **SHORT)(view, RNG).objective for starts in (1, 4))
    assert (four <= one).all()


@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), SGD(0.1, weight_decay=0.1), Adam(0.01)], ids=str)
def test_clients_with_other_optimisers_are_simulated(optimiser: SGD | Adam) -> None:
    view = seen(Recipe(optimiser, epochs=2, batch_size=2), n=3)
    finding = FedAvg(0.1, tv=1e-5, clip=0.1, lr=0.05, steps=25)(view, RNG)
    assert (finding.objective < finding.first_objective / 2).all()
    truth = Finding(clients(1, 3)["client 0"].x[None], clients(1, 3)["client 0"].y[None])
    still = seen(Recipe(optimiser, epochs=2, batch_size=2, shuffle=False), n=3)
    assert float(misfit(still, truth)) < 1e-20


CLIENTS_OPTIMISERS = [
    SGD(0.1),
    SGD(0.1, momentum=0.9),
    SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    Adam(0.01, smooth=0.1),  # as it is followed, so that nothing is left to explain
    Adam(0.01, weight_decay=0.1, smooth=0.1),
]


@pytest.mark.parametrize("n", [4, 5])  # with and without a short last batch
@pytest.mark.parametrize("optimiser", CLIENTS_OPTIMISERS, ids=str)
def test_the_truth_in_its_own_order_leaves_nothing_of_the_objective(
    monkeypatch: pytest.MonkeyPatch, optimiser: SGD | Adam, n: int
) -> None:
    task, recipe, own = image_task(mlp), Recipe(optimiser, epochs=3, batch_size=2), clients(1, n)["client 0"]
    (only,) = play(task, [own], recipe, Federation(), Stream.from_seed(0))
    (secret,) = only.secrets
    view = observe([(only.captures[0], secret)], Setting(task, recipe), BATCHED)
    # Labels are told batch by batch in ascending order, so that is how the examples lie in their batches.
    orders = torch.stack(
        [torch.cat([b[own.y[b].argsort(stable=True)] for b in order.split(2)]) for order in secret.orders]
    )
    assert own.y[orders].equal(view.batch_labels[0])
    assert not orders[0].equal(orders[1])
    monkeypatch.setattr(fedavg, "normal_lanes", lambda *_: own.x[orders][None, None])
    assert first_objective(FedAvg(tv=0.0, within="label", steps=0), view) < 1e-20
    assert first_objective(FedAvg(tv=0.0, distance="cosine", steps=0), view) < 1e-12
    monkeypatch.setattr(fedavg, "normal_lanes", lambda *_: own.x[orders.flip(1)][None, None])
    assert first_objective(FedAvg(0.0, tv=0.0, steps=0), view) > 1e-6


def test_adam_is_followed_to_more_than_it_shows_when_it_is_simulated_exactly() -> None:
    def error(optimiser: Adam) -> float:
        own, recipe = clients(3, 3), Recipe(optimiser, epochs=2, batch_size=2)
        attack = FedAvg(0.1, tv=1e-5, clip=0.1, distance="relative", scale=100.0, lr=0.05, steps=300)
        answers = inputs_of(attack(view_of(image_task(mlp), own, recipe, threat=COUNTED), RNG))
        pairs = zip(answers, own.values(), strict=True)
        nearest = [torch.cdist(x.flatten(1), mine.x.flatten(1)).amin(1).mean() for x, mine in pairs]
        return float(torch.stack(nearest).mean())

    # Who raises the second moment, if only by next to nothing, is simulated as he is.
    assert error(Adam(0.01)) < 0.85 * error(Adam(0.01, smooth=1e-6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9, weight_decay=0.1), Adam(0.01)], ids=str)
def test_every_baseline_attacks_other_optimisers_or_says_why_not(kind: type[FedAvg], optimiser: SGD | Adam) -> None:
    recipe = Recipe(optimiser, epochs=2, batch_size=2)
    view, attack = seen(recipe, n=3), kind(0.1, tv=1e-5, clip=0.1, lr=0.05, steps=25)
    if kind is FedSGD and isinstance(optimiser, Adam):
        with pytest.raises(NotApplicable, match=r"clients that use SGD.* got Adam"):
            attack(view, RNG)
    else:
        finding = attack(view, RNG)
        assert (finding.objective < finding.first_objective).all()


def test_hidden_labels_of_clients_that_use_adam_are_counted_by_the_one_method_that_simulates_it() -> None:
    view = seen(Recipe(Adam(0.01), epochs=2, batch_size=2), n=3, threat=THREATS["honest-server"])
    with pytest.raises(NotApplicable, match=r"clients that use SGD.* got Adam; use the method 'rlu'"):
        FedAvg(**SHORT)(view, RNG)
    assert FedAvg(labels="rlu", **SHORT)(view, RNG).labels.shape == (1, 3)


@pytest.mark.parametrize("build_module", [cnn, batch_resnet])
def test_other_modules_are_attacked(build_module: Any) -> None:
    view = view_of(image_task(build_module), clients(2, 3), LOCAL, threat=COUNTED)
    assert inputs_of(FedAvg(**SHORT)(view, RNG)).isfinite().all()


def test_a_later_round_is_attacked_from_its_own_global_model() -> None:
    task, secret = image_task(mlp), list(clients(2, 4).values())
    played = list(play(task, secret, LOCAL, Federation(3), Stream.from_seed(0)))
    last = [(c, s) for c, s in zip(played[-1].captures, played[-1].secrets, strict=True)]
    view = observe(last, Setting(task, LOCAL), COUNTED)
    whole = observe(
        list(zip(join_rounds([c for r in played for c in r.captures]), played[-1].secrets, strict=True)),
        Setting(task, LOCAL),
        COUNTED,
    )
    attack = FedAvg(0.1, tv=1e-5, clip=0.1, lr=0.05, steps=25)
    finding = attack(view, RNG)
    assert (finding.objective < finding.first_objective / 2).all()
    assert inputs_of(finding).equal(inputs_of(attack(whole, RNG)))


def aggregated(
    members: int, n: int, recipe: Recipe = LOCAL, threat: ThreatModel = COUNTED
) -> tuple[View, list[Examples]]:
    task, secret = image_task(mlp), list(clients(members, n).values())
    (only,) = play(task, secret, recipe, Federation(visible="aggregate"), Stream.from_seed(0))
    return observe(list(zip(only.captures, only.secrets, strict=True)), Setting(task, recipe), threat), secret


@pytest.mark.parametrize("n", [4, 5])  # with and without a short last batch
def test_members_of_an_aggregate_are_simulated_one_by_one_and_averaged(n: int) -> None:
    view, _ = aggregated(2, n)
    attack = FedAvg(0.0, tv=0.0, clip=0.0, layer_decay=0.0, members=2, steps=0)
    finding = attack(view, RNG)
    x, batches = first_dummies(view, 3), 3 * -(-n // 2)
    y = dealt(view)[0]
    one, other = (trained(view, *(part.chunk(2, 1)[i] for part in (x, y))) for i in (0, 1))
    value = sum(
        float((((one[name] + other[name]) / 2 - u[0]) ** 2).sum()) / 0.1**2 / batches for name, u in view.update.items()
    )
    assert float(finding.first_objective[0]) == pytest.approx(value, rel=1e-9)
    assert inputs_of(finding).shape == (1, 2 * n, 1, 6, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregate_of_four_is_attacked_by_all(kind: type[FedAvg]) -> None:
    view, _ = aggregated(4, 2)
    finding = kind(members=4, order=0.1, tv=1e-5, clip=0.1, lr=0.05, steps=25)(view, RNG)
    assert (finding.objective < finding.first_objective).all()
    assert inputs_of(finding).shape == (1, 8, 1, 6, 6)


@pytest.mark.parametrize("split", ["tiled", "random"])
def test_members_get_their_own_labels_where_these_are_known(split: str) -> None:
    view, secret = aggregated(2, 4, threat=THREATS["member-aware-server"])
    finding = FedAvg(members=2, split=split, steps=0)(view, RNG)
    own = [sorted(part.tolist()) for part in finding.labels[0].chunk(2)]
    assert own == [sorted(examples.y.tolist()) for examples in secret]
    assert own[0] != own[1]
    with pytest.raises(NotApplicable, match="expected `members` of 2, whose labels are known, got 4"):
        FedAvg(members=4)(view, RNG)


def test_members_keep_their_labels_where_batches_are_drawn_anew() -> None:
    view, _ = aggregated(2, 4)
    labels, _ = FedAvg(members=2, split="random")._dealt_labels(view, 6, RNG)
    own = labels[0].unflatten(1, (2, 4))  # (epochs, members, n)
    assert own.sort(-1).values.equal(own[:1].sort(-1).values.expand_as(own))
    assert not own.equal(own[:1].expand_as(own))
    # The prior that is taken label by label compares a member's epochs, which else might not have a label in common.
    assert FedAvg(members=2, split="random", within="label", **SHORT)(view, RNG).objective.isfinite().all()


def test_one_member_is_a_client_and_unequal_members_are_refused() -> None:
    view, _ = aggregated(1, 4)
    torch.testing.assert_close(inputs_of(FedAvg(members=1, **SHORT)(view, RNG)), inputs_of(FedAvg(**SHORT)(view, RNG)))
    with pytest.raises(NotApplicable, match="expected 3 members of equal size, got 4 examples"):
        FedAvg(members=3)(view, RNG)


def test_a_known_defence_is_simulated() -> None:
    facts = COUNTED.facts
    views = [seen(threat=granting(which), defence=TopK(0.2)) for which in (facts, facts | {Fact.DEFENCE})]
    assert first_objective(FedAvg(steps=0), views[0]) != first_objective(FedAvg(steps=0), views[1])


@pytest.mark.parametrize("kind", [*KINDS, UnknownSchedule, UnknownCount])
def test_every_preset_can_be_built_from_plain_values(kind: Any) -> None:
    assert set(kind.presets) == set(FedAvg.presets)
    for name, knobs in kind.presets.items():
        attack = build(kind, knobs, name)
        assert hash(attack) == hash(build(kind, knobs, name))
    if kind in KINDS[1:]:
        assert all(build(kind, knobs, name).order == 0 for name, knobs in kind.presets.items())


def test_the_numbers_of_the_released_code() -> None:
    femnist, cifar = (build(FedAvg, FedAvg.presets[f"as_code_{name}"], name) for name in ("femnist", "cifar"))
    assert (femnist.order, femnist.tv, femnist.clip, femnist.lr, femnist.steps) == (1000.0, 1e-3, 2.0, 0.4, 400)
    assert (cifar.order, cifar.tv, cifar.clip, cifar.lr, cifar.steps) == (6.075, 2e-4, 10.0, 0.1, 400)
    assert (femnist.ramp, cifar.ramp, cifar.statistic) == ((1.0, 2.0, 200), (4.0, 2.0, 200), "conv-max")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"within": "label", "statistic": "max"}, "`statistic` to be a mean where `within` is 'label', got 'max'"),
        ({"ramp": (0.0, 1.0, 1)}, "three numbers above 0 in `ramp`"),
        ({"members": 0}, "`members` of at least 1, got 0"),
        ({"spread": 0.0}, "`spread` above 0, got 0.0"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedAvg(**knobs)


@pytest.mark.parametrize(("steps", "n"), [(1, 1), (6, 4), (12, 5), (50, 50), (100, 50), (30, 7)])
def test_schedules_are_all_ways_to_make_so_many_steps(steps: int, n: int) -> None:
    ways = schedules(steps, n)
    assert all(Recipe(epochs=epochs, batch_size=size).steps(n) == steps for epochs, size in ways)
    every = {
        epochs for epochs in range(1, steps + 1) for size in range(1, n + 1)
        if Recipe(epochs=epochs, batch_size=size).steps(n) == steps
    }  # fmt: skip
    assert {epochs for epochs, _ in ways} == every


def test_true_examples_explain_the_update_under_the_true_schedule_alone() -> None:
    recipe = Recipe(SGD(0.5), epochs=2, batch_size=2, shuffle=False)
    view = seen(recipe, n=4)
    truth = clients(1, 4)["client 0"]
    finding = Finding(truth.x[None], truth.y[None])
    values = {
        epochs: float(
            misfit(
                replace(view, _granted={**view._granted, Fact.RECIPE: replace(recipe, epochs=epochs, batch_size=size)}),
                finding,
            )
        )
        for epochs, size in schedules(4, 4)
    }
    assert values[2] < 1e-20
    assert min(values[1], values[4]) > 1e-8


@pytest.mark.parametrize("by", ["misfit", "objective"])
def test_the_best_of_all_schedules_is_answered_client_by_client(by: Any) -> None:
    recipe = Recipe(SGD(0.5), epochs=2, batch_size=2)
    attack = FedAvg(0.1, tv=1e-5, clip=0.1, lr=0.05, steps=10)
    view = seen(recipe, n=4, count=2, threat=BATCHED)
    chosen = UnknownSchedule(attack, by=by)(view, RNG)
    single = [UnknownSchedule(attack, epochs=(epochs,))(view, RNG) for epochs, _ in schedules(4, 4)]
    for i in range(2):
        assert any(inputs_of(chosen)[i].equal(inputs_of(one)[i]) for one in single)
    if by == "objective":
        assert chosen.objective.equal(torch.stack([one.objective for one in single]).amin(0))
    with pytest.raises(ValueError, match=r"a divisor of the 4 steps .* got \(3,\)"):
        UnknownSchedule(attack, epochs=(3,))(view, RNG)


@pytest.mark.parametrize("members", [1, 2])
def test_the_schedule_is_sought_by_one_who_is_told_the_steps_alone(members: int) -> None:
    attack = UnknownSchedule(FedAvg(0.1, tv=1e-5, clip=0.1, lr=0.05, steps=3, members=members))
    recipe = Recipe(SGD(0.5), epochs=2, batch_size=2)
    told, counting = (
        aggregated(members, 4, recipe, granting(frozenset({Fact.COUNT, fact})))[0] for fact in (Fact.RECIPE, Fact.STEPS)
    )
    assert not counting.knows(Fact.RECIPE)
    finding = attack(counting, RNG)
    assert inputs_of(finding).equal(inputs_of(attack(told, RNG)))
    assert finding.labels.shape == (1, 4 * members)


def test_a_hidden_number_of_examples_is_sought_in_a_range() -> None:
    attack = FedAvg(0.1, tv=1e-5, clip=0.1, lr=0.05, steps=3)
    view = seen(n=3, count=2, threat=granting(frozenset({Fact.RECIPE})))
    finding = UnknownCount(attack, (2, 3))(view, RNG)
    assert inputs_of(finding).shape[:2] == finding.labels.shape
    for inputs, labels in zip(inputs_of(finding), finding.labels, strict=True):
        there = labels >= 0
        assert int(there.sum()) in (2, 3)
        assert inputs[there].isfinite().all()
        assert inputs[~there].isnan().all()
    known = seen(n=3, count=2)
    assert inputs_of(UnknownCount(attack)(known, RNG)).equal(inputs_of(attack(known, RNG / "attack")))
    with pytest.raises(ValueError, match="`counts` to hold numbers of at least 1"):
        UnknownCount(attack, ())


def test_a_gradient_has_no_schedule_to_find() -> None:
    view, counting = seen(GRADIENT, n=2), seen(GRADIENT, n=2, threat=THREATS["step-counting-server"])
    attack = FedAvg(**SHORT)
    for one in (view, counting):
        assert inputs_of(UnknownSchedule(attack)(one, RNG)).equal(inputs_of(attack(view, RNG / "attack")))


def test_the_simulation_is_the_client_s_own_code() -> None:
    view = seen(Recipe(SGD(0.1), epochs=3, batch_size=2, shuffle=False), n=5)
    truth = clients(1, 5)["client 0"]
    schedule = epoch_schedule(view.recipe, truth.x.expand(3, -1, -1, -1, -1), truth.y.expand(3, -1))
    update = local_update(view.task, {name: p[0] for name, p in view.params.items()}, schedule, view.recipe)
    for name, u in update.items():
        torch.testing.assert_close(u, view.update[name][0])
