"""Named streams from one seed: repeatable, and one-way."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from seepage.streams import Stream

ROOT = Stream.from_seed(0)


def test_a_name_means_the_same_numbers_in_every_run() -> None:
    one, other = ROOT / "client" / 3, Stream.from_seed(0) / "client" / 3
    assert one == other
    assert one.normal(4).equal(other.normal(4))
    assert torch.randperm(9, generator=one.generator()).equal(torch.randperm(9, generator=other.generator()))


def test_seeds_names_depths_and_kinds_of_names_all_differ() -> None:
    streams = [
        ROOT, Stream.from_seed(1), ROOT / "a", ROOT / "b", ROOT / "a" / "b", ROOT / "b" / "a", ROOT / "ab",
        ROOT / 1, ROOT / "1", ROOT / 11, ROOT / 1 / 1, ROOT / "a/str:b",
    ]  # fmt: skip
    assert len({stream.key for stream in streams}) == len(streams)
    assert len({stream.seed for stream in streams}) == len(streams)
    assert len({tuple(stream.normal(3).tolist()) for stream in streams}) == len(streams)


def test_the_attacks_stream_does_not_lead_to_the_clients() -> None:
    """Nothing below the attack's stream is the client's: keys are hashes of their parents' keys."""
    client = ROOT / "round" / 0 / "client" / "3"
    names = ["round", 0, "client", "3", "dropout", "orders", "update", "data", "attack"]
    reached, front = {ROOT / "attack"}, [ROOT / "attack"]
    for _ in range(3):
        front = [stream / name for stream in front for name in names]
        reached.update(front)
    secrets = {client, *(client / name for name in ("dropout", "orders", "update", "data")), ROOT}
    assert not {s.key for s in reached} & {s.key for s in secrets}
    assert not {s.seed for s in reached} & {s.seed for s in secrets}
    assert {field.name for field in dataclasses.fields(Stream)} == {"key"}  # no way up


def test_a_stream_does_not_print_its_key() -> None:
    assert ROOT.key.hex() not in repr(ROOT)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_have_the_asked_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    drawn = ROOT.normal(*shape, dtype=dtype)
    assert drawn.shape == shape
    assert drawn.dtype == dtype
    torch.testing.assert_close(drawn.double(), ROOT.normal(*shape, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_drawing_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    ROOT.normal(5)
    torch.rand(3, generator=ROOT.generator())
    assert state.equal(torch.get_rng_state())
