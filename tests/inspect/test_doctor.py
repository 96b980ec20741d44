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
from seepage.models import build
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Params, Task

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


def test_a_client_that_used_adam_is_told_from_the_recipe() -> None:
    wide = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, CLASSES)
    )
    task, adam = task_of(lambda: wide), replace(RECIPE, optimiser=Adam(0.002), epochs=5)
    capture, secrets = captured(task, adam)
    (misled,) = doctor([capture], task, replace(adam, optimiser=SGD(0.1)))
    found = check(misled, "optimiser")
    assert found.status == "problem"
    assert 'kind = "Adam"' in found.remedy
    assert "0.01 or more" in found.remedy
    (told,) = doctor([capture], task, adam, secrets)
    assert told.sound, [c for c in told.checks if c.status == "problem"]
    (silent,) = doctor([capture], task)
    assert leakage(silent)["optimiser"] == "less"


def test_another_module_is_named_key_by_key() -> None:
    capture, _ = captured(task_of(mlp))
    (examination,) = doctor([capture], task_of(cnn))
    assert not examination.sound
    assert examination.nature is None
    assert all(one.remedy for one in examination.checks)
    wide = Task(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Tanh(), nn.Linear(9, CLASSES))), SPEC)
    (examination,) = doctor([capture], wide)
    (first, *_) = examination.checks
    assert (first.name, first.expected) == ("before: 1.weight", "shape (9, 36)")
    assert first.got == "(8, 36); likewise for 1.bias, 3.weight", "one line for one reason, not one for each tensor"
    assert len(examination.checks) == 2, "what was received, and what was sent"


def test_clients_that_send_a_part_are_told_to_freeze_the_rest() -> None:
    """As those that train adapters or the last layer alone."""
    task = task_of(mlp)
    capture, _ = captured(task)
    last = {name for name in task.params if name.startswith("3.")}

    def part(tensors: Params) -> Params:
        return {name: t for name, t in tensors.items() if name in last}

    sent = replace(capture, exchanges=tuple(replace(e, answer=part(e.answer)) for e in capture.exchanges))
    (examination,) = doctor([sent], task)
    (told,) = examination.checks
    assert told.got == "none; likewise for 1.bias"
    assert "set requires_grad = False on it in the module" in told.remedy
    module = seeded(mlp)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in last)
    (examination,) = doctor([sent], Task(module, SPEC))
    assert examination.sound, "which is what they are told to do"


def test_a_bias_before_a_normalisation_is_not_called_frozen() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))

    task = Task(seeded(normalised), SPEC)
    capture, _ = captured(task)
    (last,) = capture.exchanges
    still = {**last.answer, "1.bias": last.before["1.bias"]}
    for frozen, remedy in (({}, "nothing to do"), ({"1.weight": last.before["1.weight"]}, "set requires_grad")):
        one = replace(capture, exchanges=(replace(last, answer={**still, **frozen}),))
        (examination,) = doctor([one], task)
        assert remedy in check(examination, "frozen parameters").remedy


def test_a_round_that_diverged_names_what_to_look_at_instead() -> None:
    task = task_of(mlp)
    capture, _ = captured(task)
    (last,) = capture.exchanges
    bad = {**last.answer, "3.bias": torch.full_like(last.answer["3.bias"], float("nan"))}
    (examination,) = doctor([replace(capture, exchanges=(replace(last, answer=bad),))], task)
    (told,) = examination.checks
    assert "NaN or infinite" in told.got
    assert "(--round)" in told.remedy
    assert "(--client)" in told.remedy


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


def test_weights_sent_in_half_precision_are_what_there_is_to_see() -> None:
    task = Task(seeded(mlp).float(), SPEC)
    held = images(2).to("cpu", torch.float32)
    (only,) = play(
        task, [held], replace(RECIPE, optimiser=SGD(1e-2), sends="weights"), Federation(), Stream.from_seed(0)
    )
    (last,) = only.captures[0].exchanges
    before, answer = ({n: t.half() for n, t in tree.items()} for tree in (last.before, last.answer))
    (examination,) = doctor([replace(only.captures[0], exchanges=(replace(last, before=before, answer=answer),))], task)
    size = check(examination, "size of the update")
    assert (size.status, examination.sound) == ("note", True)
    assert "clients send weights in float16" in size.remedy


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


@pytest.mark.parametrize(
    ("sends", "batch", "steps"), [("weights", "open", "open"), ("update", "open", "open"), ("gradient", "less", "more")]
)
def test_without_a_recipe_a_gradient_alone_says_how_many_steps_of_how_many_examples_it_is(
    sends: str, batch: str, steps: str
) -> None:
    task = task_of(mlp)
    capture, _ = captured(task, replace(RECIPE, sends=sends), n=12)
    expected = leakage(doctor([capture], task)[0])
    assert (expected["batch"], expected["local steps"]) == (batch, steps)


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


@pytest.mark.parametrize(("std", "expected"), [(1e-6, "more"), (10.0, "less")])
def test_noise_hides_words_only_where_it_is_as_large_as_what_moved(std: float, expected: str) -> None:
    spec = DataSpec((4,), classes=2, vocabulary=40)
    task = Task(build("text-bag", spec, Stream.from_seed(0), width=64), spec)
    held = Examples(torch.tensor([[3, 9, 4, 0], [7, 9, 0, 0]]), torch.tensor([0, 1]))
    (only,) = play(task, [held], RECIPE, Federation(), Stream.from_seed(0), defence=GaussianNoise(std))
    (examination,) = doctor(only.captures, task)
    assert leakage(examination)["embedding"] == expected
