"""Knobs are chosen by what the attacker sees, and where they are not, every row says so."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.audits import perform
from common.walk import assert_no_path_to
from seepage.audit import tune as tuning_module
from seepage.audit.diagnosis import mismatches
from seepage.audit.experiment import read_experiment
from seepage.audit.perform import answer, ask, stage
from seepage.audit.scene import played, set_scene
from seepage.audit.tune import Tried, explains, read_tuning, tune, tuned_table, write_tuned
from seepage.audit.values import SpecError
from seepage.finding import Finding
from seepage.streams import Stream
from seepage.task import TooFewOutputs

pytest.importorskip("optuna", reason="pip install 'seepage[tune]'")
pytest.importorskip("tomli_w", reason="pip install 'seepage[tune]'")
CPU = torch.device("cpu")
SPEC = """
clients = { count = 2, examples = 1 }
model = { name = "mlp", options = { hidden = [8] } }
recipe = { sends = "gradient" }
attack = ["count-labels", { name = "inverting-gradients", steps = 15 }]

[tune]
attack = "inverting-gradients"
tries = 5
knobs = { lr = { low = 0.0001, high = 1.0, log = true }, starts = { choices = [1, 2] } }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def test_the_best_of_what_was_tried_explains_the_update_best(spec: Path, tmp_path: Path) -> None:
    experiment, tuning, knobs, _ = read_tuning(spec)
    heard: list[Tried] = []
    tried = tune(experiment, tuning, knobs, tmp_path / "out", CPU, listener=heard.append)
    assert len(heard) == len(tried) == 5
    assert tried == sorted(heard, key=lambda one: one.value)
    assert all(0.0001 <= one.knobs["lr"] <= 1 and one.knobs["starts"] in (1, 2) for one in tried)
    # Tried again by hand, the best gives the same number, and the worst a worse one.
    trial = next(t for t in experiment.trials() if t.label == "inverting-gradients")
    for one in (tried[0], tried[-1]):
        scene = set_scene(replace(trial, attack=replace(trial.attack, **one.knobs)), CPU, None)
        (group,) = stage(scene, played(scene), CPU)
        finding = answer(ask(scene, group)).finding
        gaps = explains(ask(scene, group).view, finding)
        assert float(gaps.mean()) == pytest.approx(one.value)
    assert tried[0].value < tried[-1].value


def test_a_second_call_goes_on_and_another_question_begins_anew(spec: Path, tmp_path: Path) -> None:
    experiment, tuning, knobs, _ = read_tuning(spec)
    first = tune(experiment, replace(tuning, tries=2), knobs, tmp_path, CPU)
    heard: list[Tried] = []
    both = tune(experiment, replace(tuning, tries=3), knobs, tmp_path, CPU, listener=heard.append)
    assert len(heard) == 1
    assert all(one in both for one in first)
    other = tune(experiment, replace(tuning, tries=1, on="objective"), knobs, tmp_path, CPU)
    assert len(other) == 1


def test_who_tunes_on_the_view_is_handed_no_secret(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, tuning, knobs, _ = read_tuning(spec)
    handed: list[Any] = []

    def search(attack: Any, places: Any, tries: int, worth: Any, *rest: Any) -> list[Tried]:
        handed.append(worth)
        return [Tried({}, 0.0)]

    monkeypatch.setattr(tuning_module, "_search", search)
    monkeypatch.setattr(Stream, "__reduce__", object.__reduce__)
    trial = next(t for t in experiment.trials() if t.label == "inverting-gradients")
    secrets = [secret for _, secret in played(set_scene(trial, CPU, None))]
    tune(experiment, tuning, knobs, tmp_path, CPU)
    (questions,) = (cell.cell_contents for cell in handed[0].__closure__ if isinstance(cell.cell_contents, list))
    for question in questions:
        assert_no_path_to(secrets, (question.attack, question.view))
    tune(experiment, replace(tuning, on="psnr"), knobs, tmp_path, CPU)
    with pytest.raises(AssertionError):
        assert_no_path_to(secrets, handed[1])


def test_the_attackers_measure_is_the_auditors_where_both_know_the_recipe(spec: Path) -> None:
    trial = next(t for t in read_experiment(spec).trials() if t.label == "inverting-gradients")
    scene = set_scene(trial, CPU, None)
    pairs = played(scene)
    (group,) = stage(scene, pairs, CPU)
    view = ask(scene, group).view
    x, y = torch.rand(2, 1, 1, 28, 28), torch.tensor([[1], [2]])
    ours = explains(view, Finding(x, y))
    believed = [replace(secret.examples, x=x[i], y=y[i]) for i, (_, secret) in enumerate(pairs)]
    theirs = mismatches([capture.exchanges[-1] for capture, _ in pairs], believed, scene.setting)
    assert ours.tolist() == pytest.approx(theirs)
    assert explains(view, Finding(labels=y)) is None


@pytest.mark.parametrize("on", ["mismatch", "psnr"])
def test_the_file_that_is_written_runs_and_says_what_was_looked_at(on: str, spec: Path, tmp_path: Path) -> None:
    experiment, tuning, _, table = read_tuning(spec)
    best = Tried({"lr": 0.25, "starts": 2}, -9.5)
    path = write_tuned(tmp_path / "tuned.toml", tuned_table(table, experiment, replace(tuning, on=on), best))
    assert "tune" not in tomllib.loads(path.read_text())
    rows = perform(read_experiment(path), tmp_path / "out").read()
    assert set(rows["attack"]) == {"inverting-gradients"}
    assert rows["attack_settings"].str.contains("lr=0.25").all()
    assert set(rows["threat"]) == {"honest-server, tuned on truth" if on == "psnr" else "honest-server"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr = {", "speed = {", "spec.toml: tune.knobs: expected a knob of 'inverting-gradients', got 'speed'"),
        ('"inverting-gradients"\ntries', '"dlg"\ntries', "tune.attack: expected one of .*, got 'dlg'"),
        ("tries = 5", "tries = 0", "tune: expected `tries` of at least 1, got 0"),
        ("tries = 5", 'on = "beauty"', "expected `on` to be 'mismatch', 'objective' or a metric, got 'beauty'"),
        ("choices = [1, 2]", "low = 1", "knobs.starts: expected `low` and `high`, or `choices`"),
        ("[tune]", "[other]", r"expected a table `\[tune\]` with `knobs`, got none"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(old: str, new: str, message: str, spec: Path) -> None:
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new, 1))
    with pytest.raises(SpecError, match=message):
        read_tuning(spec)


def test_ones_own_attack_is_tuned_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tunedcode.py").write_text(
        "from seepage.attacks import InvertingGradients\n\n\nclass Mine(InvertingGradients):\n    name = 'mine'\n"
    )
    path = tmp_path / "own.toml"
    path.write_text(
        SPEC.replace('{ name = "inv', '{ name = "tunedcode:Mine" }, { name = "inv').replace('k = "inv', 'k = "mine" # ')
    )
    experiment, tuning, knobs, table = read_tuning(path)
    assert set(knobs) == {"lr", "starts"}
    tuned = tuned_table(table, experiment, tuning, Tried({"lr": 0.25}, 0.5))
    assert tuned["attack"] == [{"name": "tunedcode:Mine", "lr": 0.25}]


def test_a_network_that_does_not_fit_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "thin.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 5))\n"
    )
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.replace('{ name = "mlp", options = { hidden = [8] } }', '{ name = "thin:net" }'))
    experiment, tuning, knobs, _ = read_tuning(path)
    with pytest.raises(TooFewOutputs, match=r"spec\.toml: model\.options: expected at least 10 outputs"):
        tune(experiment, tuning, knobs, tmp_path / "out", CPU)


def test_a_list_of_choices_needs_no_table(spec: Path) -> None:
    written_out = read_tuning(spec)[2]
    spec.write_text(SPEC.replace("{ choices = [1, 2] }", "[1, 2]"))
    assert read_tuning(spec)[2] == written_out


def test_an_attack_without_inputs_has_no_mismatch(spec: Path, tmp_path: Path) -> None:
    experiment, tuning, _, _ = read_tuning(spec)
    with pytest.raises(SpecError, match=r"tune.on: expected an attack that says its 'mismatch', got 'count-labels'"):
        tune(experiment, replace(tuning, attack="count-labels"), {}, tmp_path, CPU)


def test_a_list_in_the_place_of_a_knob_is_a_grid() -> None:
    from common.audits import tiny

    attack = [{"name": "inverting-gradients", "steps": [1, 2], "tv": [0.0, 0.1]}, "count-labels"]
    found = [(t.attack.steps, t.attack.tv) for t in tiny(attack=attack).trials() if t.label != "count-labels"]
    assert found == [(1, 0.0), (1, 0.1), (2, 0.0), (2, 0.1)]
