"""Attacks that answer labels alone."""

from __future__ import annotations

import pytest

from common.federation import view_of
from common.label_clients import GRADIENT, RNG, examples_of, one_client, task_of
from common.label_suite import LABELS_ALONE, LabelAttackSuite
from seepage.attacks import ATTACKS, Attack, CountLabels, InvertingGradients
from seepage.pieces.labels import Geng, LabelsHidden, guess_labels
from seepage.recipe import SGD, Recipe
from seepage.threat import THREATS

LABEL_ATTACKS = [CountLabels(), *(CountLabels(method) for method in ("geng-interpolated", "ilrg", "rlu"))]


@pytest.fixture(params=LABEL_ATTACKS, ids=str)
def attack(request: pytest.FixtureRequest) -> Attack:
    return request.param


class TestEveryLabelAttack(LabelAttackSuite):
    pass


def test_every_attack_without_inputs_is_in_the_list() -> None:
    assert {type(attack) for attack in LABEL_ATTACKS} == LABELS_ALONE
    assert set(ATTACKS.values()) >= LABELS_ALONE


def test_it_answers_what_the_method_says() -> None:
    view = view_of(task_of(), {str(s): examples_of(6, s) for s in range(2)}, Recipe(SGD(0.01), epochs=2))
    finding = CountLabels("geng-client", formula="weight", rounding="code")(view, RNG)
    expected = guess_labels(view, RNG / "labels", Geng("client", "weight", rounding="code"))
    assert finding.labels.equal(expected[0])
    assert finding.confidence.equal(expected[1])


def test_granted_labels_are_answered_as_certain() -> None:
    view, truth = one_client(task_of(), GRADIENT, 6, 0, THREATS["label-aware-server"])
    finding = CountLabels()(view, RNG)
    assert finding.labels[0].equal(truth.sort().values)
    assert finding.confidence.tolist() == [1]


def test_a_single_example_has_a_method_of_its_own() -> None:
    view, truth = one_client(task_of(), GRADIENT, 1, 0)
    assert CountLabels("idlg")(view, RNG).labels[0].equal(truth)
    view, _ = one_client(task_of(), GRADIENT, 2, 0)
    with pytest.raises(LabelsHidden, match="one example"):
        CountLabels("idlg")(view, RNG)


def test_an_unknown_method_is_answered_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"one of \['auto', 'idlg', .* got 'guess'"):
        CountLabels("guess")  # type: ignore[arg-type]


def test_the_preset_is_the_released_code() -> None:
    assert CountLabels(**CountLabels.presets["as_code"]) == CountLabels("geng-interpolated", "weight", "code")


def test_the_released_code_is_a_method_too_whose_parts_can_be_replaced() -> None:
    view, _ = one_client(task_of(), Recipe(SGD(0.1), epochs=3, batch_size=4, sends="weights"), 24, 0)
    named, code = CountLabels("geng-as-code"), CountLabels(**CountLabels.presets["as_code"])
    assert named(view, RNG).confidence.equal(code(view, RNG).confidence)
    assert named(view, RNG).labels.equal(code(view, RNG).labels)
    from_bias = CountLabels("geng-as-code", formula="bias")(view, RNG)
    assert from_bias.confidence.equal(CountLabels("geng-interpolated", rounding="code")(view, RNG).confidence)
    assert not from_bias.confidence.equal(named(view, RNG).confidence)


def test_attacks_that_reconstruct_inputs_say_how_sure_they_are_of_their_labels() -> None:
    view, _ = one_client(task_of(), GRADIENT, 3, 0)
    finding = InvertingGradients(steps=2)(view, RNG)
    assert finding.confidence.equal(guess_labels(view, RNG / "labels")[1])
