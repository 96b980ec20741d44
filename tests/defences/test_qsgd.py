"""QSGD: lemma 3.1 of the paper, that it is right on average, of bounded variance, and sparse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from common.defence_suite import ONE, OTHER, an_update
from common.nets import flat, numbers
from seepage.defences import QSGD, NoDefence

DRAWS = 3000
CASES = [QSGD(levels, norm) for levels in (1, 3, 15) for norm in ("euclidean", "max")]


def draws_of(defence: QSGD, u: Tensor) -> Tensor:
    return torch.stack([defence.on_update({"u": u}, ONE / i)["u"] for i in range(DRAWS)])


@pytest.mark.parametrize("defence", CASES, ids=str)
def test_it_is_right_on_average(defence: QSGD) -> None:
    u = numbers(30, seed=4)
    sent = draws_of(defence, u)
    step = (u.norm() if defence.norm == "euclidean" else u.abs().max()) / defence.levels
    up = (u.abs() / step).frac()
    error = step * (up * (1 - up) / DRAWS).sqrt()
    assert ((sent.mean(0) - u).abs() <= 4.5 * error + 1e-9).all()
    measured = ((sent - u) ** 2).sum(1).mean()
    assert float(measured) == pytest.approx(float((step**2 * up * (1 - up)).sum()), rel=0.1)


@pytest.mark.parametrize("levels", [1, 3, 15])
def test_variance_and_zeros_are_those_of_the_lemma(levels: int) -> None:
    n = 400
    u = numbers(n, seed=5)
    sent = draws_of(QSGD(levels), u)[:500]
    error = ((sent - u) ** 2).sum(1).mean()
    assert error <= min(n / levels**2, n**0.5 / levels) * (u**2).sum()
    assert (sent != 0).sum(1).double().mean() <= levels * (levels + n**0.5)


def test_each_tensor_has_a_norm_and_chances_of_its_own() -> None:
    u = numbers(200)
    sent = QSGD(1, "max").on_update({"a": u, "b": 100 * u}, ONE)
    assert set(sent["b"].abs().unique().tolist()) == {0.0, 100 * float(u.abs().max())}
    assert not torch.allclose(100 * sent["a"], sent["b"])
    assert not flat(QSGD().on_update(an_update(), ONE)).equal(flat(QSGD().on_update(an_update(), OTHER)))


def test_what_is_on_the_levels_of_the_maximum_stays_there() -> None:
    once = QSGD(3, "max").on_update({"u": numbers(500)}, ONE)
    torch.testing.assert_close(QSGD(3, "max").on_update(once, OTHER), once)


def test_its_mean_is_all_that_is_expected() -> None:
    assert QSGD().expected == NoDefence()
    assert flat(QSGD().on_update(an_update(), None)).equal(flat(an_update()))
