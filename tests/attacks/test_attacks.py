"""Every attack under the common suite, and what each promises beyond it."""

from __future__ import annotations

import pytest

from common.attack_suite import (
    COMPUTED,
    SMALL_STEPS,
    AttackCase,
    AttackSuite,
)
from common.label_suite import LABELS_ALONE
from seepage.attacks import ATTACKS, DLG, DLM, IDLG, DLMPlus, InvertingGradients
from seepage.engine.optimisers import lbfgs

SEARCH = lbfgs(history=10, line_search="backtracking")
CASES = [
    AttackCase(InvertingGradients(tv=1e-4, lr=0.05, steps=150, starts=2), short=InvertingGradients(steps=6, starts=2)),
    AttackCase(DLG(optimiser=SEARCH, steps=120, starts=4), short=DLG(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(IDLG(optimiser=SEARCH, steps=60), short=IDLG(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(DLM(optimiser=SEARCH, steps=120, starts=4), short=DLM(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(DLMPlus(optimiser=SEARCH, steps=120, starts=4), short=DLMPlus(steps=6, starts=2), local=SMALL_STEPS),
]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> AttackCase:
    return request.param


class TestEveryAttack(AttackSuite):
    pass


def test_every_attack_that_can_be_named_is_in_the_list() -> None:
    others = LABELS_ALONE | COMPUTED  # those have tests of their own
    assert {type(case.attack) for case in CASES} == set(ATTACKS.values()) - others
    assert all(kind.name == name for name, kind in ATTACKS.items())
