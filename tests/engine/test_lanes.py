from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage.engine.lanes import free_memory, out_of_memory, over_lanes
from seepage.streams import Stream

STREAM = Stream.from_seed(0) / "lanes"


class Point(NamedTuple):
    x: Tensor
    y: Tensor


def normal(*shape: int, name: str = "x") -> Tensor:
    return (STREAM / name).normal(*shape, dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(lanes=st.integers(1, 5), width=st.integers(0, 4))
def test_loop_equals_vmap(lanes: int, width: int) -> None:
    def function(point: Point, shift: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {"out": (point.x * point.y + shift, (point.x**2).sum())}

    point, shift = Point(normal(lanes, width), normal(lanes, 1, name="y")), normal(lanes, name="shift")
    batched, looped = (over_lanes(function, batched)(point, shift) for batched in (True, False))
    for a, b in zip(batched["out"], looped["out"], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("in_dims", [(0, None), (1, None), (-1, None)])
def test_loop_takes_the_axes_of_vmap(in_dims: tuple[int, None]) -> None:
    x, y = normal(4, 4), normal(4, name="y")
    batched, looped = (over_lanes(torch.dot, batched, in_dims)(x, y) for batched in (True, False))
    torch.testing.assert_close(batched, looped)


def test_gradients_through_both_are_the_same() -> None:
    def gradient(batched: bool) -> Tensor:
        x = normal(3, 2).requires_grad_()
        return torch.autograd.grad(over_lanes(lambda x: (x**3).sum(), batched)(x).sum(), x)[0]

    torch.testing.assert_close(gradient(True), gradient(False))


def test_loop_runs_what_vmap_cannot() -> None:
    # A value that decides which branch is taken.
    def function(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    x = normal(6, 2)
    with pytest.raises(RuntimeError):
        over_lanes(function, batched=True)(x)
    assert (over_lanes(function, batched=False)(x).sum(1) >= 0).all()


def test_same_randomness_draws_the_same_in_every_lane_and_moves_on() -> None:
    x = normal(3, 2)
    draw = over_lanes(lambda x: 0 * x + torch.rand(2), batched=False, randomness="same")
    with torch.random.fork_rng(devices=[]):
        first, second = draw(x), draw(x)
    assert first[0].equal(first[1])
    assert first[0].equal(first[2])
    assert not first.equal(second)


def test_different_randomness_draws_afresh_in_every_lane() -> None:
    with torch.random.fork_rng(devices=[]):
        drawn = over_lanes(lambda x: 0 * x + torch.rand(2), batched=False, randomness="different")(normal(2, 2))
    assert not drawn[0].equal(drawn[1])


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"one number of lanes.*got \[2, 3\]"):
        over_lanes(torch.add, batched=False)(normal(2), normal(3))
    with pytest.raises(ValueError, match=r"got \[0\]"):
        over_lanes(torch.sum, batched=False)(normal(0, 2))
    with pytest.raises(ValueError, match="same structure as the 2 arguments"):
        over_lanes(torch.add, batched=False, in_dims=(0, 0, 0))(normal(2), normal(2))
    with pytest.raises(TypeError, match="return tensors, got a float"):
        over_lanes(lambda x: 1.0, batched=False)(normal(2))


def test_out_of_memory_is_seen_behind_other_errors() -> None:
    hidden = RuntimeError("capture was invalidated")
    hidden.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert out_of_memory(hidden)
    assert out_of_memory(MemoryError())
    assert not out_of_memory(ValueError("not enough memory of the facts"))
    assert not out_of_memory(None)
    free_memory()
