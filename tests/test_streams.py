"""Named streams from one seed: repeatable, and one-way."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scipy import stats

from seepage.streams import Stream

ROOT = Stream.from_seed(0)
MASK = 2**64 - 1


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


def hashed_pair(stream: Stream, k: int) -> tuple[float, float]:
    """The k-th pair of `noise` as in the papers of SplitMix64 and of Box and Muller, in Python's integers."""
    bits = stream.seed + k * (int.from_bytes(stream.key[8:16], "little") | 1) & MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & MASK
    bits ^= bits >> 31
    size = math.sqrt(-2 * math.log(((bits >> 40) + 0.5) / 2**24))
    angle = 2 * math.pi * (bits % 2**24) / 2**24
    return size * math.cos(angle), size * math.sin(angle)


@pytest.mark.parametrize("stream", [ROOT, ROOT / "a", Stream(bytes(range(255, 223, -1)))])
def test_noise_is_a_hash_of_key_and_place(stream: Stream) -> None:
    pairs = [hashed_pair(stream, k) for k in (1, 2, 3)]
    expected = [p[0] for p in pairs] + [p[1] for p in pairs]
    torch.testing.assert_close(stream.noise(torch.zeros(6).double()), torch.tensor(expected).double())
    torch.testing.assert_close(stream.noise(torch.zeros(1, 5)), torch.tensor([expected[:5]]), rtol=1e-4, atol=1e-5)


def test_noise_is_standard_normal_and_independent() -> None:
    drawn = torch.stack([stream.noise(torch.zeros(100_000).double()) for stream in (ROOT / 0, ROOT / 1)])
    assert stats.kstest(drawn.flatten(), "norm").pvalue > 0.01
    assert (drawn**4).mean() == pytest.approx(3, abs=5 * math.sqrt(96 / drawn.numel()))
    for one, other in ((drawn[0], drawn[1]), (drawn[:, 1:], drawn[:, :-1]), (drawn[:, :50_000], drawn[:, 50_000:])):
        assert abs(float((one * other).mean())) < 5 / math.sqrt(one.numel())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_noise_is_the_same_on_a_gpu() -> None:
    here, there = (ROOT.noise(torch.zeros(1001, device=device)).cpu() for device in ("cpu", "cuda"))
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
