"""Every cause, from attacks that fail for that very reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from common.attack_suite import RNG, pictures
from common.nets import CLASSES, batch_resnet, image_task, mlp, numbers
from seepage.attacks import InvertingGradients
from seepage.audit.diagnosis import (
    Cause,
    Evidence,
    answer_mismatches,
    diagnose,
    gather,
    mismatches,
    read_causes,
    write_causes,
)
from seepage.capture import Secret
from seepage.defences import Clip, Defence, GaussianNoise, NoDefence, TopK, WeightSparsify
from seepage.finding import Finding
from seepage.metrics.score import score
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Setting, View, observe

GRADIENT = Recipe(sends="gradient")
STEP = Recipe(SGD(0.1))
GOOD = InvertingGradients(tv=1e-4, lr=0.05, steps=150, starts=2)
SHORT = InvertingGradients(steps=3)

Attacker = Callable[[View, Stream], Finding]


def causes(
    task: Task,
    attack: Attacker,
    recipe: Recipe = GRADIENT,
    *,
    defence: Defence | None = None,
    examples: Examples | None = None,
    believed: torch.Tensor | None = None,
) -> tuple[Cause, ...]:
    """Play a round, attack its only client, and say why that failed.

    Args:
        task: what is learnt.
        attack: any.
        recipe: how the client trains.
        defence: of the client.
        examples: of the client.
        believed: labels that the attacker is told, which need not be true.
    """
    examples = pictures(1, 10) if examples is None else examples
    defence = defence or NoDefence()
    (only,) = play(task, [examples], recipe, Federation(), Stream.from_seed(0), defence=defence)
    (capture,) = only.captures
    setting = Setting(task, recipe, defence)
    (evidence,) = gather(capture.exchanges[-1:], [examples], setting)
    told = Secret("0", examples if believed is None else Examples(examples.x, believed))
    threat = THREATS["honest-server" if believed is None else "label-aware-server"]
    finding = attack(observe([(capture, told)], setting, threat), RNG)
    guess = None if finding.inputs is None else finding.inputs[0]
    labels = None if finding.labels is None else finding.labels[0]
    (fit,) = answer_mismatches(capture.exchanges[-1:], finding, [0], setting)
    return diagnose(evidence, finding, 0, score(guess, labels, examples, task.spec).scores, fit)


def certain(by: float, label: int) -> Task:
    """A network that is sure of one label, by so much in favour of it."""

    def build() -> nn.Module:
        net = mlp()
        assert isinstance(net, nn.Sequential)
        with torch.no_grad():
            net[-1].bias[label] = by  # type: ignore[index]
        return net

    return image_task(build)


@dataclass(frozen=True)
class Says:
    """An attack that always answers the same."""

    finding: Finding

    def __call__(self, view: View, rng: Stream) -> Finding:
        return self.finding


def test_nothing_is_to_be_explained_where_all_came_back() -> None:
    assert causes(image_task(), GOOD) == (Cause.RECOVERED,)


@pytest.mark.parametrize("recipe", [GRADIENT, STEP, replace(STEP, sends="weights")], ids=lambda recipe: recipe.sends)
def test_an_update_of_zeros_holds_nothing_and_comes_from_a_model_that_knows_all(recipe: Recipe) -> None:
    task = certain(1e4, int(pictures(1, 10).y))
    found = causes(task, SHORT, recipe)
    assert found[:2] == (Cause.ZERO_UPDATE, Cause.SATURATED)
    assert not set(found) & {Cause.STUCK, Cause.NOT_REDUCED, Cause.AMBIGUOUS}


@pytest.mark.parametrize("scale", [0.0, 1e-17])
def test_a_defence_that_leaves_rounding_leaves_nothing(scale: float) -> None:
    class Silence(Defence):
        name: ClassVar[str] = "silence"

        def on_update(self, update: dict[str, torch.Tensor], rng: Stream | None) -> dict[str, torch.Tensor]:
            return {name: scale * torch.ones_like(u) for name, u in update.items()}

    found = causes(image_task(), SHORT, STEP, defence=Silence())
    assert found[:2] == (Cause.ZERO_UPDATE, Cause.DEFENDED)


def test_what_the_model_is_certain_of_hardly_changes_it() -> None:
    found = causes(certain(15.0, int(pictures(1, 10).y)), SHORT)
    assert found[0] is Cause.SATURATED
    assert Cause.ZERO_UPDATE not in found
    assert Cause.SATURATED not in causes(certain(1.0, int(pictures(1, 10).y)), SHORT)


def test_a_regression_that_fits_its_targets_has_nothing_left_to_learn() -> None:
    x = numbers(2, 4)
    for far, expected in ((1e-4, True), (0.1, False)):
        task = Task(nn.Linear(4, 1, bias=False).double(), DataSpec((4,)))
        y = x @ task.params["weight"].T + far
        exchange = next(iter(play(task, [Examples(x, y)], STEP, Federation(), RNG))).captures[0].exchanges[0]
        assert gather([exchange], [Examples(x, y)], Setting(task, STEP))[0].certain is expected


def test_labels_that_are_believed_wrongly_are_named() -> None:
    examples = pictures(1, 10)
    assert Cause.LABELS_WRONG in causes(image_task(), GOOD, examples=examples, believed=(examples.y + 1) % CLASSES)
    assert Cause.LABELS_WRONG not in causes(image_task(), SHORT, examples=examples, believed=examples.y)


def test_batches_normalised_by_their_own_statistics_are_named_in_train_mode_alone() -> None:
    task, examples = image_task(batch_resnet), pictures(3, 10)
    for mode, expected in (("train", True), ("eval", False)):
        found = causes(task, SHORT, replace(STEP, batch_norm=mode), examples=examples)  # type: ignore[arg-type]
        assert (Cause.BATCH_NORM in found) is expected
    assert Cause.BATCH_NORM not in causes(image_task(), SHORT, STEP)


@pytest.mark.parametrize("defence", [GaussianNoise(1.0), TopK(0.05), WeightSparsify(0.5), Clip(1e-3)], ids=str)
def test_a_defence_that_changed_the_update_is_named(defence: Defence) -> None:
    assert causes(image_task(), SHORT, STEP, defence=defence)[0] is Cause.DEFENDED


@pytest.mark.parametrize("defence", [GaussianNoise(1e-9), TopK(1.0), WeightSparsify(0.0), Clip(1e9)], ids=str)
def test_a_defence_that_did_nothing_is_no_excuse(defence: Defence) -> None:
    assert Cause.DEFENDED not in causes(image_task(), SHORT, STEP, defence=defence)


def test_a_search_that_runs_away_diverged() -> None:
    # Tanh would hide a candidate of any size; without it the simulated gradient overflows.
    task = image_task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, CLASSES)))
    assert Cause.DIVERGED in causes(task, InvertingGradients(lr=1e300, steps=5, boxed=False))


def test_a_search_without_steps_worth_the_name_made_no_progress() -> None:
    assert Cause.NOT_REDUCED in causes(image_task(), InvertingGradients(lr=1e-30, steps=3, boxed=False))


def test_a_search_that_was_cut_short_ended_far_from_explaining_the_update() -> None:
    assert causes(image_task(), SHORT) == (Cause.STUCK,)


def test_other_data_fit_as_well_where_the_module_sees_little_of_them() -> None:
    # Only the mean of each half reaches the first layer: many pictures have the same gradient.
    task = image_task(
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    )
    assert causes(task, InvertingGradients(tv=0.0, lr=0.05, steps=150, starts=2)) == (Cause.AMBIGUOUS,)


@pytest.mark.parametrize("defence", [NoDefence(), GaussianNoise(0.01), TopK(0.05)], ids=str)
def test_the_true_data_explain_an_update_as_well_as_they_do_themselves(defence: Defence) -> None:
    task, examples = image_task(), pictures(2, 10)
    (only,) = play(task, [examples], STEP, Federation(), RNG, defence=defence)
    exchange, setting = only.captures[0].exchanges[0], Setting(task, STEP, defence)
    truth = gather([exchange], [examples], setting)[0].mismatch
    answer = Finding(examples.x.flip(0)[None], examples.y.flip(0)[None])
    assert answer_mismatches([exchange], answer, [0], setting)[0] == pytest.approx(truth, abs=1e-9)
    assert mismatches([exchange], [pictures(2, 11)], setting)[0] > truth + 0.01
    if not isinstance(defence, GaussianNoise):  # noise is what nobody can simulate
        assert truth == pytest.approx(0.0, abs=1e-9)


def test_an_answer_that_fits_noise_as_well_as_the_truth_does_is_another_that_fits() -> None:
    examples, close = pictures(1, 10), pictures(1, 10).x + 0.2
    answer = Says(Finding(close[None].clamp(0, 1), examples.y[None]))
    assert causes(image_task(), answer, STEP, defence=GaussianNoise(10.0)) == (Cause.DEFENDED, Cause.AMBIGUOUS)


@pytest.mark.parametrize(
    "finding",
    [
        Finding(pictures(2, 10).x[None]),
        Finding(labels=pictures(2, 10).y[None]),
        Finding(pictures(2, 10).x[None], pictures(1, 10).y[None]),
        Finding(pictures(2, 10).x[None] * torch.nan, pictures(2, 10).y[None]),
        Finding(pictures(2, 10).x[None], torch.tensor([[0, -1]])),
        Finding(pictures(2, 10).x[None], torch.tensor([[0, CLASSES]])),
    ],
    ids=["no labels", "no inputs", "too few labels", "not finite", "no such label", "a label too many"],
)
def test_an_answer_that_no_client_could_train_on_explains_nothing(finding: Finding) -> None:
    task = image_task()
    (only,) = play(task, [pictures(2, 10)], STEP, Federation(), RNG)
    assert math.isnan(answer_mismatches(only.captures[0].exchanges, finding, [0], Setting(task, STEP))[0])


def test_examples_without_a_guess_are_named() -> None:
    examples = pictures(2, 10)
    half = examples.x.clone()
    half[1] = torch.nan
    for inputs in (half, examples.x[:1]):
        assert causes(image_task(), Says(Finding(inputs[None])), examples=examples) == (Cause.NO_GUESS,)
    assert causes(image_task(), Says(Finding(examples.x[None])), examples=examples) == (Cause.RECOVERED,)


def test_an_attack_on_labels_alone_is_judged_by_them() -> None:
    examples = pictures(2, 10)
    right, wrong = (Says(Finding(labels=y[None])) for y in (examples.y.flip(0), (examples.y + 1) % CLASSES))
    assert causes(image_task(), right, examples=examples) == (Cause.RECOVERED,)
    assert causes(image_task(), wrong, examples=examples) == (Cause.LABELS_WRONG,)


def test_a_label_that_is_not_named_is_no_wrong_label() -> None:
    examples = pictures(2, 10)
    inputs, labels = examples.x.clone(), examples.y.clone()
    inputs[1], labels[1] = torch.nan, -1
    for finding in (Finding(inputs[None], labels[None]), Finding(labels=labels[None])):
        assert causes(image_task(), Says(finding), examples=examples) == (Cause.NO_GUESS,)


def test_an_attack_on_features_is_judged_by_them() -> None:
    finding, real = Finding(features=numbers(1, 2, 5), layer="3"), numbers(2, 5)
    examples = pictures(2, 10)
    spec = image_task().spec
    for found, expected in ((real, Cause.RECOVERED), (2 * real, Cause.UNEXPLAINED)):
        scores = score(None, None, examples, spec, features=(found, real)).scores
        assert diagnose(Evidence(2), finding, 0, scores) == (expected,)


def test_examples_without_features_have_no_guess() -> None:
    real = numbers(2, 5)
    half = torch.stack([real[0], real[1] * torch.nan])
    scores = score(None, None, pictures(2, 10), image_task().spec, features=(half, real)).scores
    assert diagnose(Evidence(2), Finding(features=half[None], layer="3"), 0, scores) == (Cause.NO_GUESS,)


def test_right_labels_are_no_excuse_for_who_set_out_for_inputs() -> None:
    examples = pictures(1, 10)
    nothing = Says(Finding(examples.x[None] * torch.nan, examples.y[None]))
    assert causes(image_task(), nothing, examples=examples) == (Cause.NO_GUESS,)


def test_labels_are_not_hidden_by_what_mixes_examples() -> None:
    examples = pictures(3, 10)
    wrong = Says(Finding(labels=((examples.y + 1) % CLASSES)[None]))
    assert causes(image_task(batch_resnet), wrong, STEP, examples=examples) == (Cause.LABELS_WRONG,)


def test_rows_of_a_table_came_back_when_nearly_all_their_features_did() -> None:
    truth, spec = Examples(numbers(2, 20), torch.tensor([0, 1])), DataSpec((20,), classes=2)
    for wrong, expected in ((1, Cause.RECOVERED), (10, Cause.UNEXPLAINED)):
        guess = truth.x.clone()
        guess[:, :wrong] += 1
        assert diagnose(Evidence(2), Finding(guess[None]), 0, score(guess, None, truth, spec).scores) == (expected,)


def test_an_answer_that_is_wrong_for_no_visible_reason_is_not_explained_away() -> None:
    grey = Finding(torch.full((1, 1, 1, 6, 6), 0.5, dtype=torch.float64))
    assert causes(image_task(), Says(grey)) == (Cause.UNEXPLAINED,)


def test_of_several_causes_the_one_that_explains_most_comes_first() -> None:
    examples: Any = pictures(3, 10)
    found = causes(
        image_task(batch_resnet),
        SHORT,
        STEP,
        defence=GaussianNoise(1.0),
        examples=examples,
        believed=(examples.y + 1) % CLASSES,
    )
    assert found[:3] == (Cause.DEFENDED, Cause.LABELS_WRONG, Cause.BATCH_NORM)
    assert list(found) == sorted(found, key=list(Cause).index)


def test_causes_are_written_and_read_again() -> None:
    assert read_causes(write_causes(Cause)) == tuple(Cause)
    assert read_causes("a-cause-of-tomorrow") == (Cause.UNEXPLAINED,)
    for cause in Cause:
        assert cause.label
        assert cause.sentence.endswith(".")


def test_steps_that_the_attacker_was_not_told_of_explain_more_than_the_search() -> None:
    task, examples = image_task(), pictures(1, 10)
    for epochs, told, expected in ((3, False, True), (3, True, False), (1, False, False)):
        recipe = Recipe(SGD(0.1), epochs=epochs)
        (only,) = play(task, [examples], recipe, Federation(), Stream.from_seed(0))
        (evidence,) = gather(only.captures[0].exchanges[-1:], [examples], Setting(task, recipe), told)
        assert evidence.untold is expected
        finding = Finding(torch.zeros(1, *examples.x.shape), examples.y[None], status=torch.tensor([0]))
        found = diagnose(
            evidence, finding, 0, score(finding.inputs[0], examples.y, examples, task.spec).scores, fit=1.0
        )
        assert (Cause.UNTOLD in found, Cause.STUCK in found) == (expected, not expected)
