"""Distances between updates, against torch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap
from torch.nn import functional

from common.nets import flat, numbers
from seepage.pieces.distances import cosine, normalised, squared
from seepage.task import Params


def update(seed: int, dtype: torch.dtype = torch.float64) -> Params:
    return {"w": numbers(3, 4, seed=seed, dtype=dtype), "b": numbers(4, seed=seed + 50, dtype=dtype)}


@pytest.mark.parametrize("seed", range(5))
def test_cosine_is_one_minus_the_cosine_of_all_entries_together(seed: int) -> None:
    one, other = update(seed), update(seed + 100)
    expected = 1 - functional.cosine_similarity(flat(one), flat(other), dim=0)
    torch.testing.assert_close(cosine(one, other), expected)


@pytest.mark.parametrize("seed", range(5))
def test_squared_is_the_sum_of_squared_errors(seed: int) -> None:
    one, other = update(seed), update(seed + 100)
    torch.testing.assert_close(squared(one, other), functional.mse_loss(flat(one), flat(other), reduction="sum"))


@pytest.mark.parametrize("distance", [cosine, squared])
def test_distances_go_by_name_and_not_by_order(distance) -> None:
    one, other = update(0), update(1)
    torch.testing.assert_close(distance(one, dict(reversed(other.items()))), distance(one, other), rtol=1e-12, atol=0)
    same = {"a": numbers(4), "b": numbers(4, seed=1)}
    torch.testing.assert_close(distance(same, {"b": same["b"], "a": same["a"]}), numbers() * 0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("distance", [cosine, squared])
def test_distances_are_mapped_over_clients(distance) -> None:
    one = {name: torch.stack([update(0)[name], update(1)[name]]) for name in update(0)}
    together = vmap(distance, in_dims=(0, None))(one, update(2))
    torch.testing.assert_close(together, torch.stack([distance(update(0), update(2)), distance(update(1), update(2))]))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosine_does_not_see_the_length_of_updates(scale: float, dtype: torch.dtype) -> None:
    one, other = update(0, dtype), update(1, dtype)
    scaled = {name: scale * u for name, u in other.items()}
    torch.testing.assert_close(cosine(one, scaled), cosine(one, other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("which", ["guess", "target", "both"])
def test_cosine_to_a_zero_update_is_one_with_a_finite_gradient(which: str, dtype: torch.dtype) -> None:
    zero = {name: torch.zeros_like(u) for name, u in update(0, dtype).items()}
    guess = zero if which in ("guess", "both") else update(0, dtype)
    target = zero if which in ("target", "both") else update(1, dtype)
    leaves = {name: g.clone().requires_grad_() for name, g in guess.items()}
    distance = cosine(leaves, target)
    assert float(distance.detach()) == 1
    assert all(g.isfinite().all() for g in torch.autograd.grad(distance, list(leaves.values())))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("norm", ["all", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_normalised_update_has_length_one_at_every_scale(scale: float, norm: str, dtype: torch.dtype) -> None:
    unit = normalised({name: scale * u for name, u in update(0, dtype).items()}, norm)  # type: ignore[arg-type]
    lengths = torch.stack([u.double().norm() for u in unit.values()])
    length = float(lengths.norm() if norm == "all" else lengths.mean())
    assert length == pytest.approx(1, rel=1e-6)
    assert all(u.dtype == dtype for u in unit.values())


@pytest.mark.parametrize("seed", range(3))
def test_normalised_updates_are_apart_by_twice_the_cosine_distance(seed: int) -> None:
    one, other = update(seed), update(seed + 100)
    torch.testing.assert_close(squared(normalised(one), normalised(other)), 2 * cosine(one, other))


def test_normalised_keeps_the_digits_that_the_cosine_loses() -> None:
    one = update(0, torch.float32)
    near = {name: u + 1e-5 * numbers(*u.shape, seed=9, dtype=torch.float32) for name, u in one.items()}
    exact = squared(
        normalised({n: u.double() for n, u in one.items()}), normalised({n: u.double() for n, u in near.items()})
    )
    torch.testing.assert_close(squared(normalised(one), normalised(near)).double(), exact, rtol=0.05, atol=0)


@pytest.mark.parametrize("norm", ["all", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_update_stays_zero_with_a_finite_gradient(norm: str, dtype: torch.dtype) -> None:
    leaves = {name: torch.zeros_like(u).requires_grad_() for name, u in update(0, dtype).items()}
    unit = normalised(leaves, norm)  # type: ignore[arg-type]
    assert not any(u.any() for u in unit.values())
    slopes = torch.autograd.grad(squared(unit, update(1, dtype)), list(leaves.values()))
    assert all(slope.isfinite().all() for slope in slopes)


def test_the_derivative_of_a_normalised_update_is_that_of_the_plain_formula() -> None:
    def plain(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return w / (w.square().sum() + b.square().sum()).sqrt()

    leaves = tuple(update(0).values())
    expected = torch.func.jacrev(plain)(*leaves)
    got = torch.func.jacrev(lambda w, b: normalised({"w": w, "b": b})["w"])(*leaves)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("which", ["guess", "target", "both"])
def test_the_gradient_of_the_cosine_is_that_of_torch(which: str) -> None:
    def torchs(one: Params, other: Params) -> torch.Tensor:
        return 1 - functional.cosine_similarity(flat(one), flat(other), dim=0)

    # Two lanes with different slopes, as one lane's must not leak into the other's.
    pairs = [{name: torch.stack([update(s)[name], update(s + 1)[name]]) for name in update(0)} for s in (0, 7)]
    wanted = [
        t.requires_grad_()
        for w, pair in zip(("guess", "target"), pairs, strict=True)
        if which in (w, "both")
        for t in pair.values()
    ]
    slopes = torch.tensor([2.0, -3.0], dtype=torch.float64)
    ours = torch.autograd.grad(vmap(cosine)(*pairs), wanted, slopes)
    theirs = torch.autograd.grad(vmap(torchs)(*pairs), wanted, slopes)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
