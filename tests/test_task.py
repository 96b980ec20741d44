"""The user's module as pure functions, and what is said when it will not do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from common.nets import (
    CLASSES,
    IMAGE,
    Recurrent,
    batch_resnet,
    cnn,
    flat,
    group_resnet,
    image_task,
    images,
    made_of,
    mlp,
    numbers,
    relative_error,
    seeded,
    whole_numbers,
)
from seepage.engine.lanes import over_lanes
from seepage.engine.layers import Consequence
from seepage.local import local_update
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import ModuleError, Task, TooFewOutputs
from seepage.unrolled import unrolled_update

SEQUENCE = (3, 4)


class Pooled(nn.Module):
    """A sequence layer, and a linear layer on the mean over the sequence."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(1))


class Attention(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.weights)[0]


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, **options)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2, padding=1, groups=1), nn.Softplus(), nn.AvgPool2d(2), nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(2, 2, 3), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.LayerNorm(8), nn.GELU(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


BATCHING = {
    "mlp": (mlp, IMAGE),
    "cnn": (cnn, IMAGE),
    "pools and norms": (convolutions, IMAGE),
    "resnet with BatchNorm": (batch_resnet, IMAGE),
    "resnet with GroupNorm": (group_resnet, IMAGE),
    "BatchNorm of the batch alone": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), cnn_head()),
        IMAGE,
    ),
    "InstanceNorm": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2), cnn_head()), IMAGE),
    "dropout": (lambda: nn.Sequential(mlp(), nn.Dropout(0.5)), IMAGE),
    "LSTM": (lambda: Recurrent(nn.LSTM), SEQUENCE),
    "attention": (lambda: Pooled(Attention(weights=False)), SEQUENCE),
    "attention with weights": (lambda: Pooled(Attention(weights=True)), SEQUENCE),
    "scaled dot product": (lambda: Pooled(Fused()), SEQUENCE),
    "transformer": (lambda: Pooled(encoder_layer()), SEQUENCE),
    "transformer with GELU": (lambda: Pooled(encoder_layer(activation="gelu", norm_first=True)), SEQUENCE),
}
LOOPING = {
    "GRU": (lambda: Recurrent(nn.GRU), SEQUENCE),
    "RNN": (lambda: Recurrent(nn.RNN), SEQUENCE),
}


def cnn_head() -> nn.Module:
    return nn.Sequential(nn.Sigmoid(), nn.Flatten(), nn.Linear(32, CLASSES))


@pytest.mark.parametrize("sends", ["update", "gradient"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", BATCHING)
def test_modules_batch_over_clients_with_the_numbers_of_plain_double_backward(name: str, mode: str, sends: str) -> None:
    build, shape = BATCHING[name]
    task = Task(seeded(build), DataSpec(shape, classes=CLASSES))
    assert task.batched
    steps = {"epochs": 2, "batch_size": 2} if sends == "update" else {}
    recipe = Recipe(SGD(0.1), batch_norm=mode, sends=sends, **steps)  # type: ignore[arg-type]
    assert_batches_like_one_by_one(task, recipe, batched=True)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", LOOPING)
def test_modules_without_a_batching_rule_run_in_a_loop_with_the_same_numbers(name: str, mode: str) -> None:
    build, shape = LOOPING[name]
    task = Task(seeded(build), DataSpec(shape, classes=CLASSES))
    assert not task.batched
    assert [c.consequence for c in task.check()] == [Consequence.LOOP]
    recipe = Recipe(SGD(0.1), epochs=2, batch_size=2, batch_norm=mode)  # type: ignore[arg-type]
    assert_batches_like_one_by_one(task, recipe, batched=False)


def assert_batches_like_one_by_one(task: Task, recipe: Recipe, batched: bool) -> None:
    x, y = numbers(2, 4, *task.spec.shape), torch.stack([whole_numbers(4, seed=s) for s in range(2)])
    params = {name: torch.stack([p, p * 1.1]) for name, p in task.params.items()}
    x.requires_grad_()
    swept = over_lanes(lambda p, x, y: flat(local_update(task, p, recipe.schedule(x, y), recipe)), batched)(
        params, x, y
    )
    (got,) = torch.autograd.grad((swept * numbers(swept.shape[1], seed=1)).sum(), x)
    for i in range(2):
        one = x[i].detach().requires_grad_()
        update = flat(
            unrolled_update(task, {name: p[i] for name, p in params.items()}, recipe.schedule(one, y[i]), recipe)
        )
        (expected,) = torch.autograd.grad((update * numbers(len(update), seed=1)).sum(), one)
        assert relative_error(swept[i], update) < 1e-9
        assert relative_error(got[i], expected) < 1e-8


@pytest.mark.parametrize("name", [*BATCHING, *LOOPING])
def test_the_pure_function_gives_what_the_module_gives(name: str) -> None:
    build, shape = (BATCHING | LOOPING)[name]
    module = seeded(build)
    task, x = Task(module, DataSpec(shape, classes=CLASSES)), numbers(4, *shape)
    out, _ = task.forward(task.params, x)
    torch.testing.assert_close(out, module.eval()(x))
    if name not in ("dropout", "transformer", "transformer with GELU"):
        out, _ = task.forward(task.params, x, train=True)
        torch.testing.assert_close(out, module.train()(x))


@pytest.mark.parametrize("name", [name for name in BATCHING if name != "LSTM"])  # batched under a gradient alone
def test_evaluation_batches_over_models_without_gradients(name: str) -> None:
    build, shape = BATCHING[name]
    task, x = Task(seeded(build), DataSpec(shape, classes=CLASSES)), numbers(2, 3, *shape)
    params = {name: torch.stack([p, p * 1.1]) for name, p in task.params.items()}
    with torch.no_grad():
        together = vmap(lambda p, x: task.forward(p, x)[0])(params, x)
        for i in range(2):
            alone = task.forward({name: p[i] for name, p in params.items()}, x[i])[0]
            torch.testing.assert_close(together[i], alone)


def test_gradient_is_that_of_autograd() -> None:
    task, examples = image_task(batch_resnet), images(4)
    for train in (True, False):
        module = task.module.train(train)
        names, parameters = zip(*module.named_parameters(), strict=True)
        loss = functional.cross_entropy(module(examples.x), examples.y)
        expected = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
        got = task.gradient(task.params, examples.x, examples.y, buffers=dict(task.buffers), train=train)
        for name in names:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-9, atol=1e-12)
        task = image_task(batch_resnet)  # torch's own forward pass has changed the running statistics


def test_buffers_after_a_forward_pass_are_handed_out_and_not_written() -> None:
    task = image_task(batch_resnet)
    before = {name: b.clone() for name, b in task.buffers.items()}
    _, after = task.forward(task.params, images(4).x, train=True)
    assert list(after) == list(before)
    assert all(before[name].equal(b) for name, b in task.buffers.items())
    assert any(not before[name].equal(b) for name, b in after.items())
    _, unchanged = task.forward(task.params, images(4).x, train=False)
    assert all(before[name].equal(b) for name, b in unchanged.items())


def test_a_forward_pass_that_fails_leaves_nothing_behind() -> None:
    task = image_task(lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(36, CLASSES)))
    with pytest.raises(RuntimeError):
        task.forward(task.params, numbers(3, 1, 9, 9), train=True, rng=torch.Generator())
    assert not task._nets[True][0].fresh
    assert task._nets[True][2].rng is None


def test_the_users_module_and_the_global_generator_are_left_alone() -> None:
    module = seeded(lambda: nn.Sequential(batch_resnet(), nn.Dropout(0.5))).eval()
    before, layers, state = made_of(module), [type(m) for m in module.modules()], torch.get_rng_state()
    task = Task(module, DataSpec(IMAGE, classes=CLASSES))
    task.check()
    assert task.batched
    assert task.forward_mode
    task.forward(task.params, images(4).x, train=True, rng=torch.Generator().manual_seed(0))
    task.accuracy(task.params, images(4).x, images(4).y)
    assert [type(m) for m in module.modules()] == layers
    assert not module.training
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert all(before[name].equal(tensor) for name, tensor in module.state_dict().items())
    assert state.equal(torch.get_rng_state())


def test_parameters_and_buffers_of_the_task_are_copies() -> None:
    module = seeded(batch_resnet)
    task = Task(module, DataSpec(IMAGE, classes=CLASSES))
    theirs = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    ours = {t.untyped_storage().data_ptr() for t in (*task.params.values(), *task.buffers.values())}
    assert not theirs & ours
    assert not any(p.requires_grad for p in task.params.values())


def test_to_moves_a_copy() -> None:
    task = image_task(batch_resnet)
    single = task.to("cpu", torch.float32)
    assert {p.dtype for p in single.params.values()} == {torch.float32}
    assert {p.dtype for p in task.params.values()} == {torch.float64}
    assert next(task.module.parameters()).dtype == torch.float64
    assert single.buffers["0.first_norm.num_batches_tracked"].dtype == torch.long


# Refusals.


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.LazyLinear(3), ["body.1", "LazyLinear", "no shape yet", "Run one batch"]),
        (lambda: nn.Embedding(4, 3), ["body.1", "Embedding", "integer", "behind the embedding"]),
        (
            lambda: nn.InstanceNorm2d(2, track_running_stats=True),
            ["body.1", "InstanceNorm2d", "in place", "track_running_stats=False", "GroupNorm"],
        ),
    ],
)
def test_a_layer_that_cannot_be_attacked_is_refused_by_name_with_why_and_fix(layer: Any, words: list[str]) -> None:
    module = nn.ModuleDict({"body": nn.Sequential(nn.Identity(), layer())})
    with pytest.raises(ModuleError) as refusal:
        Task(module, DataSpec((4,), classes=3))
    assert all(word in str(refusal.value) for word in words)


def test_every_refused_layer_is_listed_at_once() -> None:
    with pytest.raises(ModuleError) as refusal:
        Task(nn.Sequential(nn.Embedding(4, 3), nn.LazyLinear(3)), DataSpec((4,), classes=3))
    assert "0 [Embedding]" in str(refusal.value)
    assert "1 [LazyLinear]" in str(refusal.value)


def test_a_lazy_module_that_has_seen_a_batch_is_welcome() -> None:
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))
    module(torch.zeros(1, *IMAGE))
    assert Task(module, DataSpec(IMAGE, classes=CLASSES)).check() == []


@pytest.mark.parametrize("net", [cnn, lambda: Recurrent(nn.GRU)])
def test_a_wrong_shape_is_named_with_the_layer_where_it_hurts(net: Any) -> None:
    shape, layer = ((1, 9, 9), "6") if net is cnn else ((3, 7), "cell")
    with pytest.raises(ModuleError) as refusal:
        Task(seeded(net), DataSpec(shape, classes=CLASSES))
    assert all(word in str(refusal.value) for word in (str(shape), "`spec.shape`", f"last layer entered: {layer})"))


@pytest.mark.parametrize("loss", ["auto", "cross_entropy"])
def test_every_class_needs_an_output(loss: str) -> None:
    with pytest.raises(TooFewOutputs, match=r"at least 4 outputs .*, got 3; give its last layer 4"):
        Task(nn.Linear(5, 3), DataSpec((5,), classes=4), loss)
    assert Task(nn.Linear(5, 6), DataSpec((5,), classes=4), loss).batched  # more do no harm


def test_a_loss_of_ones_own_may_read_outputs_otherwise() -> None:
    def binary(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(out.squeeze(-1), y.to(out))

    assert Task(nn.Linear(5, 1), DataSpec((5,), classes=2), binary).batched


def test_a_module_without_trainable_parameters_is_refused() -> None:
    frozen = nn.Linear(4, 3).requires_grad_(False)
    for module in (frozen, nn.Flatten()):
        with pytest.raises(ModuleError, match="trainable parameter"):
            Task(module, DataSpec((4,), classes=3))


def test_an_unknown_loss_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"cross_entropy.*squared_error.*'hinge'"):
        Task(nn.Linear(4, 3), DataSpec((4,), classes=3), "hinge")


class Square(torch.autograd.Function):
    """A square whose derivative is to be given."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class OnceOnly(Square):
    """With a derivative and no second one."""

    generate_vmap_rule = True

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return NoDerivative.apply(2 * x * bar)


class NoDerivative(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Tensor:
        raise RuntimeError("derivative for square_backward is not implemented")


class Unbatched(Square):
    """Differentiable as often as one likes, without a rule for vmap."""

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * bar


class Squared(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


def with_square(function: type[torch.autograd.Function]) -> Task:
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 5), Squared(function), nn.Linear(5, CLASSES)))
    return Task(net, DataSpec((4,), classes=CLASSES))


def test_an_operation_without_a_second_derivative_is_refused() -> None:
    with pytest.raises(ModuleError, match=r"square_backward is not implemented.*without a second derivative"):
        with_square(OnceOnly)


def test_an_operation_without_a_batching_rule_is_found_by_trying_and_looped_with_the_same_numbers() -> None:
    task = with_square(Unbatched)
    (concern,) = task.check()
    assert concern.consequence is Consequence.LOOP
    assert "does not batch" in concern.why
    assert not task.batched
    assert not task.forward_mode
    assert_batches_like_one_by_one(task, Recipe(SGD(0.1), epochs=2, batch_size=2), batched=False)


def test_a_kernel_whose_batched_second_derivative_is_wrong_is_found_by_trying_and_looped() -> None:
    class Normalised(nn.LayerNorm):
        # Where autograd is outside of vmap, torch's rule for this kernel takes mean and variance for constants.
        def forward(self, x: Tensor) -> Tensor:
            return functional.layer_norm(x, (5,), self.weight, self.bias)

    net = seeded(lambda: nn.Sequential(nn.Linear(4, 5), Normalised(5), nn.Tanh(), nn.Linear(5, CLASSES)))
    task = Task(net, DataSpec((4,), classes=CLASSES))
    (concern,) = task.check()
    assert concern.consequence is Consequence.LOOP
    assert "differs from the plain one" in concern.why
    assert_batches_like_one_by_one(task, Recipe(SGD(0.1), epochs=2, batch_size=2), batched=False)


def test_a_functional_dropout_is_found_by_trying() -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(x, 0.5, self.training)

    task = Task(nn.Sequential(nn.Linear(4, 3), Dropping()), DataSpec((4,), classes=3))
    state = torch.get_rng_state()
    (concern,) = task.check()
    assert concern.consequence is Consequence.LOOP
    assert "random" in concern.why
    assert state.equal(torch.get_rng_state())
    assert task.check(train=False) == []


# The rest of a task.


def test_the_head_is_the_last_linear_layer_if_it_gives_the_classes() -> None:
    assert image_task(cnn).head == "6"
    assert Task(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5)), DataSpec((4,), classes=3)).head is None
    assert Task(nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten()), DataSpec(IMAGE, classes=3)).head is None


def test_accuracy_is_the_share_of_right_answers_over_all_parts() -> None:
    task = Task(seeded(lambda: nn.Linear(3, 3, bias=False)), DataSpec((3,), classes=3))
    x, y = torch.eye(3, dtype=torch.float64).repeat(400, 1), torch.arange(3).repeat(400)
    identity = {"weight": torch.eye(3, dtype=torch.float64)}
    assert task.accuracy(identity, x, y) == 1.0
    assert task.accuracy(identity, x, y.where(y != 2, 0)) == pytest.approx(2 / 3)


def test_accuracy_of_regression_is_the_coefficient_of_determination() -> None:
    task = Task(nn.Linear(1, 1, bias=False).double(), DataSpec((1,)))
    x = numbers(20, 1)
    assert task.accuracy({"weight": torch.ones(1, 1, dtype=torch.float64)}, x, x.squeeze()) == pytest.approx(1)
    centred = x - x.mean()
    assert task.accuracy({"weight": torch.zeros(1, 1, dtype=torch.float64)}, x, centred) == pytest.approx(0)


# What the data look like.


def test_normalising_and_back_are_inverse_with_any_leading_axes() -> None:
    spec = DataSpec((3, 2, 2), classes=2, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    pixels = numbers(4, 5, 3, 2, 2)
    torch.testing.assert_close(spec.pixels(spec.normalise(pixels)), pixels)
    torch.testing.assert_close(spec.normalise(pixels)[..., 2, :, :], (pixels[..., 2, :, :] - 0.3) / 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": (0.0, 0.0)}, r"`mean` of length 1 or 3 .*length 2"),
        ({"std": (1.0, 1.0)}, r"`std` of length 1 or 3 .*length 2"),
        ({"std": (0.0,)}, "every `std` above 0"),
        ({"low": 1.0, "high": 1.0}, "`low` below `high`"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataSpec((3, 2, 2), **wrong)


def test_examples_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="2 inputs and 3 targets"):
        Examples(torch.zeros(2), torch.zeros(3))
    joined = Examples.join([images(2), images(3, 1)])
    assert len(joined) == 5
    assert joined[2:].x.equal(images(3, 1).x)
    moved = joined.to("cpu", torch.float32)
    assert (moved.x.dtype, moved.y.dtype) == (torch.float32, torch.long)
