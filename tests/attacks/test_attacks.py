"""Every attack under the common suite, and what each promises beyond it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.attack_suite import GRADIENT, RNG, STEPS, AttackCase, AttackSuite, clients, inputs_of
from common.federation import view_of
from common.nets import image_task, mlp
from seepage.attacks import ATTACKS, InvertingGradients
from seepage.defences import TopK
from seepage.threat import THREATS

CASES = [
    AttackCase(InvertingGradients(tv=1e-4, lr=0.05, steps=150, starts=2), short=InvertingGradients(steps=6, starts=2)),
]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> AttackCase:
    return request.param


class TestEveryAttack(AttackSuite):
    pass


def test_every_attack_that_can_be_named_is_in_the_list() -> None:
    assert {type(case.attack) for case in CASES} == set(ATTACKS.values())
    assert all(kind.name == name for name, kind in ATTACKS.items())


# Inverting gradients.


SHORT = InvertingGradients(steps=6)


def test_more_starts_never_explain_the_update_worse() -> None:
    view = view_of(image_task(mlp), clients(2), GRADIENT)
    one, four = (replace(SHORT, starts=starts)(view, RNG).objective for starts in (1, 4))
    assert (four <= one).all()


def test_inputs_stay_in_the_box_unless_they_may_leave_it() -> None:
    view = view_of(image_task(mlp), clients(2), GRADIENT)
    longer = replace(SHORT, steps=30)
    inside, outside = (inputs_of(replace(longer, boxed=boxed)(view, RNG)) for boxed in (True, False))
    assert float(inside.min()) >= 0
    assert float(inside.max()) <= 1
    assert not (float(outside.min()) >= 0 and float(outside.max()) <= 1)


@pytest.mark.parametrize("changed", [{"chunk": 1}, {"chunk": 3}, {"keep_every": 1}, {"keep_every": 2}])
def test_knobs_of_memory_change_no_number(changed: dict[str, int]) -> None:
    view = view_of(image_task(mlp), clients(2, 3), STEPS)
    plain = inputs_of(replace(SHORT, starts=2)(view, RNG))
    torch.testing.assert_close(inputs_of(replace(SHORT, starts=2, **changed)(view, RNG)), plain, rtol=1e-7, atol=1e-9)


def test_a_prior_of_smoothness_makes_images_smoother() -> None:
    view = view_of(image_task(mlp), clients(1), GRADIENT)
    rough, smooth = (inputs_of(replace(SHORT, steps=60, tv=tv)(view, RNG)) for tv in (0.0, 0.5))
    assert smooth.diff(dim=-1).abs().mean() < rough.diff(dim=-1).abs().mean()


def test_an_attacker_who_knows_the_defence_explains_the_update_better() -> None:
    task, attack = image_task(mlp), replace(SHORT, steps=100, lr=0.05)
    views = [
        view_of(task, clients(1), GRADIENT, threat=THREATS[name], defence=TopK(0.3), public=None)
        for name in ("honest-server", "informed-server")
    ]
    naive, aware = (attack(view, RNG).objective for view in views)
    assert (aware < naive).all()
