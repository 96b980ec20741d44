"""Every defence under the common suite, and what each promises beyond it."""

from __future__ import annotations

import pytest
import torch

from common.defence_suite import ONE, OTHER, DefenceCase, DefenceSuite, an_update
from common.nets import flat, numbers
from seepage.defences import DEFENCES, Clip, GaussianNoise, NoDefence, TopK, chain
from seepage.defences.base import Chain

CASES = [
    DefenceCase(NoDefence(), off=NoDefence()),
    DefenceCase(GaussianNoise(0.05), off=GaussianNoise(0.0)),
    DefenceCase(Clip(0.05), off=Clip(1e30)),
    DefenceCase(TopK(0.2), off=TopK(1.0)),
    DefenceCase(chain(Clip(0.05), GaussianNoise(0.01), TopK(0.5)), off=chain(Clip(1e9), GaussianNoise(0.0), TopK(1.0))),
]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> DefenceCase:
    return request.param


class TestEveryDefence(DefenceSuite):
    pass


def test_every_defence_that_can_be_named_is_in_the_list() -> None:
    assert {type(case.defence) for case in CASES} - {Chain} == set(DEFENCES.values())
    assert all(kind.name == name for name, kind in DEFENCES.items())


# Noise.


@pytest.mark.parametrize("std", [0.01, 1.0, 20.0])
def test_noise_has_the_stated_deviation_and_no_mean(std: float) -> None:
    update = {"a": numbers(100, 100), "b": numbers(100, 100, seed=1)}
    noise = flat(GaussianNoise(std).on_update(update, ONE)) - flat(update)
    assert float(noise.std()) == pytest.approx(std, rel=0.03)
    assert abs(float(noise.mean())) < 0.03 * std
    a, b = noise.reshape(2, -1)
    assert abs(float((a * b).mean())) < 0.03 * std**2  # tensors have noise of their own


def test_noise_differs_from_stream_to_stream() -> None:
    one, other = (GaussianNoise(0.1).on_update(an_update(), rng) for rng in (ONE, OTHER))
    assert not flat(one).equal(flat(other))


def test_all_that_is_expected_of_noise_is_nothing() -> None:
    assert GaussianNoise(0.1).expected == NoDefence()


# Clipping.


@pytest.mark.parametrize("norm", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_bounds_the_norm_and_keeps_the_direction(norm: float, dtype: torch.dtype) -> None:
    update = an_update(dtype)
    clipped = flat(Clip(norm).on_update(update, None))
    assert float(clipped.norm()) == pytest.approx(norm, rel=1e-5)
    torch.testing.assert_close(clipped / clipped.norm(), flat(update) / flat(update).norm())


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-3, 0.99])
@pytest.mark.parametrize("norm", [0.3, 1.0, 7.0, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_leaves_small_updates_alone(scale: float, norm: float, dtype: torch.dtype) -> None:
    length = flat(an_update(dtype)).norm()
    small = {name: u / length * scale * norm for name, u in an_update(dtype).items()}
    assert flat(Clip(norm).on_update(small, None)).equal(flat(small))


@pytest.mark.parametrize("norm", [1e25, float("inf")])
def test_clipping_to_a_huge_norm_is_no_clipping(norm: float) -> None:
    update = an_update(torch.float32)
    assert flat(Clip(norm).on_update(update, None)).equal(flat(update))


# Sparsification.


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.5, 0.99, 1.0])
def test_exactly_the_largest_entries_are_kept_over_all_tensors(share: float) -> None:
    update = an_update()
    kept = flat(TopK(share).on_update(update, None))
    k = max(1, round(share * len(kept)))
    assert int((kept != 0).sum()) == k
    everything = flat(update)
    assert set(everything.abs().topk(k).indices.tolist()) == set(kept.nonzero().flatten().tolist())
    assert kept[kept != 0].equal(everything[kept != 0])


# Chains and settings.


def test_a_chain_of_nothing_is_no_defence_and_of_one_is_that_one() -> None:
    assert chain() == NoDefence()
    assert chain(Clip(2.0)) == Clip(2.0)


def test_order_matters_in_a_chain() -> None:
    noisy_last = chain(Clip(0.1), GaussianNoise(1.0)).on_update(an_update(), ONE)
    clipped_last = chain(GaussianNoise(1.0), Clip(0.1)).on_update(an_update(), ONE)
    assert float(flat(clipped_last).norm()) <= 0.1 + 1e-9 < float(flat(noisy_last).norm())


def test_parts_of_a_chain_draw_from_streams_of_their_own() -> None:
    once = chain(GaussianNoise(1.0), NoDefence()).on_update(an_update(), ONE)
    twice = chain(GaussianNoise(1.0), GaussianNoise(1.0)).on_update(an_update(), ONE)
    first = flat(once) - flat(an_update())
    assert not torch.allclose(flat(twice) - flat(once), first)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianNoise(-0.1), "`std` of at least 0, got -0.1"),
        (lambda: Clip(0.0), "`norm` above 0, got 0.0"),
        (lambda: TopK(0.0), r"`share` in \(0, 1\], got 0.0"),
        (lambda: TopK(1.5), r"`share` in \(0, 1\], got 1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
