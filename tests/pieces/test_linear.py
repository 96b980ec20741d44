"""Linear layers found by watching a forward pass, whatever the modules are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from common.nets import CLASSES, IMAGE, Recurrent, cnn, image_task, images, numbers, seeded
from seepage.pieces.linear import find_layers, pass_through, places_of_inputs, rearranged, works_alone
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Task

RNG = Stream.from_seed(1)
ACTIVATIONS = [
    nn.Identity(), nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.Sigmoid(), nn.Tanh(), nn.ELU(0.7),
    nn.ELU(inplace=True), nn.Softplus(2.0), nn.GELU(), nn.GELU("tanh"), nn.Dropout(0.5), nn.Flatten(),
]  # fmt: skip


def task_of(*middle: nn.Module) -> Task:
    return image_task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 12), *middle, nn.Linear(12, CLASSES)))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_the_slope_of_an_activation_follows_from_its_output(activation: nn.Module) -> None:
    task = task_of(activation)
    layers = pass_through(task, task.params, images(50).x, images(50).y)
    first, last = layers
    assert first.slope is not None
    slope = first.slope(last.x)
    known = slope.isfinite()
    assert known.double().mean() > 0.3
    z = first.z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(activation.eval()(z.clone()).sum(), z)
    torch.testing.assert_close(slope[known], expected[known], rtol=1e-7, atol=1e-9)
    assert find_layers(task, task.params, RNG)[1][0].slope is not None


@pytest.mark.parametrize("middle", [(nn.SiLU(),), (nn.ReLU(), nn.Tanh()), (nn.LayerNorm(12),)], ids=str)
def test_what_is_not_one_known_activation_has_no_slope(middle: tuple[nn.Module, ...]) -> None:
    task = task_of(*middle)
    assert [layer.slope for layer in find_layers(task, task.params, RNG)[1]] == [None, None]


class Skipping(nn.Module):
    """What happens between two linear layers is more than what is on the way from one to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(36, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.one(x.flatten(1)))
        return self.three(x + torch.relu(self.two(x)))


def test_a_connection_that_skips_a_layer_is_noticed() -> None:
    task = image_task(Skipping)
    x, y = images(4).x, images(4).y
    assert pass_through(task, task.params, x, y)[0].slope is not None
    assert [layer.slope for layer in find_layers(task, task.params, RNG)[1]] == [None, None, None]


def test_derivatives_are_those_of_each_example_alone() -> None:
    task, many = task_of(nn.ReLU()), images(5)
    together = pass_through(task, task.params, many.x, many.y)
    for i in range(5):
        alone = task.gradient(task.params, many.x[i : i + 1], many.y[i : i + 1])
        torch.testing.assert_close(together[0].delta[i], alone["1.bias"])
        torch.testing.assert_close(torch.outer(together[1].delta[i], together[1].x[i]), alone["3.weight"])


class Nameless(nn.Module):
    """Weights that no `nn.Linear` holds."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.randn(CLASSES, 36))
        self.q = nn.Parameter(torch.randn(CLASSES))
        self.turn = turn

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.turn(x), self.p, self.q)


TURNS: list[tuple[Callable[[Tensor], Tensor], bool]] = [
    (lambda x: x.flatten(1), True),
    (lambda x: x.transpose(2, 3).flatten(1), True),
    (lambda x: x.flatten(1).flip(1), True),
    (lambda x: 2 * x.flatten(1), False),
    (lambda x: x.flatten(1).sort(1).values, False),
    (lambda x: x.flatten(1).clamp(-1, 1), False),
]


@pytest.mark.parametrize(("turn", "mere"), TURNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_is_fed_by_the_input_if_its_numbers_are(
    turn: Callable[[Tensor], Tensor], mere: bool, dtype: torch.dtype
) -> None:
    task = image_task(lambda: Nameless(turn)).to("cpu", dtype)
    x, (layer,) = find_layers(task, task.params, RNG)
    assert (layer.weight, layer.bias) == ("p", "q")
    places = places_of_inputs(x, layer.x)
    assert (places is not None) == mere
    if places is not None:
        other = numbers(3, *IMAGE, dtype=dtype)
        assert rearranged(turn(other), places, IMAGE).equal(other)


def test_only_layers_with_a_row_per_example_that_are_used_once_are_found() -> None:
    twice = nn.Linear(36, 36)
    task = image_task(lambda: nn.Sequential(nn.Flatten(), twice, nn.ReLU(), twice, nn.Linear(36, CLASSES)))
    assert [layer.path for layer in find_layers(task, task.params, RNG)[1]] == ["4"]
    rows = image_task(lambda: nn.Sequential(nn.Linear(6, 2), nn.Flatten(), nn.Linear(12, CLASSES)))
    assert [layer.path for layer in find_layers(rows, rows.params, RNG)[1]] == ["2"]
    for build, path in ((cnn, "6"), (lambda: Recurrent(nn.GRU), "head")):
        spec = DataSpec(IMAGE if build is cnn else (3, 4), classes=CLASSES)
        task = Task(seeded(build), spec)
        x, (only,) = find_layers(task, task.params, RNG)
        assert only.path == path
        assert places_of_inputs(x, only.x) is None


def test_frozen_layers_are_not_found() -> None:
    def build() -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, CLASSES))
        net[1].weight.requires_grad_(False)
        net[3].bias.requires_grad_(False)
        return net

    task = image_task(build)
    (only,) = find_layers(task, task.params, RNG, buffers=task.buffers)[1]
    assert (only.path, only.bias) == ("3", None)


def test_train_mode_batch_norm_makes_examples_depend_on_each_other() -> None:
    task = task_of(nn.BatchNorm1d(12))
    assert works_alone(task, task.params, RNG)
    assert not works_alone(task, task.params, RNG, train=True)


def test_watching_leaves_everything_as_it_was() -> None:
    task, state = task_of(nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.5)), torch.get_rng_state()
    before = {name: p.clone() for name, p in {**task.params, **task.buffers}.items()}
    find_layers(task, task.params, RNG, train=True)
    assert state.equal(torch.get_rng_state())
    assert all(before[name].equal(p) for name, p in {**task.params, **task.buffers}.items())
