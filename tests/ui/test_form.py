from __future__ import annotations

import tomllib

import pytest

pytest.importorskip("tomli_w", reason="the extra seepage[ui] is not installed")

from seepage.audit.values import SpecError
from seepage.ui.form import CHOICES, START, as_toml, checked


def test_what_the_form_says_is_what_is_audited() -> None:
    form = {
        **START,
        "name": ['a "name"\n'],
        "defence": ["none", "top-k"],
        "attack": ["inverting-gradients", "count-labels"],
    }
    text = as_toml({**form, "batch": ["2"], "accuracy": ["yes"], "seed": ["7"]})
    experiment = checked(text)
    assert (experiment.name, experiment.seed, experiment.accuracy) == ('a "name"', 7, True)
    (case,) = experiment.cases
    assert [attack.name for attack in case.attacks] == ["inverting-gradients", "count-labels"]
    assert case.attacks[0].steps == 300  # type: ignore[attr-defined]
    assert [defence.name for defence in case.defences] == ["none", "top-k"]
    assert (case.recipe.batch_size, case.recipe.optimiser.lr, case.clients.count) == (2, 0.05, 20)


@pytest.mark.parametrize("kind", ["data", "model", "sends", "attack", "threat", "defence"])
def test_what_is_not_on_the_list_is_refused_by_name(kind: str) -> None:
    with pytest.raises(SpecError, match=f"^{kind}: expected"):
        as_toml({**START, kind: ["no such thing"]})


@pytest.mark.parametrize(
    ("field", "value"), [("count", "-1"), ("count", "0"), ("examples", "x"), ("lr", "fast"), ("seed", "")]
)
def test_what_is_not_a_number_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(SpecError, match=f"^{field}: expected"):
        as_toml({**START, field: [value]})


@pytest.mark.parametrize("sends", CHOICES["sends"])
def test_every_kind_of_message_can_be_asked_for(sends: str) -> None:
    table = tomllib.loads(as_toml({**START, "sends": [sends]}))
    assert table["recipe"]["sends"] == sends
    checked(as_toml({**START, "sends": [sends]}))


def test_text_that_is_no_experiment_is_refused() -> None:
    for text in ("[", "colour = 1", ""):
        with pytest.raises(SpecError):
            checked(text)
