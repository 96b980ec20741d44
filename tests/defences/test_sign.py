"""Signs, and the slope that stands for them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.defence_suite import ONE, an_update
from common.nets import flat, numbers
from seepage.defences import Sign


@pytest.mark.parametrize("keep_zero", [False, True])
def test_one_is_left_of_every_entry(keep_zero: bool) -> None:
    u = torch.tensor([3.0, -0.1, 0.0, -7.0])
    sent = Sign(keep_zero=keep_zero).on_update({"u": u}, ONE)["u"]
    assert sent.tolist() == [1, -1, 0 if keep_zero else 1, -1]


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(0, 1000), st.booleans())
@settings(deadline=None, max_examples=40)
def test_signs_of_signs_are_the_same(shape: list[int], seed: int, scaled: bool) -> None:
    once = Sign(scaled=scaled).on_update({"u": numbers(*shape, seed=seed)}, ONE)
    torch.testing.assert_close(Sign(scaled=scaled).on_update(once, ONE), once)


def test_scaled_signs_keep_the_sum_of_magnitudes_of_each_tensor() -> None:
    sent = Sign(scaled=True).on_update(an_update(), ONE)
    for name, u in an_update().items():
        torch.testing.assert_close(sent[name].abs().sum(), u.abs().sum())
        assert sent[name].sign().equal(u.sign())


def test_the_expected_sign_is_a_tanh() -> None:
    update = an_update()
    plain = Sign(by_size=False).expected.on_update(update, ONE)
    sized = Sign(scaled=True, slope=2.0).expected.on_update(update, ONE)
    for name, u in update.items():
        torch.testing.assert_close(plain[name], torch.tanh(u))
        torch.testing.assert_close(sized[name], u.abs().mean() * torch.tanh(2 * u / u.abs().mean()))


def test_by_size_it_does_not_matter_how_large_gradients_are() -> None:
    small = {name: 1e-6 * u for name, u in an_update().items()}
    torch.testing.assert_close(Sign().on_update(small, None), Sign().on_update(an_update(), None))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_steep_tanh_is_the_sign(scaled: bool) -> None:
    defence = Sign(scaled=scaled, slope=1e9)
    torch.testing.assert_close(flat(defence.on_update(an_update(), None)), flat(defence.on_update(an_update(), ONE)))


@pytest.mark.parametrize("defence", [Sign(), Sign(scaled=True), Sign(keep_zero=True)])
def test_who_has_seen_signs_simulates_them_to_the_last_one(defence: Sign) -> None:
    sent = defence.on_update(an_update(), ONE)
    torch.testing.assert_close(defence.expected.given(sent).on_update(an_update(), None), sent)


def test_the_paper_goes_on_with_its_tanh() -> None:
    for preset in Sign.presets.values():
        paper = Sign(**preset)
        assert paper.expected.given(an_update()) == paper.expected


def test_signs_are_followed_down_the_share_of_the_guess_that_is_wrong() -> None:
    guess, sent = numbers(40, seed=1).requires_grad_(), numbers(40, seed=2).sign()
    signed = Sign().expected.given({"u": sent}).on_update({"u": guess}, None)["u"]
    (followed,) = torch.autograd.grad(((signed - sent) ** 2).mean(), guess)
    (share,) = torch.autograd.grad((-sent * guess).clamp(min=0).sum() / guess.abs().sum(), guess)
    torch.testing.assert_close(followed, 4 * share)
