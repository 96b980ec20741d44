"""Every attack under the common suite, and what each promises beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from common.attack_suite import (
    CLASSES_ALONE,
    COMPUTED,
    GENERATED,
    MODELS_ALONE,
    RECORDS_KNOWN,
    SMALL_STEPS,
    TOKENS,
    AttackCase,
    AttackSuite,
)
from common.label_suite import LABELS_ALONE
from seepage.attacks import (
    ATTACKS,
    DLG,
    DLM,
    IDLG,
    ROG,
    SME,
    DLMPlus,
    FedAvg,
    FedSGD,
    FedSGDEpoch,
    InvertingGradients,
    NoPrior,
    SharedVariables,
    TabLeak,
    UnknownCount,
    UnknownSchedule,
)
from seepage.engine.optimisers import lbfgs

SEARCH = lbfgs(history=10, line_search="backtracking")
# The weights of dimitrov2022 are for images of 28 × 28 pixels and a network of 300 000 parameters.
SIMULATION: dict[str, Any] = {
    "tv": 1e-5, "clip": 0.1, "layer_decay": 0.0, "lr": 0.1, "decay": "cosine", "steps": 200, "starts": 4,
}  # fmt: skip
CASES = [
    AttackCase(InvertingGradients(tv=1e-4, lr=0.05, steps=150, starts=2), short=InvertingGradients(steps=6, starts=2)),
    AttackCase(TabLeak(steps=150, starts=2), short=TabLeak(steps=6, starts=3)),
    AttackCase(DLG(optimiser=SEARCH, steps=120, starts=4), short=DLG(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(IDLG(optimiser=SEARCH, steps=60), short=IDLG(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(DLM(optimiser=SEARCH, steps=120, starts=4), short=DLM(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(DLMPlus(optimiser=SEARCH, steps=120, starts=4), short=DLMPlus(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(ROG(factor=1, steps=150, starts=2), short=ROG(factor=2, steps=6, starts=2)),
    AttackCase(SME(tv=1e-4, lr=0.1, steps=150, starts=2), short=SME(steps=6, starts=2)),
    AttackCase(SME(curve="bezier", tv=1e-4, lr=0.1, steps=150), short=SME(curve="bezier", steps=6, starts=2)),
    AttackCase(FedAvg(1e-2, **SIMULATION), short=FedAvg(steps=6, starts=2)),
    AttackCase(NoPrior(**SIMULATION), short=NoPrior(steps=6, starts=2)),
    AttackCase(SharedVariables(**SIMULATION), short=SharedVariables(steps=6, starts=2)),
    AttackCase(FedSGDEpoch(**SIMULATION), short=FedSGDEpoch(steps=6, starts=2)),
    AttackCase(FedSGD(**SIMULATION), short=FedSGD(steps=6, starts=2), local=SMALL_STEPS),
    AttackCase(UnknownSchedule(FedAvg(1e-2, **SIMULATION)), short=UnknownSchedule(FedAvg(steps=6, starts=2))),
    AttackCase(UnknownCount(FedAvg(1e-2, **SIMULATION)), short=UnknownCount(FedAvg(steps=6, starts=2), (1, 2))),
]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> AttackCase:
    return request.param


class TestEveryAttack(AttackSuite):
    pass


def test_every_attack_that_can_be_named_is_in_the_list() -> None:
    # Those have tests of their own.
    others = TOKENS | LABELS_ALONE | COMPUTED | MODELS_ALONE | RECORDS_KNOWN | CLASSES_ALONE | GENERATED
    assert {type(case.attack) for case in CASES} == set(ATTACKS.values()) - others
    assert all(kind.name == name for name, kind in ATTACKS.items())
