"""The doctor finds what would mislead an attack, and says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from common.nets import CLASSES, IMAGE, batch_resnet, cnn, images, mlp, seeded
from seepage.capture import Capture, Secret
from seepage.defences import Clip, Defence, GaussianNoise, NoDefence
from seepage.inspect.doctor import Check, Examination, doctor
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task

RECIPE = Recipe(SGD(0.1), sends="weights", shuffle=False)
SPEC = DataSpec(IMAGE, classes=CLASSES)


def task_of(build: object) -> Task:
    return Task(seeded(build), SPEC)  # type: ignore[arg-type]


def captured(
    task: Task, recipe: Recipe = RECIPE, defence: Defence | None = None, n: int = 4
) -> tuple[Capture, dict[str, Secret]]:
    (only,) = play(task, [images(n)], recipe, Federation(), Stream.from_seed(0), defence=defence or NoDefence())
    return only.captures[0], {only.captures[0].client: only.secrets[0]}


def check(examination: Examination, name: str) -> Check:
    (found,) = [one for one in examination.checks if one.name == name]
    return found


def leakage(examination: Examination) -> dict[str, str]:
    return {reason.name: reason.leakage for reason in examination.reasons}


@pytest.mark.parametrize("build", [mlp, cnn, batch_resnet])
def test_a_sound_capture_passes_every_check(build: object) -> None:
    task = task_of(build)
    capture, secrets = captured(task, replace(RECIPE, epochs=2))
    (examination,) = doctor([capture], task, replace(RECIPE, epochs=2), secrets)
    assert examination.sound, [c for c in examination.checks if c.status == "problem"]
    assert check(examination, "sealed examples").status == "fine"


def test_another_module_is_named_key_by_key() -> None:
    capture, _ = captured(task_of(mlp))
    (examination,) = doctor([capture], task_of(cnn))
    assert not examination.sound
    assert examination.nature is None
    assert all(one.remedy for one in examination.checks)
    wide = Task(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Tanh(), nn.Linear(9, CLASSES))), SPEC)
    (examination,) = doctor([capture], wide)
    assert ("(9, 36)", "(8, 36)") in {(c.expected.removeprefix("shape "), c.got) for c in examination.checks}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (replace(RECIPE, epochs=3), "local steps"),
        (replace(RECIPE, batch_norm="eval"), "mode of BatchNorm"),
        (Recipe(sends="gradient"), "what is sent"),
    ],
)
def test_a_recipe_that_contradicts_the_update_is_a_problem_with_a_remedy(wrong: Recipe, name: str) -> None:
    task = task_of(batch_resnet)
    capture, _ = captured(task)
    (examination,) = doctor([capture], task, wrong)
    assert check(examination, name).status == "problem"
    assert check(examination, name).remedy


def test_sealed_examples_that_do_not_explain_the_update_are_a_problem() -> None:
    """As when inputs are sealed before they are normalised, or with the labels of another run."""
    task = task_of(cnn)
    capture, secrets = captured(task)
    held = secrets[capture.client]
    wrong = {capture.client: replace(held, examples=Examples(images(4, seed=9).x, held.examples.y.flip(0)))}
    (examination,) = doctor([capture], task, RECIPE, wrong)
    assert check(examination, "sealed examples").status == "problem"
    flat = {capture.client: replace(held, examples=Examples(held.examples.x.flatten(1), held.examples.y))}
    (examination,) = doctor([capture], task, RECIPE, flat)
    assert check(examination, "sealed examples").got == "(36,)"


def test_an_update_of_the_size_of_rounding_is_a_problem() -> None:
    task = Task(seeded(mlp).float(), SPEC)
    held = images(2).to("cpu", torch.float32)
    (only,) = play(task, [held], replace(RECIPE, optimiser=SGD(1e-7)), Federation(), Stream.from_seed(0))
    (examination,) = doctor(only.captures, task)
    assert check(examination, "size of the update").status == "problem"


def test_more_directions_than_examples_are_a_problem() -> None:
    task = task_of(mlp)
    capture, _ = captured(task)
    liar = replace(capture, exchanges=tuple(replace(e, examples=2) for e in capture.exchanges))
    (examination,) = doctor([liar], task)
    assert check(examination, "number of examples").status == "problem"


def test_why_leakage_is_to_be_expected_or_not() -> None:
    task = task_of(mlp)
    capture, _ = captured(task, n=1)
    expected = leakage(doctor([capture], task, RECIPE)[0])
    assert expected["batch"] == expected["local steps"] == expected["first layer"] == expected["last layer"] == "more"
    assert expected["parameters per input value"] == "more"
    assert expected["activation"] == "more"
    capture, _ = captured(task, replace(RECIPE, epochs=2), n=40)
    expected = leakage(doctor([capture], task, replace(RECIPE, epochs=2))[0])
    assert (expected["batch"], expected["local steps"]) == ("less", "open")
    assert expected["parameters per input value"] == "less"
    task = task_of(batch_resnet)
    capture, _ = captured(task, replace(RECIPE, epochs=2))
    expected = leakage(doctor([capture], task)[0])
    assert (expected["BatchNorm"], expected["local steps"]) == ("less", "less")
    capture, _ = captured(task, replace(RECIPE, batch_norm="eval"))
    assert leakage(doctor([capture], task)[0])["BatchNorm"] == "more"


def test_noise_and_clipping_appear_among_the_reasons() -> None:
    task = task_of(mlp)
    noisy, _ = captured(task, defence=GaussianNoise(0.05))
    assert leakage(doctor([noisy], task, RECIPE)[0])["noise"] == "less"
    clipped, _ = captured(task, defence=Clip(0.01))
    assert leakage(doctor([clipped], task, RECIPE)[0])["clipped"] == "open"


def test_an_aggregate_leaks_less_than_its_members() -> None:
    task = task_of(mlp)
    federation = Federation(visible="aggregate")
    (only,) = play(task, [images(2), images(2, seed=1)], RECIPE, federation, Stream.from_seed(0))
    assert leakage(doctor(only.captures, task)[0])["aggregate"] == "less"
