"""Proposition 3.1 of geiping2020 on drawn networks, and the pieces that go beyond it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.federation import view_of
from common.nets import numbers, relative_error, seeded, whole_numbers
from seepage.attacks.analytic import Analytic
from seepage.pieces.analytic import agreeing_rows, input_of_layer, inputs_of_softmax, unexplained
from seepage.pieces.linear import pass_through
from seepage.recipe import Recipe
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task

GRADIENT = Recipe(sends="gradient")
RNG = Stream.from_seed(2)
EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.Softplus, nn.GELU)
}
ONE_TO_ONE = tuple(name for name in ACTIVATIONS if name != "GELU")  # or flat where they are not, as ReLU


@dataclass(frozen=True)
class Net:
    """A chain of linear layers and the seed of its parameters and of the one example."""

    widths: tuple[int, ...]
    activations: tuple[str, ...]
    biases: tuple[bool, ...]
    seed: int

    def task(self, dtype: torch.dtype) -> Task:
        layers: list[nn.Module] = [nn.Flatten()]
        for i, bias in enumerate(self.biases):
            layers += [nn.Linear(self.widths[i], self.widths[i + 1], bias=bias)]
            layers += [ACTIVATIONS[name]() for name in self.activations[i : i + 1]]
        net = seeded(lambda: nn.Sequential(*[_fresh(layer) for layer in layers]), self.seed)
        return Task(net.to(dtype), DataSpec((1, self.widths[0], 1), classes=self.widths[-1]))

    def example(self, dtype: torch.dtype) -> Examples:
        x = numbers(1, 1, self.widths[0], 1, seed=self.seed)
        return Examples(x.to(dtype), whole_numbers(1, self.widths[-1], seed=self.seed))


def _fresh(layer: nn.Module) -> nn.Module:
    """The same layer with parameters drawn now."""
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()
    return layer


@st.composite
def nets(draw: st.DrawFn, activations: tuple[str, ...] = ONE_TO_ONE, bias: bool = True) -> Net:
    depth = draw(st.integers(1, 6))
    widths = draw(st.lists(st.integers(1, 24), min_size=depth, max_size=depth))
    biases = draw(st.lists(st.booleans(), min_size=depth, max_size=depth)) if bias else [False] * depth
    if bias:
        biases[draw(st.integers(0, depth - 1))] = True
    names = draw(st.lists(st.sampled_from(activations), min_size=depth - 1, max_size=depth - 1))
    return Net((*widths, draw(st.integers(2, 8))), tuple(names), tuple(biases), draw(st.integers(0, 2**20)))


def derivatives(task: Task, example: Examples) -> list[Tensor]:
    return [layer.delta[0] for layer in pass_through(task, task.params, example.x, example.y)]


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@settings(max_examples=60, deadline=None)
@given(net=nets())
def test_the_input_of_any_chain_of_linear_layers_is_recovered_exactly(dtype: torch.dtype, net: Net) -> None:
    task, example = net.task(dtype), net.example(dtype)
    # The proposition's own condition: no layer up to the first bias has only zeros as derivative at its output.
    assume(all(bool(delta.any()) for delta in derivatives(task, example)[: net.biases.index(True) + 1]))
    finding = Analytic()(view_of(task, {"ada": example}, GRADIENT), RNG)
    assert finding.inputs is not None
    assert finding.inputs.dtype == dtype
    assert relative_error(finding.inputs[0], example.x) <= EXACT[dtype]
    assert finding.objective is not None
    assert float(finding.objective) <= EXACT[dtype]


def test_both_the_first_and_a_later_bias_are_tried() -> None:
    """The slow, obvious twin: one row divided by its entry of the bias gradient."""
    for biases in ((True, False), (False, True)):
        net = Net((5, 7, 3), ("Tanh",), biases, 3)
        task, example = net.task(torch.float64), net.example(torch.float64)
        gradient = task.gradient(task.params, example.x, example.y)
        row = int(derivatives(task, example)[0].abs().argmax())
        twin = gradient["1.weight"][row] / derivatives(task, example)[0][row]
        finding = Analytic()(view_of(task, {"ada": example}, GRADIENT), RNG)
        torch.testing.assert_close(finding.inputs.flatten(), twin)


@settings(max_examples=40, deadline=None)
@given(net=nets(activations=("GELU", "ReLU", "Tanh")))
def test_where_gelu_does_not_tell_its_slope_nothing_is_said(net: Net) -> None:
    task, example = net.task(torch.float64), net.example(torch.float64)
    finding = Analytic()(view_of(task, {"ada": example}, GRADIENT), RNG)
    if finding.inputs.isnan().all():
        assert float(finding.objective) == 1
    else:
        assert relative_error(finding.inputs[0], example.x) <= 1e-8


@settings(max_examples=40, deadline=None)
@given(net=nets(bias=False))
def test_without_any_bias_softmax_gives_the_scale_away(net: Net) -> None:
    """One answer is the right one; where two scales explain the gradient, or it is zero, nothing is said."""
    task, example = net.task(torch.float64), net.example(torch.float64)
    finding = Analytic()(view_of(task, {"ada": example}, GRADIENT), RNG)
    if not finding.inputs.isnan().all():
        assert relative_error(finding.inputs[0], example.x) <= 1e-6
        assert finding.labels.flatten().equal(example.y)
    elif net.widths[-1] > 2:
        deltas = derivatives(task, example)
        assert not all(bool(delta.any()) for delta in deltas) or float(deltas[-1].norm()) < 1e-4


def test_two_classes_without_bias_leave_the_sign_open() -> None:
    value, x = numbers(2, 5), numbers(5, seed=1)
    delta = (value @ x).softmax(0) - torch.tensor([1.0, 0.0])
    found = inputs_of_softmax(torch.outer(delta, x), value)
    assert len(found) >= 2
    assert any(relative_error(one, x) < 1e-9 for one, _ in found)
    for one, derivative in found:
        torch.testing.assert_close(torch.outer(derivative, one), torch.outer(delta, x))


@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_a_last_layer_with_frozen_bias_is_solved_too(classes: int, size: float) -> None:
    value, shift, x = numbers(classes, 20) / 5, numbers(classes, seed=1), size * numbers(20, seed=2)
    delta = (value @ x + shift).softmax(0)
    delta[2] -= 1
    ((found, _),) = inputs_of_softmax(torch.outer(delta, x), value, shift)
    assert relative_error(found, x) < 1e-8


@pytest.mark.parametrize("scale", [1e-30, 1e-150, 1e150])
def test_gradients_of_any_size_are_read(scale: float) -> None:
    delta, x = scale * numbers(6), numbers(9, seed=1)
    assert relative_error(input_of_layer(torch.outer(delta, x), delta), x) < 1e-14


def test_nothing_is_read_from_nothing() -> None:
    assert input_of_layer(torch.zeros(3, 4), torch.zeros(3)) is None
    assert inputs_of_softmax(torch.zeros(3, 4), numbers(3, 4)) == []
    assert agreeing_rows(torch.zeros(3, 4), torch.zeros(3), 1e-3) == []
    assert unexplained(torch.zeros(3, 4), numbers(2, 4)) == 1
    assert unexplained(numbers(3, 4), torch.zeros(0, 4)) == 1


@settings(max_examples=30, deadline=None)
@given(units=st.integers(1, 12), examples=st.integers(1, 4), seed=st.integers(0, 2**20))
def test_units_of_one_example_agree_on_it_and_others_do_not(units: int, examples: int, seed: int) -> None:
    x, owner = numbers(examples, 7, seed=seed), whole_numbers(units, examples + 1, seed=seed)
    delta = numbers(units, examples, seed=seed + 1)
    mixed = owner == examples  # these see all examples, the others their own
    delta[~mixed] *= nn.functional.one_hot(owner[~mixed], examples)
    groups = agreeing_rows(delta @ x, delta.sum(1), 1e-6)
    for k in range(examples):
        own = (owner == k).nonzero().flatten()
        if len(own) and examples > 1:
            ((members, found),) = [group for group in groups if own[0] in group[0]]
            assert members.equal(own)
            assert relative_error(found, x[k]) < 1e-12


def test_what_is_explained_and_what_is_not_add_up() -> None:
    x = numbers(3, 8)
    explained, rest = numbers(5, 3, seed=1) @ x, numbers(5, 8, seed=2)
    assert unexplained(explained, x) < 1e-14
    rest = rest - rest @ torch.linalg.pinv(x) @ x
    share = float(rest.norm() / (explained + rest).norm())
    assert unexplained(explained + rest, x) == pytest.approx(share)
