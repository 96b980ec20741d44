"""Labels from the gradient of the last layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.federation import view_of
from common.nets import image_task, images, numbers, seeded
from seepage.finding import NotApplicable
from seepage.pieces.labels import idlg, label_counts, recover_labels, round_counts
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, Setting, ThreatModel, observe

CLASSES = 10
RNG = Stream.from_seed(0)
GRADIENT = Recipe(sends="gradient")


def net(bias: bool = True, norm: bool = False) -> nn.Module:
    middle = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES, bias=bias)
    )


def task_of(seed: int = 0, bias: bool = True, norm: bool = False) -> Task:
    return Task(seeded(lambda: net(bias, norm), seed), DataSpec((1, 6, 6), classes=CLASSES))


# One example.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recipe", [GRADIENT, Recipe(SGD(0.1), epochs=3), Recipe(Adam(1e-3))], ids=str)
def test_the_label_of_a_single_example_is_read_off_every_time(bias: bool, recipe: Recipe) -> None:
    for seed in range(10):
        clients = {
            str(y): Examples(numbers(1, 1, 6, 6, seed=100 * seed + y), torch.tensor([y])) for y in range(CLASSES)
        }
        view = view_of(task_of(seed, bias), clients, recipe)
        assert recover_labels(view, RNG).tolist() == [[y] for y in range(CLASSES)]


def test_a_module_that_does_not_end_in_a_linear_layer_hides_its_label() -> None:
    task = without_head()
    with pytest.raises(NotApplicable, match=r"ends in nn.Linear with one output per class"):
        idlg(task, task.params)


# Rounding.


estimates = st.lists(st.floats(-5, 20, allow_nan=False), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(counts=estimates, n=st.integers(0, 30))
def test_rounded_counts_are_whole_not_negative_and_sum_to_n(counts: list[float], n: int) -> None:
    rounded = round_counts(torch.tensor(counts, dtype=torch.float64), n)
    assert rounded.dtype == torch.long
    assert rounded.shape == (len(counts),)
    assert int(rounded.sum()) == n
    assert int(rounded.min()) >= 0


@settings(max_examples=50, deadline=None)
@given(truth=st.lists(st.integers(0, 6), min_size=1, max_size=8), noise=st.randoms(use_true_random=False))
def test_counts_off_by_less_than_a_half_are_rounded_to_the_truth(truth: list[int], noise) -> None:
    room = 0.49 / len(truth)
    estimate = torch.tensor([count + noise.uniform(-room, room) for count in truth], dtype=torch.float64)
    assert round_counts(estimate, sum(truth)).tolist() == truth


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.floats(-3, 6, allow_nan=False), min_size=1, max_size=3), n=st.integers(0, 5))
def test_no_other_whole_numbers_are_nearer(counts: list[float], n: int) -> None:
    estimate = torch.tensor(counts, dtype=torch.float64)

    def distance(candidate: Tensor) -> float:
        return float(((candidate - estimate) ** 2).sum())

    choices = [c for c in itertools.product(range(n + 1), repeat=len(counts)) if sum(c) == n]
    best = min(distance(torch.tensor(c)) for c in choices)
    assert distance(round_counts(estimate, n)) == pytest.approx(best)


def test_rounding_leaves_its_input_alone() -> None:
    counts = torch.tensor([1.6, -0.2, 1.3])
    round_counts(counts, 3)
    assert counts.equal(torch.tensor([1.6, -0.2, 1.3]))


# A batch.


def wrong_labels(task: Task, recipe: Recipe, n: int, seed: int) -> int:
    examples = Examples(numbers(n, 1, 6, 6, seed=seed), labels(n, seed))
    view = view_of(task, {"ada": examples}, recipe)
    counted = label_counts(view, 0, RNG)
    assert int(counted.sum()) == n
    return int((counted - torch.bincount(examples.y, minlength=CLASSES)).clamp(min=0).sum())


def labels(n: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "recipe",
    [
        GRADIENT,
        Recipe(SGD(0.01)),
        Recipe(SGD(0.01), sends="weights"),
        Recipe(SGD(0.01), epochs=3, batch_size=4),
        Recipe(SGD(0.01, momentum=0.9), epochs=3),
        Recipe(SGD(0.01, weight_decay=0.01), epochs=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", [False, True])
def test_labels_of_a_batch_are_counted_on_an_untrained_net(recipe: Recipe, norm: bool) -> None:
    wrong = sum(wrong_labels(task_of(seed, norm=norm), recipe, 8, seed) for seed in range(5))
    assert wrong <= 1  # of forty


def test_counted_labels_are_handed_to_every_client_in_order() -> None:
    clients = {str(s): Examples(numbers(6, 1, 6, 6, seed=s), labels(6, s)) for s in range(3)}
    view = view_of(task_of(), clients, GRADIENT)
    found = recover_labels(view, RNG)
    assert found.shape == (3, 6)
    for i, client in enumerate(clients):
        assert found[i].equal(found[i].sort().values)
        alone = recover_labels(view_of(task_of(), {client: clients[client]}, GRADIENT), RNG)
        assert alone[0].equal(found[i])


def test_granted_labels_are_taken_as_they_are() -> None:
    clients = {"ada": images(4)}
    view = view_of(image_task(), clients, GRADIENT, threat=THREATS["label-aware-server"])
    assert recover_labels(view, RNG).equal(view.labels)


def without_bias() -> Task:
    return task_of(bias=False)


def without_head() -> Task:
    return Task(
        seeded(lambda: nn.Sequential(nn.Conv2d(1, CLASSES, 6), nn.Flatten())), DataSpec((1, 6, 6), classes=CLASSES)
    )


@pytest.mark.parametrize(
    ("build", "recipe", "message"),
    [
        (without_bias, GRADIENT, "ends in nn.Linear with a bias.*grants labels"),
        (without_head, GRADIENT, "ends in nn.Linear with a bias.*grants labels"),
        (task_of, Recipe(Adam(1e-3)), "clients that use SGD.*got Adam.*grants labels"),
    ],
)
def test_labels_that_cannot_be_counted_are_refused_with_the_way_out(
    build: Callable[[], Task], recipe: Recipe, message: str
) -> None:
    view = view_of(build(), {"ada": images(3)}, recipe)
    with pytest.raises(NotApplicable, match=message):
        recover_labels(view, RNG)


def test_an_update_of_unknown_scale_cannot_be_counted() -> None:
    view = view_of(task_of(), {"ada": images(3)}, Recipe(SGD(0.1)), threat=THREATS["eavesdropper"])
    with pytest.raises(NotKnown, match="'eavesdropper' does not grant 'recipe'"):
        recover_labels(view, RNG)


def test_a_gradient_of_unknown_recipe_can_be_counted() -> None:
    view = view_of(task_of(), {"ada": images(3)}, GRADIENT, threat=THREATS["eavesdropper"])
    assert recover_labels(view, RNG).shape == (1, 3)


def test_a_hidden_count_is_not_guessed() -> None:
    view = view_of(task_of(), {"ada": images(3)}, GRADIENT, threat=ThreatModel("nobody", frozenset()))
    with pytest.raises(NotKnown) as refusal:
        recover_labels(view, RNG)
    assert refusal.value.fact is Fact.COUNT


def test_counting_is_repeated_by_its_stream_and_leaves_the_global_generator_alone() -> None:
    view = view_of(task_of(), {"ada": images(8)}, replace(GRADIENT))
    state = torch.get_rng_state()
    assert label_counts(view, 0, RNG).equal(label_counts(view, 0, Stream.from_seed(0)))
    assert state.equal(torch.get_rng_state())


def test_targets_of_a_regression_are_hidden_unless_granted() -> None:
    task = Task(nn.Linear(3, 1), DataSpec((3,)))
    recipe = Recipe(SGD(0.1))
    examples = Examples(torch.eye(3), torch.ones(3, 1))
    seen = next(play(task, [examples], recipe, Federation(), Stream.from_seed(0)))
    pairs = list(zip(seen.captures, seen.secrets, strict=True))
    hidden, granted = (
        observe(pairs, Setting(task, recipe), THREATS[name]) for name in ("honest-server", "label-aware-server")
    )
    with pytest.raises(NotApplicable, match="got regression targets; attack under a threat model that grants labels"):
        recover_labels(hidden, Stream.from_seed(1))
    assert recover_labels(granted, Stream.from_seed(1)).shape == (1, 3, 1)
