"""The adjoint sweep against its slow, obvious twin, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from common.nets import (
    CLASSES,
    Recurrent,
    batch_resnet,
    cnn,
    flat,
    group_resnet,
    image_task,
    images,
    mlp,
    numbers,
    relative_error,
    seeded,
)
from seepage.engine.sweep import flatten, unflatten
from seepage.local import local_update
from seepage.recipe import SGD, Adam, Recipe
from seepage.spec import DataSpec
from seepage.task import Params, Task
from seepage.unrolled import unrolled_update

OPTIMISERS = [
    SGD(0.1),
    SGD(0.1, weight_decay=0.05),
    SGD(0.1, momentum=0.9),
    SGD(0.05, momentum=0.9, weight_decay=0.05, nesterov=True),
    Adam(1e-2),
    Adam(1e-2, betas=(0.8, 0.9), weight_decay=0.05),
    Adam(1e-2, smooth=0.1),
]
NETS = [mlp, cnn, batch_resnet, group_resnet]
TOLERANCE = 1e-8

Simulation = Callable[[Params, Tensor, Tensor], Params]


def gradients(simulate: Simulation, params: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of a random projection of the update, with respect to all that the update depends on."""
    params = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    x = x.detach().clone().requires_grad_()
    y = y.detach().clone().requires_grad_(y.is_floating_point())
    update = flat(simulate(params, x, y))
    value = (update * numbers(len(update), seed=99)).sum()
    sources = [x, *params.values(), *([y] if y.requires_grad else [])]
    found = torch.autograd.grad(value, sources)
    return {
        "update": update.detach(),
        "x": found[0],
        "params": flat(dict(zip(params, found[1:], strict=False))),
        **({"y": found[-1]} if y.requires_grad else {}),
    }


def swept(task: Task, recipe: Recipe, keep_every: int | None = 1) -> Simulation:
    def simulate(params: Params, x: Tensor, y: Tensor) -> Params:
        return local_update(task, params, recipe.schedule(x, y), recipe, keep_every=keep_every)

    return simulate


def unrolled(task: Task, recipe: Recipe) -> Simulation:
    return lambda params, x, y: unrolled_update(task, params, recipe.schedule(x, y), recipe)


def assert_same_gradients(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    assert got.keys() == expected.keys()
    errors = {name: relative_error(got[name], expected[name]) for name in expected}
    assert max(errors.values()) <= tolerance, errors


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=str)
@pytest.mark.parametrize("net", NETS)
def test_gradients_of_local_training_are_those_of_plain_double_backward(
    net: Callable[[], nn.Module], optimiser: SGD | Adam
) -> None:
    task, examples = image_task(net), images(7)
    recipe = Recipe(optimiser, epochs=2, batch_size=3 if net is not batch_resnet else 5)  # the last batch is short
    expected = gradients(unrolled(task, recipe), task.params, examples.x, examples.y)
    got = gradients(swept(task, recipe), task.params, examples.x, examples.y)
    assert_same_gradients(got, expected)


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.05, momentum=0.9), Adam(1e-2)], ids=str)
def test_twenty_steps_do_not_wear_the_gradient_down(optimiser: SGD | Adam) -> None:
    task, examples = image_task(cnn), images(9)
    recipe = Recipe(optimiser, epochs=4, batch_size=2)
    assert recipe.steps(9) == 20
    expected = gradients(unrolled(task, recipe), task.params, examples.x, examples.y)
    assert_same_gradients(gradients(swept(task, recipe), task.params, examples.x, examples.y), expected)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_is_followed_in_both_modes(mode: str) -> None:
    task, examples = image_task(batch_resnet), images(6)
    recipe = Recipe(SGD(0.1, momentum=0.5), epochs=2, batch_size=3, batch_norm=mode)  # type: ignore[arg-type]
    expected = gradients(unrolled(task, recipe), task.params, examples.x, examples.y)
    assert_same_gradients(gradients(swept(task, recipe), task.params, examples.x, examples.y), expected)


@pytest.mark.parametrize("keep_every", [2, 3, 7, 100])
@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), Adam(1e-2)], ids=str)
def test_keeping_fewer_states_changes_no_number(optimiser: SGD | Adam, keep_every: int) -> None:
    task, examples = image_task(batch_resnet), images(5)
    recipe = Recipe(optimiser, epochs=7, batch_size=3)
    every = gradients(swept(task, recipe), task.params, examples.x, examples.y)
    few = gradients(swept(task, recipe, keep_every), task.params, examples.x, examples.y)
    for name, expected in every.items():
        torch.testing.assert_close(few[name], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), Adam(1e-2)], ids=str)
@pytest.mark.parametrize("net", [mlp, batch_resnet])
def test_soft_labels_have_a_gradient_too(net: Callable[[], nn.Module], optimiser: SGD | Adam) -> None:
    task, examples = image_task(net), images(5)
    soft = numbers(5, CLASSES, seed=3).softmax(-1)
    recipe = Recipe(optimiser, epochs=2, batch_size=3)
    expected = gradients(unrolled(task, recipe), task.params, examples.x, soft)
    assert "y" in expected
    assert_same_gradients(gradients(swept(task, recipe), task.params, examples.x, soft), expected)


@pytest.mark.parametrize("optimiser", [SGD(0.1), Adam(1e-2)], ids=str)
def test_regression_is_followed_with_its_targets(optimiser: SGD | Adam) -> None:
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    task = Task(net, DataSpec((4,), targets=2))
    recipe = Recipe(optimiser, epochs=3, batch_size=2)
    x, y = numbers(5, 4), numbers(5, 2, seed=1)
    expected = gradients(unrolled(task, recipe), task.params, x, y)
    assert_same_gradients(gradients(swept(task, recipe), task.params, x, y), expected)


@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), Adam(1e-2)], ids=str)
@pytest.mark.parametrize("net", NETS)
def test_forward_mode_and_reverse_mode_adjoints_agree(net: Callable[[], nn.Module], optimiser: SGD | Adam) -> None:
    examples, recipe = images(5), Recipe(optimiser, epochs=2, batch_size=3)
    results = []
    for forward_mode in (True, False):
        task = image_task(net)
        assert task.forward_mode  # found out by trying
        vars(task)["forward_mode"] = forward_mode
        results.append(gradients(swept(task, recipe), task.params, examples.x, examples.y))
    assert_same_gradients(results[0], results[1])


@pytest.mark.parametrize("keep_every", [None, 2])
@pytest.mark.parametrize("optimiser", [SGD(0.1, momentum=0.9), Adam(1e-2)], ids=str)
@pytest.mark.parametrize("net", NETS)
def test_mapped_over_clients_equals_one_by_one(
    net: Callable[[], nn.Module], optimiser: SGD | Adam, keep_every: int | None
) -> None:
    task, recipe = image_task(net), Recipe(optimiser, epochs=2, batch_size=3)
    clients = [images(5, seed) for seed in range(3)]
    models = [image_task(net, seed).params for seed in range(3)]
    one_by_one = [
        gradients(swept(task, recipe, keep_every), params, client.x, client.y)
        for params, client in zip(models, clients, strict=True)
    ]
    params = {name: torch.stack([m[name] for m in models]).requires_grad_() for name in models[0]}
    x = torch.stack([client.x for client in clients]).requires_grad_()
    y = torch.stack([client.y for client in clients])
    updates = vmap(lambda params, x, y: flatten(swept(task, recipe, keep_every)(params, x, y)))(params, x, y)
    value = (updates * numbers(updates.shape[1], seed=99)).sum()
    x_bar, *params_bar = torch.autograd.grad(value, [x, *params.values()])
    for i, expected in enumerate(one_by_one):
        got = {
            "update": updates[i].detach(),
            "x": x_bar[i],
            "params": torch.cat([p[i].reshape(-1) for p in params_bar]),
        }
        assert_same_gradients(got, expected, 1e-9)


def test_a_shared_model_is_mapped_over_clients_and_restarts() -> None:
    task, recipe = image_task(mlp), Recipe(SGD(0.1), epochs=2, batch_size=2)
    x, y = numbers(2, 3, 4, 1, 6, 6), images(4).y  # (clients, restarts, n, …)

    def length(x: Tensor) -> Tensor:
        return (flatten(swept(task, recipe)(task.params, x, y)) ** 2).sum()

    x.requires_grad_()
    (together,) = torch.autograd.grad(vmap(vmap(length))(x).sum(), x)
    for i in range(2):
        for j in range(3):
            one = x[i, j].detach().requires_grad_()
            (alone,) = torch.autograd.grad(length(one), one)
            torch.testing.assert_close(together[i, j], alone, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent_modules_are_followed(cell: type[nn.RNNBase]) -> None:
    task = Task(seeded(lambda: Recurrent(cell)), DataSpec((3, 4), classes=CLASSES))
    recipe = Recipe(SGD(0.5), epochs=2, batch_size=2)
    x, y = numbers(3, 3, 4), images(3).y
    expected = gradients(unrolled(task, recipe), task.params, x, y)
    assert_same_gradients(gradients(swept(task, recipe), task.params, x, y), expected)


@pytest.mark.parametrize("net", [mlp, batch_resnet])
def test_a_single_gradient_is_differentiable_once_more(net: Callable[[], nn.Module]) -> None:
    task, examples = image_task(net), images(4)
    recipe = Recipe(sends="gradient")
    expected = gradients(unrolled(task, recipe), task.params, examples.x, examples.y)
    assert_same_gradients(gradients(swept(task, recipe), task.params, examples.x, examples.y), expected)


def test_parameters_that_see_no_gradient_stay_still_and_finite_under_adam() -> None:
    dead = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, CLASSES)))
    with torch.no_grad():
        dead[1].bias[0] = -100.0  # this unit is never active
    task, examples = Task(dead, DataSpec((1, 6, 6), classes=CLASSES)), images(4)
    recipe = Recipe(Adam(1e-2), epochs=3)
    got = gradients(swept(task, recipe), task.params, examples.x, examples.y)
    assert all(tensor.isfinite().all() for tensor in got.values())
    assert not unflatten(got["update"], task.params)["1.weight"][0].any()


def test_flatten_and_unflatten_are_inverse_and_keep_the_order_of_names() -> None:
    params = {"b": numbers(2, 3), "a": numbers(4), "scalar": numbers()}
    back = unflatten(flatten(params), params)
    assert list(back) == ["b", "a", "scalar"]
    for name, p in params.items():
        torch.testing.assert_close(back[name], p, rtol=0, atol=0)


def test_a_client_that_needs_no_gradient_gets_the_same_update() -> None:
    task, examples = image_task(batch_resnet), images(5)
    recipe = replace(Recipe(Adam(1e-2), epochs=2), batch_size=3)
    with torch.no_grad():
        plain = swept(task, recipe)(task.params, examples.x, examples.y)
    traced = swept(task, recipe)(task.params, examples.x.requires_grad_(), examples.y)
    torch.testing.assert_close(flatten(plain), flatten(traced).detach())
