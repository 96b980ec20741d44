"""Local training against a plain torch loop that nobody can doubt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from common.nets import (
    CLASSES,
    IMAGE,
    batch_resnet,
    cnn,
    flat,
    group_resnet,
    image_task,
    images,
    made_of,
    mlp,
    numbers,
    seeded,
)
from seepage.defences import ClipExamples, DpSgd, FedCdp
from seepage.defences.base import Defence, NoDefence
from seepage.local import Answer, answer, local_update
from seepage.recipe import SGD, Adam, Recipe, Schedule
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Params, Task

RNG = Stream.from_seed(7)
NONE = NoDefence()


def drawn(recipe: Recipe, examples: Examples, rng: Stream = RNG) -> Schedule:
    """The batches as the client with this stream draws them."""
    return recipe.schedule(examples.x, examples.y, recipe.orders(len(examples), rng / "orders"))


def trained_by_torch(module: nn.Module, schedule: Schedule, optimiser: SGD | Adam, train: bool = True) -> Params:
    """The state of a copy of `module` after training by torch's own optimiser and layers."""
    module = copy.deepcopy(module).train(train)
    parameters = [p for p in module.parameters() if p.requires_grad]
    by_torch: torch.optim.Optimizer
    if isinstance(optimiser, SGD):
        by_torch = torch.optim.SGD(
            parameters,
            optimiser.lr,
            momentum=optimiser.momentum,
            weight_decay=optimiser.weight_decay,
            nesterov=optimiser.nesterov,
        )
    else:
        by_torch = torch.optim.Adam(
            parameters, optimiser.lr, optimiser.betas, optimiser.eps, weight_decay=optimiser.weight_decay
        )
    for x, y in zip(schedule.x, schedule.y, strict=True):
        by_torch.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        by_torch.step()
    return made_of(module)


def assert_trained_alike(task: Task, got: Answer, after: Params) -> None:
    for name, before in task.params.items():
        torch.testing.assert_close(before - got.update[name], after[name], rtol=1e-10, atol=1e-12)
    assert got.buffers.keys() == task.buffers.keys()
    for name, buffer in got.buffers.items():
        assert buffer.dtype == after[name].dtype
        torch.testing.assert_close(buffer, after[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "optimiser",
    [
        SGD(0.1),
        SGD(0.1, weight_decay=0.1),
        SGD(0.1, momentum=0.9),
        SGD(0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        Adam(1e-2),
        Adam(1e-2, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("net", [mlp, cnn, batch_resnet, group_resnet])
def test_a_client_trains_as_torch_does(net: Callable[[], nn.Module], optimiser: SGD | Adam) -> None:
    task, examples = image_task(net), images(8)
    recipe = Recipe(optimiser, epochs=3, batch_size=3)  # the last batch has two
    got = answer(task, task.params, examples, recipe, NONE, RNG)
    assert_trained_alike(task, got, trained_by_torch(task.module, drawn(recipe, examples), optimiser))
    assert got.examples == 8


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("affine", [True, False])
def test_running_statistics_are_those_of_torch(mode: str, momentum: float | None, affine: bool) -> None:
    task = image_task(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3),
            nn.BatchNorm2d(2, momentum=momentum, affine=affine),
            nn.Flatten(),
            nn.Linear(32, 4),
            nn.BatchNorm1d(4, momentum=momentum, affine=affine),
            nn.Linear(4, CLASSES),
        )
    )
    examples = images(7)
    recipe = Recipe(SGD(0.1), epochs=2, batch_size=4, batch_norm=mode)  # type: ignore[arg-type]
    got = answer(task, task.params, examples, recipe, NONE, RNG)
    after = trained_by_torch(task.module, drawn(recipe, examples), SGD(0.1), train=mode == "train")
    assert_trained_alike(task, got, after)
    assert int(got.buffers["1.num_batches_tracked"]) == (4 if mode == "train" else 0)


def test_statistics_go_on_from_those_handed_in() -> None:
    task, examples = image_task(batch_resnet), images(6)
    recipe = Recipe(SGD(0.1), batch_size=3)
    first = answer(task, task.params, examples, recipe, NONE, RNG)
    second = answer(
        task,
        {name: p - first.update[name] for name, p in task.params.items()},
        examples,
        recipe,
        NONE,
        RNG,
        buffers=first.buffers,
    )
    twice = drawn(recipe, examples)
    after = trained_by_torch(task.module, Schedule(twice.x * 2, twice.y * 2), SGD(0.1))
    for name, buffer in second.buffers.items():
        torch.testing.assert_close(buffer, after[name], rtol=1e-10, atol=1e-12)


def test_batch_norm_without_running_statistics_normalises_by_the_batch_in_both_modes() -> None:
    task = image_task(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten(), nn.Linear(32, CLASSES)
        )
    )
    examples = images(6)
    for mode in ("train", "eval"):
        recipe = Recipe(SGD(0.1), epochs=2, batch_norm=mode)  # type: ignore[arg-type]
        got = answer(task, task.params, examples, recipe, NONE, RNG)
        assert not got.buffers
        assert_trained_alike(
            task, got, trained_by_torch(task.module, drawn(recipe, examples), SGD(0.1), mode == "train")
        )


def test_a_batch_of_one_value_per_channel_is_refused_with_the_way_out() -> None:
    task = Task(
        seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, CLASSES))), DataSpec((4,), classes=CLASSES)
    )
    examples = Examples(numbers(3, 4), images(3).y)
    with pytest.raises(ValueError, match=r"more than one value per channel.*shape \(1, 4\).*batch_norm = 'eval'"):
        answer(task, task.params, examples, Recipe(batch_size=2), NONE, RNG)


@pytest.mark.parametrize("net", [mlp, cnn, batch_resnet])
def test_a_gradient_is_that_of_the_full_batch(net: Callable[[], nn.Module]) -> None:
    task, examples = image_task(net), images(5)
    got = answer(task, task.params, examples, Recipe(sends="gradient"), NONE, RNG)
    module = copy.deepcopy(task.module).train()
    nn.functional.cross_entropy(module(examples.x), examples.y).backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(got.update[name], p.grad, rtol=1e-10, atol=1e-13)
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(got.buffers[name], buffer)


def test_update_and_weights_are_the_same_training() -> None:
    task, examples, recipe = image_task(), images(5), Recipe(SGD(0.1), epochs=2, batch_size=2)
    update = answer(task, task.params, examples, recipe, NONE, RNG).update
    weights = answer(task, task.params, examples, replace(recipe, sends="weights"), NONE, RNG).update
    assert flat(update).equal(flat(weights))


def test_one_step_of_sgd_is_the_learning_rate_times_the_gradient() -> None:
    task, examples = image_task(cnn), images(5)
    step = answer(task, task.params, examples, Recipe(SGD(0.25)), NONE, RNG).update
    gradient = answer(task, task.params, examples, Recipe(sends="gradient"), NONE, RNG).update
    torch.testing.assert_close(flat(step), 0.25 * flat(gradient))


def test_regression_trains_as_torch_does() -> None:
    task = Task(seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))), DataSpec((4,)))
    x, y = numbers(5, 4), numbers(5, seed=1)  # targets without a second axis
    got = answer(task, task.params, Examples(x, y), Recipe(SGD(0.1), shuffle=False), NONE, RNG)
    module = copy.deepcopy(task.module)
    nn.functional.mse_loss(module(x).squeeze(1), y).backward()
    for name, p in module.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(got.update[name], 0.1 * p.grad)


def test_a_loss_of_ones_own_is_used() -> None:
    module = seeded(lambda: nn.Linear(4, CLASSES))
    smooth = Task(module, DataSpec((4,), classes=CLASSES), nn.CrossEntropyLoss(label_smoothing=0.3))
    x, y = numbers(5, 4), images(5).y
    got = answer(smooth, smooth.params, Examples(x, y), Recipe(sends="gradient", shuffle=False), NONE, RNG).update
    loss = nn.functional.cross_entropy(module(x), y, label_smoothing=0.3)
    torch.testing.assert_close(got["weight"], torch.autograd.grad(loss, module.weight)[0])


# Batches and their order.


def test_a_gradient_is_the_same_alone_and_in_a_transformation_and_zero_for_what_is_not_used() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x).tanh()

    task = Task(Net().double(), DataSpec((3,), classes=2))
    recipe = Recipe(SGD(0.3), epochs=2, batch_size=2)
    x, y = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).requires_grad_(), torch.tensor([0, 1, 1, 0])

    def update(x: Tensor) -> Params:
        return local_update(task, task.params, recipe.schedule(x, y), recipe)

    alone, mapped = update(x), {name: u[0] for name, u in torch.vmap(update)(x[None]).items()}
    assert not alone["unused.weight"].any()
    slopes = [torch.autograd.grad(u["used.weight"].pow(3).sum(), x)[0] for u in (alone, mapped)]
    torch.testing.assert_close((alone, slopes[0]), (mapped, slopes[1]), rtol=1e-12, atol=1e-15)
    with torch.no_grad():
        torch.testing.assert_close(update(x), alone, rtol=0, atol=0)
        assert not any(u.requires_grad for u in update(x).values())


def test_every_epoch_visits_every_example_once_in_an_order_of_its_own() -> None:
    orders = Recipe(epochs=4, batch_size=3).orders(10, RNG)
    assert orders.shape == (4, 10)
    for order in orders:
        assert sorted(order.tolist()) == list(range(10))
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_orders_depend_on_the_stream_alone() -> None:
    recipe = Recipe(epochs=2)
    assert recipe.orders(10, RNG).equal(recipe.orders(10, Stream.from_seed(7)))
    assert not recipe.orders(10, RNG).equal(recipe.orders(10, Stream.from_seed(8)))
    assert replace(recipe, shuffle=False).orders(4, RNG).tolist() == [[0, 1, 2, 3]] * 2


def test_a_schedule_follows_its_orders_and_ends_each_epoch_with_the_short_batch() -> None:
    recipe = Recipe(epochs=2, batch_size=2)
    orders = torch.tensor([[2, 0, 1], [1, 2, 0]])
    schedule = recipe.schedule(torch.arange(3.0), torch.arange(3), orders)
    assert [batch.tolist() for batch in schedule.x] == [[2.0, 0.0], [1.0], [1.0, 2.0], [0.0]]
    assert [batch.tolist() for batch in schedule.y] == [[2, 0], [1], [1, 2], [0]]
    assert len(schedule) == recipe.steps(3)


@pytest.mark.parametrize(("n", "size", "epochs"), [(1, None, 1), (7, 3, 2), (6, 3, 2), (3, 10, 4), (5, 1, 1)])
def test_the_number_of_steps_is_the_number_of_batches(n: int, size: int | None, epochs: int) -> None:
    recipe = Recipe(epochs=epochs, batch_size=size)
    assert recipe.steps(n) == len(recipe.schedule(torch.zeros(n), torch.zeros(n)))


def test_a_client_is_repeated_by_its_stream() -> None:
    task, examples, recipe = image_task(), images(6), Recipe(SGD(0.5), epochs=2, batch_size=2)
    same = [flat(answer(task, task.params, examples, recipe, NONE, Stream.from_seed(3)).update) for _ in range(2)]
    other = flat(answer(task, task.params, examples, recipe, NONE, Stream.from_seed(4)).update)
    assert same[0].equal(same[1])
    assert not same[0].equal(other)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs.*at least 1.*0"),
        ({"batch_size": 0}, "batch_size.*at least 1.*0"),
        ({"sends": "model"}, "sends.*'gradient', 'update', 'weights'.*'model'"),
        ({"batch_norm": "off"}, "batch_norm.*'train', 'eval'.*'off'"),
        ({"sends": "gradient", "epochs": 2}, "takes no step.*epochs = 2"),
        ({"sends": "gradient", "batch_size": 4}, "takes no step.*batch_size = 4"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**wrong)  # type: ignore[arg-type]


# What belongs to the client alone.


def dropping(p: float) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, CLASSES))


def test_dropout_is_on_for_the_client_and_off_for_the_attacker() -> None:
    dropped, whole = image_task(lambda: dropping(0.5)), image_task(lambda: dropping(0.0))
    examples, recipe = images(6), Recipe(SGD(0.1), epochs=2, batch_size=3, shuffle=False)
    client = flat(answer(dropped, dropped.params, examples, recipe, NONE, RNG).update)
    without = flat(answer(whole, whole.params, examples, recipe, NONE, RNG).update)
    attacker = flat(local_update(dropped, dropped.params, drawn(recipe, examples), recipe))
    assert not torch.allclose(client, without)
    torch.testing.assert_close(attacker, without)


def test_masks_are_repeated_by_the_stream_and_differ_from_step_to_step() -> None:
    task, recipe = image_task(lambda: dropping(0.5)), Recipe(SGD(0.1), epochs=2, shuffle=False)
    examples = images(6)
    one, again = (answer(task, task.params, examples, recipe, NONE, RNG).update for _ in range(2))
    other = answer(task, task.params, examples, recipe, NONE, Stream.from_seed(8)).update
    assert flat(one).equal(flat(again))
    assert not flat(one).equal(flat(other))
    # With the masks of the first step in both steps, the hidden units that are off would get no update at all.
    single = answer(task, task.params, examples[:1], recipe, NONE, RNG).update["1.bias"]
    step = answer(task, task.params, examples[:1], replace(recipe, epochs=1), NONE, RNG).update["1.bias"]
    assert (single != 0).sum() > (step != 0).sum()


def test_dropout_is_off_for_a_client_in_eval_mode() -> None:
    dropped, whole = image_task(lambda: dropping(0.5)), image_task(lambda: dropping(0.0))
    examples, recipe = images(6), Recipe(SGD(0.1), batch_norm="eval")
    client, without = (flat(answer(t, t.params, examples, recipe, NONE, RNG).update) for t in (dropped, whole))
    torch.testing.assert_close(client, without)


def test_the_same_dropout_layer_in_two_places_is_off_for_the_attacker_too() -> None:
    def build() -> nn.Module:
        drop = nn.Dropout(0.5)
        return nn.Sequential(nn.Flatten(), drop, nn.Linear(36, 8), nn.ReLU(), drop, nn.Linear(8, CLASSES))

    task, examples, recipe = image_task(build), images(4), Recipe(SGD(0.1), shuffle=False)
    state = torch.get_rng_state()
    one, two = (flat(local_update(task, task.params, drawn(recipe, examples), recipe)) for _ in range(2))
    assert one.equal(two)
    assert state.equal(torch.get_rng_state())


def test_the_same_batch_norm_in_two_places_counts_both() -> None:
    def build() -> nn.Module:
        norm = nn.BatchNorm1d(6)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(36, 6), norm, nn.Tanh(), nn.Linear(6, 6), norm, nn.Linear(6, CLASSES)
        )

    task, examples, recipe = image_task(build), images(6), Recipe(SGD(0.1), batch_size=3)
    got = answer(task, task.params, examples, recipe, NONE, RNG)
    assert_trained_alike(task, got, trained_by_torch(task.module, drawn(recipe, examples), SGD(0.1)))


def test_frozen_parameters_are_used_and_never_touched() -> None:
    def build() -> nn.Module:
        net = cnn()
        for p in net[0].parameters():
            p.requires_grad_(False)
        return net

    task, examples, recipe = image_task(build), images(5), Recipe(SGD(0.5, weight_decay=0.1), epochs=2)
    assert {"0.weight", "0.bias"} == set(task.buffers)
    got = answer(task, task.params, examples, recipe, NONE, RNG)
    assert "0.weight" not in got.update
    assert got.buffers["0.weight"].equal(task.module[0].weight)  # type: ignore[index]
    assert_trained_alike(task, got, trained_by_torch(task.module, drawn(recipe, examples), recipe.optimiser))


def test_tied_parameters_are_trained_as_one() -> None:
    def build() -> nn.Module:
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3)
        )
        net[4].weight = net[2].weight
        return net

    task, examples, recipe = image_task(build), images(5), Recipe(SGD(0.5), epochs=2)
    assert "4.weight" not in task.params
    got = answer(task, task.params, examples, recipe, NONE, RNG)
    assert_trained_alike(task, got, trained_by_torch(task.module, drawn(recipe, examples), SGD(0.5)))


def test_training_leaves_the_module_its_parameters_the_data_and_the_global_generator_alone() -> None:
    def build() -> nn.Module:
        return nn.Sequential(batch_resnet(), nn.Dropout(0.5))

    task, examples = image_task(build), images(6)
    module, x = made_of(task.module), examples.x.clone()
    params = {name: p.clone() for name, p in task.params.items()}
    mode, state = task.module.training, torch.get_rng_state()
    answer(task, task.params, examples, Recipe(Adam(), epochs=2, batch_size=3), NONE, RNG)
    local_update(task, task.params, drawn(Recipe(), examples), Recipe())
    assert task.module.training is mode
    assert state.equal(torch.get_rng_state())
    assert examples.x.equal(x)
    assert all(params[name].equal(p) for name, p in task.params.items())
    assert all(module[name].equal(tensor) for name, tensor in task.module.state_dict().items())


# Hooks of defences.


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in pytree.tree_leaves(made) if isinstance(t, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return made


@dataclass(frozen=True)
class PerExample(Defence):
    """Looks at the gradient of every example, and scales it."""

    name: ClassVar[str] = "per example"
    per_example: ClassVar[bool] = True
    factor: float = 1.0

    def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        return self.factor * gradient


@dataclass(frozen=True)
class PerStep(Defence):
    """Adds other noise to the gradient of every step."""

    name: ClassVar[str] = "per step"
    per_step: ClassVar[bool] = True

    def on_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        return gradient if rng is None else gradient + rng.normal(*gradient.shape, dtype=gradient.dtype)


@dataclass(frozen=True)
class Half(Defence):
    """Trains on the first half of the data."""

    name: ClassVar[str] = "half"

    def on_data(self, examples: Examples, rng: Stream | None) -> Examples:
        return examples[: len(examples) // 2]


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Softplus(), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, CLASSES)
    )


def clipped_one_by_one(task: Task, x: Tensor, y: Tensor, defence: Defence) -> Tensor:
    """The mean of the examples' gradients, each by autograd and through the hook, as one vector."""
    params = {name: p.detach().requires_grad_() for name, p in task.params.items()}
    vectors = []
    for one, label in zip(x, y, strict=True):
        loss = task.mean_loss(task.forward(params, one[None])[0], label[None])
        slopes = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        vectors.append(defence.on_example_gradient(torch.cat([slope.flatten() for slope in slopes]), None))
    return torch.stack(vectors).mean(0)


@pytest.mark.parametrize("defence", [ClipExamples(0.4), DpSgd(0.3, 0.0), FedCdp(0.2, std=0.0)], ids=lambda d: d.name)
@pytest.mark.parametrize("net", [mlp, cnn, normed, group_resnet])
def test_scaled_gradients_are_those_of_every_example_and_so_are_their_derivatives(
    net: Callable[[], nn.Module], defence: Defence
) -> None:
    task, y = image_task(net), images(4).y
    x, weights = images(4).x.requires_grad_(), numbers(sum(p.numel() for p in task.params.values()), seed=3)
    recipe = Recipe(sends="gradient")
    found = flat(local_update(task, task.params, recipe.schedule(x, y), recipe, defence))
    expected = clipped_one_by_one(task, x, y, defence.fitted(task.params))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, flat(local_update(task, task.params, recipe.schedule(x, y), recipe)))
    slopes = [torch.autograd.grad(value @ weights, x)[0] for value in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("net", [cnn, normed])
def test_scaled_gradients_of_many_clients_at_once_are_those_of_one(net: Callable[[], nn.Module]) -> None:
    task, y, recipe = image_task(net), images(3).y, Recipe(SGD(0.3), epochs=2)
    clients = torch.stack([numbers(3, *IMAGE, seed=seed) for seed in (1, 2)])
    weights = numbers(sum(p.numel() for p in task.params.values()), seed=5)

    def value(x: Tensor) -> Tensor:
        return flat(local_update(task, task.params, recipe.schedule(x, y), recipe, ClipExamples(0.4))) @ weights

    together = vmap(grad(value))(clients)
    alone = torch.stack([torch.autograd.grad(value(x.requires_grad_()), x)[0] for x in clients.clone()])
    torch.testing.assert_close(together, alone)


def test_scaled_gradients_of_linear_layers_are_never_held_for_every_example() -> None:
    wide = Task(
        nn.Sequential(nn.Flatten(), nn.Linear(36, 50_000), nn.ReLU(), nn.Linear(50_000, CLASSES)), image_task().spec
    )
    x, recipe = images(64).x.float(), Recipe(sends="gradient")
    with torch.no_grad(), Largest() as seen:
        local_update(wide, wide.params, recipe.schedule(x, images(64).y), recipe, ClipExamples(0.1))
    assert seen.numel <= 64 * 50_000  # what comes back to the first layer; its 64 gradients are 36 times as many


@pytest.mark.parametrize("net", [mlp, cnn, group_resnet])
def test_the_mean_of_example_gradients_is_the_gradient_of_the_batch(net: Callable[[], nn.Module]) -> None:
    task, examples, recipe = image_task(net), images(5), Recipe(SGD(0.1), epochs=2, batch_size=3)
    plain, split = (answer(task, task.params, examples, recipe, d, RNG).update for d in (NONE, PerExample()))
    torch.testing.assert_close(flat(split), flat(plain))
    double = answer(task, task.params, examples, Recipe(SGD(0.1)), PerExample(2.0), RNG).update
    once = answer(task, task.params, examples, Recipe(SGD(0.1)), NONE, RNG).update
    torch.testing.assert_close(flat(double), 2 * flat(once))


def test_examples_are_dropped_out_one_by_one_where_gradients_are() -> None:
    task, examples = image_task(lambda: dropping(0.5)), images(1)
    twice = Examples(examples.x.repeat(6, 1, 1, 1), examples.y.repeat(6))
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Watching(PerExample):
        def on_example_gradient(self, gradient: Tensor, rng: Stream | None) -> Tensor:
            seen.append(gradient)
            return gradient

    answer(task, task.params, twice, Recipe(sends="gradient"), Watching(), RNG)
    assert len({tuple(gradient.tolist()) for gradient in seen}) > 1


def test_noise_differs_from_step_to_step_and_the_attacker_simulates_none() -> None:
    task, examples = image_task(), images(4)
    recipe = Recipe(SGD(1.0), epochs=2, shuffle=False)
    schedule = drawn(recipe, examples)
    noisy = flat(answer(task, task.params, examples, recipe, PerStep(), RNG).update)
    again = flat(answer(task, task.params, examples, recipe, PerStep(), RNG).update)
    assert noisy.equal(again)
    assert not torch.allclose(noisy, flat(answer(task, task.params, examples, recipe, NONE, RNG).update))
    simulated = flat(local_update(task, task.params, schedule, recipe, PerStep()))
    torch.testing.assert_close(simulated, flat(local_update(task, task.params, schedule, recipe)))
    gradient = Recipe(sends="gradient", shuffle=False)
    first = flat(answer(task, task.params, examples, gradient, PerStep(), RNG).update)
    first = first - flat(answer(task, task.params, examples, gradient, NONE, RNG).update)
    assert not torch.allclose(noisy, 2 * first, atol=1.0)


def test_the_client_counts_the_examples_it_trained_on() -> None:
    task, examples = image_task(), images(6)
    got = answer(task, task.params, examples, Recipe(shuffle=False), Half(), RNG)
    assert got.examples == 3
    torch.testing.assert_close(
        flat(got.update), flat(answer(task, task.params, examples[:3], Recipe(shuffle=False), NONE, RNG).update)
    )


@pytest.mark.parametrize("defence", [PerExample(0.5), PerStep()], ids=str)
def test_hooks_at_each_step_are_differentiated_through(defence: Defence) -> None:
    task, recipe = image_task(), Recipe(SGD(0.3), epochs=2, batch_size=2)
    y = images(3).y

    def value(x: Tensor) -> Tensor:
        update = flat(local_update(task, task.params, recipe.schedule(x, y), recipe, defence))
        return (update * numbers(len(update), seed=5)).sum()

    x = numbers(3, *IMAGE).requires_grad_()
    (gradient,) = torch.autograd.grad(value(x), x)
    direction, h = numbers(3, *IMAGE, seed=6), 1e-5
    with torch.no_grad():
        difference = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-7, atol=1e-9)
