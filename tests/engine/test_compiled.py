"""Traced programs against what they were traced from; fusing them is the compiler's affair."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vmap

from common.nets import cnn, image_task, images, mlp, numbers
from seepage.engine.compiled import Compiler
from seepage.local import local_update
from seepage.recipe import SGD, Adam, Recipe

# Forward mode imports torch's decompositions, which are still written in TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def test_a_program_is_traced_once_for_each_kind_of_arguments() -> None:
    calls = []

    def function(x: Tensor, more: dict[str, Tensor]) -> Any:
        calls.append(tuple(x.shape))
        return x + more["y"], {"product": x * more["y"]}

    compiler = Compiler(backend="none")
    for x in (torch.ones(2), torch.full((2,), 3.0), torch.ones(4)[::2], torch.ones(5)):
        total, more = compiler("f", function, x, {"y": 2 * x})
        assert total.equal(3 * x)
        assert more["product"].equal(2 * x * x)
    assert calls == [(2,), (5,)]
    compiler("g", function, torch.ones(2), {"y": torch.ones(2)})
    assert calls == [(2,), (5,), (2,)]


@pytest.mark.parametrize(("backend", "what"), [("eager", "compiled"), ("none", "traced")])
def test_what_cannot_be_traced_runs_as_it_is_and_says_so_once(backend: str, what: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if float(x.sum()) > 0 else x - 1

    compiler = Compiler(backend)
    with pytest.warns(UserWarning, match=f"f could not be {what}"):
        assert compiler("f", function, torch.ones(2)).tolist() == [2.0, 2.0]
    assert compiler("f", function, -torch.ones(2)).tolist() == [-2.0, -2.0]
    assert compiler("g", function, torch.ones(3)).tolist() == [2.0, 2.0, 2.0]  # a second warning would be an error


def test_a_program_that_cannot_be_simplified_runs_as_it_is_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("val")

    monkeypatch.setattr("seepage.engine.compiled._merge_sums", broken)
    with pytest.warns(UserWarning, match="f could not be traced .*val"):
        assert Compiler("none")("f", lambda x: 2 * x, torch.ones(2)).tolist() == [2.0, 2.0]


def test_what_is_not_used_or_known_already_is_not_computed() -> None:
    def function(x: Tensor) -> Tensor:
        x.exp().log()
        twice = (x.sin() + 1).div_(2)
        return twice * (x.detach().sin() + 1).div(2)

    compiler = Compiler(backend="none")
    x = torch.linspace(0, 1, 5)
    assert compiler("f", function, x).equal(function(x))
    (program,) = compiler._programs.values()
    code = inspect.getclosurevars(program).nonlocals["program"].code
    assert "exp" not in code
    assert [code.count(f"aten.{name}(") for name in ("sin.default", "add.Tensor", "div.Tensor")] == [1, 1, 1]


def test_running_out_of_memory_is_no_reason_to_go_on_without() -> None:
    def function(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Compiler(backend="none")("f", function, torch.ones(2))


STEPS = Recipe(SGD(0.1, momentum=0.5), epochs=2, batch_size=2, shuffle=False)


@pytest.mark.parametrize(
    ("net", "recipe", "soft"),
    [
        (mlp, Recipe(sends="gradient"), True),
        (cnn, Recipe(sends="gradient"), False),
        (cnn, STEPS, False),
        (mlp, STEPS, True),
        (mlp, Recipe(Adam(0.01), epochs=2), False),
        (mlp, Recipe(Adam(0.01, smooth=0.1), epochs=2), False),
    ],
    ids=[
        "gradient, soft labels",
        "gradient of a cnn",
        "momentum, cnn",
        "momentum, soft labels",
        "adam",
        "followed adam",
    ],
)
def test_compiled_local_training_is_local_training(net: Any, recipe: Recipe, soft: bool) -> None:
    task = image_task(net)
    object.__setattr__(task, "compiler", Compiler(backend="none"))
    x = torch.stack([images(3, seed).x for seed in range(2)]).requires_grad_()
    y = torch.stack([images(3, seed).y for seed in range(2)])
    if soft:
        y = torch.nn.functional.one_hot(y, 3).to(x.dtype).mul(0.8).add(0.1).requires_grad_()
    results = []
    for compiled in (False, True):

        def cubes(x: Tensor, y: Tensor, compiled: bool = compiled) -> Tensor:
            update = local_update(task, task.params, recipe.schedule(x, y), recipe, keep_every=1, compiled=compiled)
            return torch.stack([(u**3).sum() for u in update.values()]).sum()

        value = vmap(cubes)(x, y)
        results.append((value.detach(), *torch.autograd.grad(value.sum(), [x, y] if soft else [x])))
    for plain, compiled_result in zip(*results, strict=True):
        torch.testing.assert_close(compiled_result, plain, rtol=1e-9, atol=1e-14)
    assert task.compiler._programs


def program_of(compiler: Compiler) -> str:
    (program,) = compiler._programs.values()
    return str(inspect.getclosurevars(program).nonlocals["program"].code)


def counted(compiler: Compiler, *operations: str) -> list[int]:
    return [program_of(compiler).count(f"aten.{name}") for name in operations]


def test_products_are_added_in_place() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        one, other = (torch.bmm(p, q).transpose(1, 2).reshape(2, -1) for p, q in ((a, b), (c, d)))
        return one + other

    tensors = [numbers(2, *shape, seed=seed) for seed, shape in enumerate([(3, 4), (4, 5), (3, 6), (6, 5)])]
    compiler = Compiler(backend="none")
    torch.testing.assert_close(compiler("f", function, *tensors), function(*tensors), rtol=1e-12, atol=1e-12)
    operations = ("bmm.default(", "baddbmm_.default(", "add.Tensor(", "transpose.int(")
    assert counted(compiler, *operations) == [1, 1, 0, 1]


def test_a_sum_of_products_larger_than_what_they_are_made_of_is_one_product() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
        return torch.bmm(a, b) + torch.bmm(c, d) + torch.bmm(e, f)

    shapes = [(30, 2), (2, 40), (30, 3), (3, 40), (30, 1), (1, 40)]
    tensors = [numbers(2, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    compiler = Compiler(backend="none")
    torch.testing.assert_close(compiler("f", function, *tensors), function(*tensors), rtol=1e-12, atol=1e-12)
    assert counted(compiler, "bmm.default(", "baddbmm_.default(", "add.Tensor(") == [1, 0, 0]


@pytest.mark.parametrize("squared", [False, True])
def test_a_factor_is_taken_out_of_products_that_are_smaller(squared: bool) -> None:
    def function(weights: Tensor, x: Tensor) -> Tensor:
        scaled = (-0.5 * weights).transpose(1, 2)
        return torch.bmm(scaled, scaled) if squared else torch.bmm(x, scaled) + 2 * torch.bmm(x[:, :1], scaled)

    tensors = [numbers(2, 8, 8, seed=0), numbers(2, 3, 8, seed=1)]
    compiler = Compiler(backend="none")
    torch.testing.assert_close(compiler("f", function, *tensors), function(*tensors), rtol=1e-12, atol=1e-12)
    code = program_of(compiler)
    assert (
        code.index("aten.mul") < code.index("aten.bmm") if squared else code.index("aten.bmm") < code.index("aten.mul")
    )


def test_a_term_that_is_used_elsewhere_stays() -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        one, other = torch.bmm(a, b), torch.bmm(b, a)
        return one + other, other * 2

    tensors = [numbers(2, 3, 3, seed=seed) for seed in range(2)]
    for ours, plain in zip(Compiler("none")("f", function, *tensors), function(*tensors), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_products_with_one_large_operand_are_one_product() -> None:
    def function(weights: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = torch.bmm(a, weights).relu()  # used before the second is there
        second = torch.bmm(b.sin(), weights)
        third = torch.bmm(first.mT @ first, weights.mT)  # the other way round
        second = second.view(2, 20).sin().view(2, 1, 20)
        return first, second, third @ torch.bmm(second, weights)[:, :1].mT  # which needs the second, and stays

    tensors = [numbers(2, *shape, seed=seed) for seed, shape in enumerate([(20, 20), (2, 20), (1, 20)])]
    compiler = Compiler(backend="eager")
    for ours, plain in zip(compiler("f", function, *tensors), function(*tensors), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    (program,) = compiler._programs.values()
    graph = inspect.getclosurevars(program).nonlocals["program"]._orig_mod.graph
    large = [n for n in graph.nodes if n.target is torch.ops.aten.bmm.default and n.meta["val"].shape[1:] == (3, 20)]
    assert len(large) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_compiler_is_given_computes_the_same(backend: str) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        patches = x.unfold(2, 3, 2).unfold(3, 2, 1).permute(0, 1, 4, 5, 2, 3).flatten(1, 3).flatten(2)
        y = torch.bmm(w, patches)
        back = torch.nn.functional.fold(w.mT @ y.cos(), x.shape[2:], (3, 2), stride=(2, 1))
        return y, back - 0.1 * x

    tensors = (numbers(2, 1, 9, 8, seed=0), numbers(2, 12, 6, seed=1))
    for ours, plain in zip(Compiler(backend)("f", function, *tensors), function(*tensors), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_the_derivative_of_a_constant_has_memory() -> None:
    def function(x: Tensor, along: Tensor) -> Tensor:
        return jvp(lambda x: x @ torch.eye(3, dtype=x.dtype), (x,), (along,))[1]

    tensors = [numbers(2, 3, 3, seed=seed) for seed in range(2)]
    compiler = Compiler(backend="none")
    torch.testing.assert_close(compiler("f", vmap(function), *tensors), tensors[1])
    assert "_efficientzerotensor" not in program_of(compiler)
    assert "zeros" in program_of(compiler)


@pytest.mark.parametrize("wrong", [1.5, float("nan")])
def test_a_compiled_program_that_gives_other_numbers_is_not_used(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda program, **_: lambda *leaves: [wrong * x for x in program(*leaves)])
    compiler = Compiler()
    with pytest.warns(UserWarning, match="f could not be compiled .*off by"):
        assert compiler("f", lambda x: 2 * x, torch.ones(2)).tolist() == [2.0, 2.0]
    assert compiler("f", lambda x: 2 * x, torch.ones(2)).tolist() == [2.0, 2.0]


def bias_gradient(x: Tensor, w: Tensor) -> Tensor:
    """Of a layer with a rectifier, (lanes, hidden): one number changes by a fifth where one image crosses its kink."""
    return (torch.bmm(x, w) > 0).to(x.dtype).mul(x.sum(2, keepdim=True)).sum(1)


def in_tf32(x: Tensor) -> Tensor:
    """Rounded to the ten bits behind the point that products in TF32 read."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_a_compiled_program_may_fall_on_the_other_side_of_a_kink(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [numbers(20, *shape, seed=seed).float() for seed, shape in enumerate([(5, 300), (300, 200)])]
    expected, found = bias_gradient(*tensors), bias_gradient(*map(in_tf32, tensors))
    assert (found - expected).abs().max() > 0.1 * expected.abs().max()  # one in a thousand, by rounding alone
    monkeypatch.setattr(torch, "compile", lambda program, **_: lambda *leaves: program(*map(in_tf32, leaves)))
    assert Compiler()("f", bias_gradient, *tensors).equal(found)  # a warning would be an error
    monkeypatch.setattr(torch, "compile", lambda program, **_: lambda *leaves: [x.roll(1) for x in program(*leaves)])
    with pytest.warns(UserWarning, match="f could not be compiled .*off by"):
        assert Compiler()("f", bias_gradient, *tensors).equal(expected)
