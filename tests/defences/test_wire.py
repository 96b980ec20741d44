"""Bytes on the wire, against counts that a person can check."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.defence_suite import ONE
from common.nets import numbers
from seepage.defences import (
    DEFENCES,
    QSGD,
    Clip,
    Defence,
    GaussianNoise,
    GradientNoise,
    RandomPruning,
    Sign,
    TopK,
    UniformQuantise,
    WeightSparsify,
    chain,
)
from seepage.defences.wire import Wire

UPDATE = {"w": numbers(100, 10), "b": numbers(10, seed=1)}
DENSE = 4 * 1010


def size(defence: Defence) -> int:
    return defence.wire_bytes(defence.on_update(UPDATE, ONE))


@pytest.mark.parametrize(
    ("defence", "expected"),
    [
        (Clip(0.1), DENSE),
        (GaussianNoise(0.1), DENSE),
        (UniformQuantise(3), 375 + 4 + 4 + 4),  # 3000 and 30 bits, and two scales
        (UniformQuantise(8, stochastic=True), 1010 + 8),
        (QSGD(3), 375 + 4 + 4 + 4),  # seven values
        (QSGD(1), 250 + 3 + 8),  # three values
        (QSGD(4, "max"), 500 + 5 + 8),  # nine values
        (Sign(), 125 + 2),
        (Sign(scaled=True), 125 + 2 + 8),
        (Sign(keep_zero=True), 250 + 3),
        # One in 100: 4 bytes for how many, then an index of ten bits (or four) with each of the values.
        (TopK(0.01, per_tensor=True), 4 + ceil(10 * 42 / 8) + ceil((10 + 32) / 8)),  # the bias does with a bitmap
        (TopK(0.5, per_tensor=True), 125 + 2000 + ceil((10 + 5 * 32) / 8)),  # bitmaps
        (TopK(1.0), DENSE),
        (chain(TopK(0.01, per_tensor=True), UniformQuantise(3)), ceil((32 + 10 * 13) / 8) + 4 + ceil(13 / 8) + 4),
        (chain(TopK(0.01), GaussianNoise(0.1)), DENSE),  # noise leaves no zeros
        (chain(UniformQuantise(3), Clip(0.1)), 375 + 4 + 8),  # a factor changes the scales alone
        (chain(UniformQuantise(3), GaussianNoise(0.1)), DENSE),
        (chain(TopK(0.01), Sign()), 125 + 2),  # zeros become +1
        (chain(GradientNoise(0.1, where="step"), UniformQuantise(3)), 375 + 4 + 8),
        (chain(UniformQuantise(3), GradientNoise(0.1, where="update")), DENSE),
    ],
    ids=str,
)
def test_bytes_are_as_counted_by_hand(defence: Defence, expected: int) -> None:
    assert size(defence) == expected


def test_every_defence_has_a_size_and_none_is_larger_than_floats() -> None:
    for kind in DEFENCES.values():
        assert 0 < kind().wire_bytes(UPDATE) <= DENSE


def test_pruned_updates_and_sparse_weights_leave_zeros_out() -> None:
    defence = RandomPruning(0.9, "update")
    assert size(defence) < DENSE / 5
    assert size(replace(defence, where="step")) == DENSE
    weights = WeightSparsify(0.9)
    assert weights.wire_bytes(weights.on_weights(UPDATE, None)) < DENSE / 5


@pytest.mark.parametrize(("n", "index"), [(1024, 10), (1025, 11)])
def test_an_index_is_as_wide_as_the_tensor_is_long(n: int, index: int) -> None:
    sent = {"t": torch.cat([torch.ones(8), torch.zeros(n - 8)])}
    assert Wire(sparse=True).bytes(sent) == 4 + index + 32  # eight values: as many bytes as bits of each


def test_the_example_of_the_documentation_has_the_size_that_it_states() -> None:
    page = (Path(__file__).parents[2] / "docs" / "defences.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "wire" in block]
    *lines, last = code.strip().splitlines()
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    call, stated = last.split("  # ")
    assert f"{eval(call, names):,} bytes" in stated


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 32), st.booleans())
@settings(deadline=None, max_examples=60)
def test_leaving_zeros_out_never_costs_more_and_keeps_room_for_every_value(
    n: int, kept: int, bits: int, scales: bool
) -> None:
    kept = min(n, kept)
    tensor = {"t": torch.cat([torch.ones(kept), torch.zeros(n - kept)])}
    dense, sparse = (Wire(bits, scales, sparse).bytes(tensor) for sparse in (False, True))
    assert sparse <= dense == ceil(n * bits / 8) + 4 * scales
    assert sparse >= ceil(kept * bits / 8) + 4 * scales
