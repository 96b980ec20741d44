"""Uniform quantisation: what it leaves, and how far that is from what came."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.defence_suite import ONE, an_update
from common.nets import flat, numbers
from seepage.defences import NoDefence, UniformQuantise
from seepage.defences.uniform_quantise import Rounded, on_levels

SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple)


@given(SHAPES, st.integers(2, 12), st.booleans(), st.integers(0, 1000), st.floats(1e-6, 1e6))
@settings(deadline=None, max_examples=60)
def test_every_entry_is_on_one_of_the_levels_around_it(
    shape: tuple[int, ...], bits: int, stochastic: bool, seed: int, size: float
) -> None:
    u = size * numbers(*shape, seed=seed)
    defence = UniformQuantise(bits, stochastic)
    sent = defence.on_update({"u": u}, ONE / seed)["u"]
    step = u.abs().max() / defence.levels
    places = sent / step
    torch.testing.assert_close(places, places.round(), rtol=0, atol=1e-9)
    assert float((sent - u).abs().max() / step) <= (1 if stochastic else 0.5) + 1e-9
    assert float(sent.abs().max()) == float(u.abs().max())  # the largest entry is a level


@given(SHAPES, st.integers(2, 12), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_what_is_on_the_levels_stays_there(shape: tuple[int, ...], bits: int, seed: int) -> None:
    defence = UniformQuantise(bits)
    once = defence.on_update({"u": numbers(*shape, seed=seed)}, ONE)
    assert defence.on_update(once, ONE)["u"].equal(once["u"])


@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (3, 3), (5, 15)])
def test_as_many_values_as_the_released_code_has(bits: int, levels: int) -> None:
    u = torch.linspace(-1, 0.999, 5000, dtype=torch.float64)
    sent = UniformQuantise(bits).on_update({"u": u}, ONE)["u"]
    assert len(sent.unique()) == 2 * levels + 1
    top = u.abs().max()
    as_code = top / levels * u.sign() * (u / top * levels).abs().round()  # compressor.py, UniformQuantizer
    torch.testing.assert_close(sent, as_code)


def test_stochastic_rounding_is_right_on_average() -> None:
    u, draws = numbers(40), 4000
    defence = UniformQuantise(3, stochastic=True)
    sent = torch.stack([defence.on_update({"u": u}, ONE / i)["u"] for i in range(draws)])
    step = u.abs().max() / defence.levels
    up = (u.abs() / step).frac()
    error = step * (up * (1 - up) / draws).sqrt()  # of the mean of so many draws
    assert ((sent.mean(0) - u).abs() <= 4.5 * error + 1e-9).all()


def test_many_bits_change_next_to_nothing() -> None:
    sent = UniformQuantise(32).on_update(an_update(), ONE)
    torch.testing.assert_close(flat(sent), flat(an_update()), rtol=0, atol=1e-9)


def test_without_a_stream_and_as_expected_the_update_is_as_it_was() -> None:
    assert UniformQuantise(3, stochastic=True).expected == NoDefence()
    assert UniformQuantise(3).expected == Rounded(3)
    assert flat(UniformQuantise(3).on_update(an_update(), None)).equal(flat(an_update()))


def test_after_the_message_is_seen_the_truth_explains_it_to_the_last_entry() -> None:
    u = {"w": numbers(40, 100) ** 3, "b": numbers(50), "zero": torch.zeros(3)}
    sent = UniformQuantise(3).on_update(u, ONE)
    simulated = UniformQuantise(3).expected.given(sent).on_update(u, None)
    assert all(simulated[name].equal(s) for name, s in sent.items())


def test_the_simulated_rounding_has_the_slope_of_the_identity() -> None:
    u = numbers(20).requires_grad_()
    rounded = Rounded(3).given({"w": u.detach()}).on_update({"w": u}, None)["w"]
    (slope,) = torch.autograd.grad((rounded * torch.arange(20)).sum(), u)
    torch.testing.assert_close(slope, torch.arange(20.0).to(slope))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-37, 1e-30, 1e30])
def test_entries_of_any_size_find_their_levels(dtype: torch.dtype, size: float) -> None:
    u = torch.tensor([1.0, -0.5, 0.0], dtype=dtype) * size
    for rng in (None, ONE):
        assert (on_levels(u, u.abs().max(), 2, rng) - u).abs().max() <= size * 1e-6
