"""Every defence under the common suite, and what each promises beyond it."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest
import torch
from torch import Tensor, nn

from common.defence_suite import ANY, ONE, OTHER, DefenceCase, DefenceSuite, an_update
from common.nets import CLASSES, cnn, flat, image_task, images, numbers
from seepage import local
from seepage.audit.values import build
from seepage.defences import (
    DEFENCES,
    QSGD,
    Clip,
    ClipExamples,
    ClipLayers,
    Defence,
    DpSgd,
    FedCdp,
    GaussianNoise,
    GradientNoise,
    LaplacianNoise,
    LocalDp,
    Mixup,
    NoDefence,
    Precode,
    RandomPruning,
    Sign,
    Soteria,
    TopK,
    UniformQuantise,
    WeightNoise,
    WeightSparsify,
    chain,
)
from seepage.defences.base import Chain
from seepage.defences.placed import Where
from seepage.local import answer, local_update
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, Round, play
from seepage.spec import DataSpec, Examples
from seepage.task import Task

PLACES: tuple[Where, ...] = ("update", "step", "example")
CASES = [
    DefenceCase(NoDefence(), off=NoDefence()),
    DefenceCase(GaussianNoise(0.05), off=GaussianNoise(0.0)),
    DefenceCase(Clip(0.05), off=Clip(1e30)),
    DefenceCase(ClipLayers(0.05), off=ClipLayers(1e30)),
    DefenceCase(ClipExamples(0.05), off=ClipExamples(1e30)),
    DefenceCase(LaplacianNoise(0.05), off=LaplacianNoise(0.0)),
    DefenceCase(LocalDp(norm=0.05, sensitivity=0.01), off=LocalDp(norm=1e30, sensitivity=0.0)),
    DefenceCase(FedCdp(norm=0.05), off=FedCdp(norm=1e30, std=0.0)),
    DefenceCase(FedCdp(norm=0.05, snr=-10.0), off=FedCdp(norm=1e30, snr=300.0)),
    DefenceCase(Mixup(1.0, classes=CLASSES), off=Mixup(0.0, classes=CLASSES)),
    DefenceCase(DpSgd(norm=0.05, noise=0.5), off=DpSgd(norm=1e30, noise=0.0)),
    DefenceCase(Soteria(0.5, "1"), off=Soteria(0.0, "1")),
    DefenceCase(TopK(0.2), off=TopK(1.0)),
    DefenceCase(TopK(0.2, per_tensor=True), off=TopK(1.0, per_tensor=True)),
    DefenceCase(TopK(0.2, per_tensor=True, strict=True), off=TopK(1.0)),
    # So few bits are never plain training: that the finest levels come near to it is tested apart.
    DefenceCase(UniformQuantise(3), off=NoDefence()),
    DefenceCase(UniformQuantise(3, stochastic=True), off=NoDefence()),
    DefenceCase(QSGD(3), off=NoDefence()),
    DefenceCase(QSGD(3, "max"), off=NoDefence()),
    DefenceCase(Sign(), off=NoDefence()),
    DefenceCase(Sign(scaled=True, keep_zero=True, by_size=False), off=NoDefence()),
    DefenceCase(WeightNoise(0.05, clip=0.5), off=WeightNoise(0.0, clip=inf)),
    DefenceCase(WeightNoise(0.05, kind="laplacian", by_row=True, restore=True), off=WeightNoise(0.0, restore=True)),
    DefenceCase(WeightSparsify(0.3), off=WeightSparsify(0.0)),
    DefenceCase(WeightSparsify(0.3, per_tensor=True), off=WeightSparsify(0.0, per_tensor=True)),
    *[
        DefenceCase(defence, off=off)
        for where in PLACES
        for defence, off in (
            (GradientNoise(0.05, where=where), GradientNoise(0.0, where=where)),
            (RandomPruning(0.3, where=where), RandomPruning(0.0, where=where)),
        )
    ],
    DefenceCase(GradientNoise(0.05, "laplacian", "example", reuse=True), off=GradientNoise(0.0, "laplacian")),
    DefenceCase(RandomPruning(0.3, "example", reuse=True), off=RandomPruning(0.0, "example", reuse=True)),
    DefenceCase(
        chain(Mixup(1.0, classes=CLASSES), FedCdp(0.5), ClipLayers(0.05), TopK(0.5), QSGD(7)),
        off=chain(Mixup(0.0, classes=CLASSES), FedCdp(1e30, std=0.0), ClipLayers(1e30), TopK(1.0)),
    ),
    DefenceCase(chain(Clip(0.05), GaussianNoise(0.01), TopK(0.5)), off=chain(Clip(1e9), GaussianNoise(0.0), TopK(1.0))),
]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> DefenceCase:
    return request.param


class TestEveryDefence(DefenceSuite):
    pass


def test_every_defence_that_can_be_named_is_in_the_list() -> None:
    others = {Precode}  # changes the module alone: `tests/defences/test_precode.py`
    assert {type(case.defence) for case in CASES} - {Chain} == set(DEFENCES.values()) - others
    assert all(kind.name == name for name, kind in DEFENCES.items())


KINDS = ["gaussian", "laplacian"]

# Noise.


@pytest.mark.parametrize("std", [0.01, 1.0, 20.0])
def test_noise_has_the_stated_deviation_and_no_mean(std: float) -> None:
    update = {"a": numbers(100, 100), "b": numbers(100, 100, seed=1)}
    noise = flat(GaussianNoise(std).on_update(update, ONE)) - flat(update)
    assert float(noise.std()) == pytest.approx(std, rel=0.03)
    assert abs(float(noise.mean())) < 0.03 * std
    a, b = noise.reshape(2, -1)
    assert abs(float((a * b).mean())) < 0.03 * std**2  # tensors have noise of their own


def test_noise_differs_from_stream_to_stream() -> None:
    one, other = (GaussianNoise(0.1).on_update(an_update(), rng) for rng in (ONE, OTHER))
    assert not flat(one).equal(flat(other))


def test_all_that_is_expected_of_noise_is_nothing() -> None:
    assert GaussianNoise(0.1).expected == NoDefence()


# Noise and pruning while a client trains.

DRAWS = [GradientNoise(0.1), GradientNoise(0.1, "laplacian"), RandomPruning(0.3)]


def noise_in(defence: Defence, recipe: Recipe, n: int) -> Tensor:
    """What the defence adds to an update whose gradients do not depend on the parameters, in units of lr."""
    task = Task(nn.Linear(40_000, 1, bias=False).double(), DataSpec((40_000,)), loss=lambda out, y: (out * y).mean())
    examples = Examples(torch.ones(n, 40_000, dtype=torch.float64), torch.ones(n, 1, dtype=torch.float64))
    noisy, clean = (answer(task, task.params, examples, recipe, d, ONE).update for d in (defence, NoDefence()))
    return (flat(noisy) - flat(clean)) / recipe.optimiser.lr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("where", "reuse", "deviation"),
    [
        ("step", False, (3 * 2) ** 0.5),  # three epochs of two batches of four
        ("step", True, 3 * 2**0.5),
        ("example", False, (3 * 2 / 4) ** 0.5),
        ("example", True, 3 * (2 / 4) ** 0.5),
        ("update", False, 1 / 0.5),  # what is sent has the learning rate in it
        ("update", True, 1 / 0.5),
    ],
)
def test_noise_of_training_adds_up_as_it_is_drawn(kind: str, where: Where, reuse: bool, deviation: float) -> None:
    recipe = Recipe(SGD(0.5), epochs=3, batch_size=4)
    noise = noise_in(GradientNoise(0.1, kind, where, reuse), recipe, 8)
    unit = 0.1 * {"gaussian": 1, "laplacian": 2**0.5}[kind]
    assert float(noise.std()) == pytest.approx(unit * deviation, rel=0.03)
    assert abs(float(noise.mean())) < 0.03 * unit * deviation


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("reuse", [False, True])
def test_pruning_leaves_its_share_on_average(where: Where, reuse: bool) -> None:
    # Every entry of the gradient is 1, so that an update of six steps holds the number of times it was kept.
    recipe = Recipe(SGD(0.5), epochs=3, batch_size=4)
    kept = noise_in(RandomPruning(0.3, where, reuse), recipe, 8) + 6
    assert float(kept.mean()) == pytest.approx(0.7 * 6, rel=0.01)
    draws = {"step": 6, "example": 24, "update": 1}[where] // (3 if reuse and where != "update" else 1)
    assert float(kept.std()) == pytest.approx(6 * (0.3 * 0.7 / draws) ** 0.5, rel=0.03)
    assert len(kept.round(decimals=6).unique()) <= draws + 1


@pytest.mark.parametrize("defence", DRAWS, ids=str)
def test_what_is_drawn_differs_from_stream_to_stream_and_from_step_to_step(defence: Defence) -> None:
    one, other = (defence.on_gradient(numbers(50), rng) for rng in (ONE, OTHER))
    assert not one.equal(other)
    plain, twice = (Recipe(SGD(0.5), epochs=epochs) for epochs in (1, 2))
    assert not torch.allclose(noise_in(defence, twice, 1), 2 * noise_in(defence, plain, 1))


@pytest.mark.parametrize("where", ["step", "example"])
@pytest.mark.parametrize("defence", DRAWS, ids=str)
def test_reused_draws_are_those_of_the_first_epoch(defence: GradientNoise | RandomPruning, where: Where) -> None:
    reused = replace(defence, where=where, reuse=True)
    epochs = [noise_in(reused, Recipe(SGD(0.5), epochs=e, batch_size=2, shuffle=False), 5) for e in (1, 4)]
    torch.testing.assert_close(4 * epochs[0], epochs[1])


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_examples_is_added_without_their_gradients(
    kind: str, reuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = image_task(cnn), images(7)
    recipe = Recipe(SGD(0.5), epochs=3, batch_size=3)  # the last batch is short
    defence = chain(GradientNoise(0.1, kind, "example", reuse), GradientNoise(0.1, kind, "step"))
    asked = []
    plain = local._per_example
    monkeypatch.setattr(local, "_per_example", lambda *a: asked.append(a) or plain(*a))
    quick = flat(answer(task, task.params, data, recipe, defence, ONE).update)
    assert not asked
    monkeypatch.setattr(local, "ROW_BY_ROW", ())
    torch.testing.assert_close(
        flat(answer(task, task.params, data, recipe, defence, ONE).update), quick, rtol=1e-9, atol=1e-12
    )
    assert len(asked) == 9
    pruned = chain(defence, RandomPruning(0.2, "example"))
    assert defence.only_adds_to_examples
    assert not pruned.only_adds_to_examples


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("defence", DRAWS, ids=str)
def test_hooks_that_do_nothing_are_not_announced(defence: GradientNoise | RandomPruning, where: Where) -> None:
    placed = replace(defence, where=where)
    assert (placed.per_example, placed.per_step) == (where == "example", where == "step")
    assert placed.on_example_gradient(ANY, ONE).equal(ANY) == (where != "example")
    assert placed.on_gradient(ANY, ONE).equal(ANY) == (where != "step")
    assert flat(placed.on_update(an_update(), ONE)).equal(flat(an_update())) == (where != "update")


@pytest.mark.parametrize("where", PLACES)
def test_an_attacker_who_knows_of_noise_simulates_none_and_of_pruning_its_mean(where: Where) -> None:
    task, recipe, examples = image_task(), Recipe(SGD(1e-6), epochs=2, batch_size=2), images(4)
    schedule = recipe.schedule(examples.x, examples.y)
    plain, noised, pruned = (
        flat(local_update(task, task.params, schedule, recipe, defence))
        for defence in (NoDefence(), GradientNoise(0.1, where=where), RandomPruning(0.3, where))
    )
    torch.testing.assert_close(noised, plain, rtol=1e-6, atol=1e-14)
    # At so small a learning rate an update is linear in its gradients.
    torch.testing.assert_close(pruned, 0.7 * plain, rtol=1e-4, atol=1e-11)


def test_parts_of_a_chain_act_at_their_own_place() -> None:
    parts = chain(GradientNoise(0.1, where="example"), RandomPruning(0.5, "update"))
    assert (parts.per_example, parts.per_step, parts.repeats) == (True, False, False)
    assert chain(parts, RandomPruning(0.5, reuse=True)).repeats
    sent = noise_in(parts, Recipe(SGD(0.5)), 4) + 1
    assert float((sent == 0).double().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(sent[sent != 0].std()) == pytest.approx(0.1 / 4**0.5, rel=0.03)


# Clipping.


@pytest.mark.parametrize("norm", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_bounds_the_norm_and_keeps_the_direction(norm: float, dtype: torch.dtype) -> None:
    update = an_update(dtype)
    clipped = flat(Clip(norm).on_update(update, None))
    assert float(clipped.norm()) == pytest.approx(norm, rel=1e-5)
    torch.testing.assert_close(clipped / clipped.norm(), flat(update) / flat(update).norm())


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-3, 0.99])
@pytest.mark.parametrize("norm", [0.3, 1.0, 7.0, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_leaves_small_updates_alone(scale: float, norm: float, dtype: torch.dtype) -> None:
    length = flat(an_update(dtype)).norm()
    small = {name: u / length * scale * norm for name, u in an_update(dtype).items()}
    assert flat(Clip(norm).on_update(small, None)).equal(flat(small))


@pytest.mark.parametrize("norm", [1e25, float("inf")])
def test_clipping_to_a_huge_norm_is_no_clipping(norm: float) -> None:
    update = an_update(torch.float32)
    assert flat(Clip(norm).on_update(update, None)).equal(flat(update))


# Sparsification.


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.5, 0.99, 1.0])
def test_exactly_the_largest_entries_are_kept_over_all_tensors(share: float) -> None:
    update = an_update()
    kept = flat(TopK(share).on_update(update, None))
    k = max(1, round(share * len(kept)))
    assert int((kept != 0).sum()) == k
    everything = flat(update)
    assert set(everything.abs().topk(k).indices.tolist()) == set(kept.nonzero().flatten().tolist())
    assert kept[kept != 0].equal(everything[kept != 0])


# Defences of weights.

WEIGHTS = Recipe(SGD(0.5), epochs=2, sends="weights")


def big_weights() -> dict[str, Tensor]:
    return {"a": numbers(100, 200), "b": 5 * numbers(20_000, seed=1)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("std", [0.01, 2.0])
def test_noise_on_weights_has_the_deviation_of_equation_12_around_what_is_clipped(kind: str, std: float) -> None:
    weights = big_weights()
    for name, sent in WeightNoise(std, clip=0.5, kind=kind).on_weights(weights, ONE).items():
        noise = sent - weights[name] * 0.5 / weights[name].norm()
        assert float(noise.std()) == pytest.approx(0.5 * std, rel=0.03)
        assert abs(float(noise.mean())) < 0.03 * std
        # The fourth moment tells the two kinds apart: 3 of a Gaussian, 6 of a Laplacian.
        assert float((noise**4).mean() / noise.var() ** 2) == pytest.approx({"gaussian": 3, "laplacian": 6}[kind], 0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_the_released_code_keeps_the_weights_and_enlarges_the_noise(kind: str) -> None:
    weights = big_weights()
    sent = WeightNoise(0.01, kind=kind, by_row=True, restore=True).on_weights(weights, ONE)
    lengths = {"a": weights["a"].norm(dim=1).max(), "b": weights["b"].norm()}
    for name, w in weights.items():
        noise = sent[name] - w
        assert float(noise.std()) == pytest.approx(0.01 * float(lengths[name]) / 0.2, rel=0.03)
        assert abs(float((noise * w).mean() / (noise.std() * w.std()))) < 0.03


def test_clipped_weights_have_the_norm_and_small_ones_are_left_alone() -> None:
    weights = {"large": numbers(50), "small": numbers(50, seed=1) / 100}
    clipped = WeightNoise(0.0, clip=1.0).on_weights(weights, None)
    assert float(clipped["large"].norm()) == pytest.approx(1.0)
    assert clipped["small"].equal(weights["small"])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 0.6, 0.99])
@pytest.mark.parametrize("per_tensor", [True, False])
def test_the_stated_share_of_weights_is_zeroed_the_smallest_ones(share: float, per_tensor: bool) -> None:
    weights = {"a": numbers(40, 50), "b": 9 * numbers(30, seed=1)}
    pruned = WeightSparsify(share, per_tensor).on_weights(weights, None)
    parts = [(weights[name], pruned[name]) for name in weights] if per_tensor else [(flat(weights), flat(pruned))]
    for before, after in parts:
        assert int((after == 0).sum()) == ceil(share * (before.numel() - 1))
        assert after[after != 0].equal(before[after != 0])
        quantile = torch.quantile(before.abs().flatten(), share)  # as the released code prunes
        assert after.equal(torch.where(before.abs() < quantile, 0, before))


@pytest.mark.parametrize("recipe", [WEIGHTS, replace(WEIGHTS, sends="update")], ids=lambda recipe: recipe.sends)
def test_what_is_sent_are_the_defended_weights(recipe: Recipe) -> None:
    task, defence = image_task(), WeightSparsify(0.5)
    plain, pruned = (answer(task, task.params, images(4), recipe, d, ONE).update for d in (NoDefence(), defence))
    after = {name: p - plain[name] for name, p in task.params.items()}
    expected = defence.on_weights(after, None)
    torch.testing.assert_close({name: p - pruned[name] for name, p in task.params.items()}, expected)


def played(defence: Defence) -> Round:
    (only,) = play(image_task(), [images(3), images(2, seed=1)], WEIGHTS, Federation(), ONE, defence=defence)
    return only


@pytest.mark.parametrize(
    "defence", [WeightNoise(0.1), WeightNoise(0.1, restore=True), WeightSparsify(0.5)], ids=lambda d: str(d)
)
def test_covering_the_global_model_changes_what_is_seen_of_it_and_nothing_else(
    defence: WeightNoise | WeightSparsify,
) -> None:
    alone, both = played(defence), played(replace(defence, both=True))
    assert flat(alone.params).equal(flat(both.params))
    for one, other in zip(alone.captures, both.captures, strict=True):
        (a,), (b,) = one.exchanges, other.exchanges
        assert flat(a.before).equal(flat(image_task().params))
        assert not torch.allclose(flat(a.before), flat(b.before))
        assert flat(a.answer).equal(flat(b.answer))
    first, second = (capture.exchanges[0].before for capture in both.captures)
    assert flat(first).equal(flat(second))  # there is one global model


def test_the_two_snapshots_have_noise_of_their_own() -> None:
    task, noisy = image_task(), WeightNoise(0.1, restore=True, both=True)
    (exchange,) = played(noisy).captures[0].exchanges
    (clean,) = played(NoDefence()).captures[0].exchanges
    before = flat(exchange.before) - flat(task.params)
    after = flat(exchange.answer) - flat(clean.answer)
    assert abs(float(torch.corrcoef(torch.stack([before, after]))[0, 1])) < 0.2


@pytest.mark.parametrize("kind", DEFENCES.values(), ids=lambda kind: kind.name)
def test_every_preset_is_one_of_the_defence(kind: type[Defence]) -> None:
    for name, knobs in kind.presets.items():
        assert isinstance(build(kind, knobs, name), kind)


# Chains and settings.


def test_a_chain_of_nothing_is_no_defence_and_of_one_is_that_one() -> None:
    assert chain() == NoDefence()
    assert chain(Clip(2.0)) == Clip(2.0)


def test_order_matters_in_a_chain() -> None:
    noisy_last = chain(Clip(0.1), GaussianNoise(1.0)).on_update(an_update(), ONE)
    clipped_last = chain(GaussianNoise(1.0), Clip(0.1)).on_update(an_update(), ONE)
    assert float(flat(clipped_last).norm()) <= 0.1 + 1e-9 < float(flat(noisy_last).norm())


def test_parts_of_a_chain_draw_from_streams_of_their_own() -> None:
    once = chain(GaussianNoise(1.0), NoDefence()).on_update(an_update(), ONE)
    twice = chain(GaussianNoise(1.0), GaussianNoise(1.0)).on_update(an_update(), ONE)
    first = flat(once) - flat(an_update())
    assert not torch.allclose(flat(twice) - flat(once), first)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianNoise(-0.1), "`std` of at least 0, got -0.1"),
        (lambda: Clip(0.0), "`norm` above 0, got 0.0"),
        (lambda: TopK(0.0), r"`share` in \(0, 1\], got 0.0"),
        (lambda: TopK(1.5), r"`share` in \(0, 1\], got 1.5"),
        (lambda: WeightNoise(-1.0), "`std` of at least 0, got -1.0"),
        (lambda: WeightNoise(clip=0.0), "`clip` above 0, got 0.0"),
        (lambda: WeightNoise(0.1, clip=inf), "a finite `clip`"),
        (lambda: WeightNoise(kind="pink"), "`kind` to be 'gaussian' or 'laplacian', got 'pink'"),
        (lambda: GradientNoise(-0.1), "`scale` of at least 0, got -0.1"),
        (lambda: GradientNoise(kind="pink"), "`kind` to be 'gaussian' or 'laplacian', got 'pink'"),
        (lambda: GradientNoise(where="here"), "`where` to be one of .*, got 'here'"),
        (lambda: RandomPruning(1.0), r"`probability` in \[0, 1\), got 1.0"),
        (lambda: RandomPruning(where="here"), "`where` to be one of .*, got 'here'"),
        (lambda: WeightSparsify(1.0), r"`share` in \[0, 1\), got 1.0"),
        (lambda: UniformQuantise(1), "`bits` from 2 to 32, got 1; .*`sign`"),
        (lambda: UniformQuantise(33), "`bits` from 2 to 32, got 33"),
        (lambda: QSGD(0), "`levels` of at least 1, got 0; one level"),
        (lambda: QSGD(norm="l1"), "`norm` to be 'euclidean' or 'max', got 'l1'"),
        (lambda: Sign(slope=0.0), "`slope` above 0, got 0.0; the larger"),
        (lambda: ClipExamples(0.0), "`norm` above 0, got 0.0; a large one"),
        (lambda: ClipLayers(-1.0), "`norm` above 0, got -1.0; a large one"),
        (lambda: LaplacianNoise(-1.0), "`scale` of at least 0, got -1.0; 0 adds nothing"),
        (lambda: Mixup(-1.0), "`alpha` of at least 0, got -1.0; 0 mixes nothing"),
        (lambda: Mixup(classes=1), "`classes` of at least 2, got 1; leave it out"),
        (lambda: LocalDp(norm=0.0), "`norm` above 0, got 0.0; a large one"),
        (lambda: LocalDp(sensitivity=-1.0), "`sensitivity` of at least 0, got -1.0; 0 adds no noise"),
        (lambda: LocalDp(epsilon=0.0), "`epsilon` above 0, got 0.0; the smaller"),
        (lambda: LocalDp(delta=1.0), r"`delta` in \(0, 1\), got 1.0; below"),
        (lambda: FedCdp(norm=0.0), "`norm` above 0, got 0.0; a large one"),
        (lambda: FedCdp(std=-1.0), "`std` of at least 0, got -1.0; 0 adds no noise"),
        (lambda: FedCdp(layers=(3, 0)), r"every one of `layers` to be at least 1, got \(3, 0\); they count"),
    ],
)
def test_settings_that_make_no_sense_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# What a chain hands on.


def test_a_chain_changes_the_module_by_each_part() -> None:
    module = chain(Precode(2), Clip(1.0), Precode(3)).on_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), ONE)
    assert [type(layer).__name__ for layer in (module[1], module[1].last)] == ["Bottleneck", "Bottleneck"]


def test_a_chain_meets_the_clients_data_with_each_part() -> None:
    task, data, recipe = image_task(), images(4), Recipe(sends="gradient")
    alone = answer(task, task.params, data, recipe, Soteria(0.5, draws=2000), ONE).update
    chained = answer(task, task.params, data, recipe, chain(Clip(1e9), Soteria(0.5, draws=2000)), ONE).update
    torch.testing.assert_close(flat(chained), flat(alone))


def test_a_chain_is_simulated_as_far_as_the_message_tells() -> None:
    update = an_update()
    defence = chain(TopK(0.5), UniformQuantise(3))
    sent = defence.on_update(update, ONE)
    simulated = defence.expected.given(sent).on_update(update, None)
    assert flat(simulated).equal(flat(sent))  # what was kept, on the same levels


def test_what_is_not_told_by_a_message_is_simulated_as_before() -> None:
    update = an_update()
    for defence in (Clip(0.1), QSGD(3), GaussianNoise(1.0), Sign(followed="tanh")):
        told = defence.expected.given(defence.on_update(update, ONE))
        assert flat(told.on_update(update, None)).equal(flat(defence.expected.on_update(update, None)))
