"""Dead leaves: seeded, in range, with edges, and with the spectrum of photographs."""

from __future__ import annotations

import torch

from seepage.data.dead_leaves import dead_leaves
from seepage.streams import Stream

RNG = Stream.from_seed(0)


def test_a_seed_repeats_them_and_another_does_not() -> None:
    one, again, other = (dead_leaves(2, 24, Stream.from_seed(s), leaves=20) for s in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)
    assert not one[0].equal(one[1])
    assert one.shape == (2, 3, 24, 24)
    assert 0 <= float(one.min()) <= float(one.max()) <= 1


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    dead_leaves(1, 16, RNG, leaves=5)
    assert before.equal(torch.get_rng_state())


def test_none_are_none() -> None:
    assert dead_leaves(0, 16, RNG).shape == (0, 3, 16, 16)


def test_power_falls_with_frequency_as_in_photographs() -> None:
    x = dead_leaves(16, 64, RNG).mean(1).double()  # grey
    power = torch.fft.rfft2(x - x.mean((1, 2), keepdim=True)).abs().square().mean(0)
    radius = (torch.fft.fftfreq(64)[:, None] ** 2 + torch.fft.rfftfreq(64)[None] ** 2).sqrt() * 64
    rings = torch.stack([power[(radius >= r) & (radius < 1.3 * r)].mean() for r in (2, 4, 8, 16)])
    slope = (rings.log()[-1] - rings.log()[0]) / torch.tensor(8.0).log()
    assert -3 < float(slope) < -1.2  # about −2 in photographs, 0 in noise
