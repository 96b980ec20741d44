"""Eq. (5) of driouich2023: against a closed form, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.attack_suite import CLASSES_ALONE
from common.nets import seeded
from seepage.attacks import ModelInversion
from seepage.attacks.model_inversion import class_images
from seepage.finding import NotApplicable
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Setting, View, observe

RNG = Stream.from_seed(0)
IMAGES = DataSpec((1, 4, 4), classes=3, mean=(0.5,), std=(0.25,))


def seen(spec: DataSpec = IMAGES, outputs: int = 3) -> View:
    task = Task(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, outputs))), spec)
    x = torch.rand(6, *spec.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(6) % 3 if spec.classes else torch.zeros(6, 1, dtype=torch.float64)
    recipe = Recipe(SGD(0.1), epochs=20)
    last = list(play(task, [Examples(x, y), Examples(1 - x, y)], recipe, Federation(2), RNG))[-1]
    pairs = list(zip(last.captures, last.secrets, strict=True))
    return observe(pairs, Setting(task, recipe), THREATS["honest-server"])


def test_there_is_a_suite_of_its_own_for_every_attack_on_classes() -> None:
    assert {ModelInversion} == CLASSES_ALONE


def test_a_linear_model_is_surest_in_a_corner_of_the_box() -> None:
    # Two classes: the logit of one is w · x, so that each pixel goes to the end of its range that the sign of w says.
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)), DataSpec((1, 4, 4), classes=2, mean=(0.5,)))
    w = torch.tensor([1.0, -0.5] * 8)
    weight = torch.stack([torch.stack([w, -w]), torch.stack([-w, w])])  # two clients, of opposite opinions
    found = class_images(task, {"1.weight": weight}, {}, steps=200, lr=5.0).x[:, 0]
    corner = 0.5 * w.sign().reshape(1, 4, 4)
    torch.testing.assert_close(found[0, 0], corner)
    torch.testing.assert_close(found[0, 1], -corner)
    torch.testing.assert_close(found[1], found[0].flip(0))


@pytest.mark.parametrize("model", ["global", "last-answer"])
def test_the_model_gives_every_class_to_what_was_found_for_it(model: str) -> None:
    view = seen()
    finding = ModelInversion(model=model, steps=300)(view, RNG)  # type: ignore[arg-type]
    assert finding.class_inputs is not None
    assert finding.class_inputs.shape == (2, 3, 1, 4, 4)
    pixels = IMAGES.pixels(finding.class_inputs)
    assert float(pixels.min()) >= -1e-6
    assert float(pixels.max()) <= 1 + 1e-6
    for i in range(2):
        params = {n: p[i] - (view.update[n][i] if model == "last-answer" else 0) for n, p in view.params.items()}
        said, _ = view.task.forward(params, finding.class_inputs[i])
        assert said.argmax(1).tolist() == [0, 1, 2]


def test_a_regression_has_no_classes() -> None:
    with pytest.raises(NotApplicable, match="expected a model that tells classes apart"):
        ModelInversion()(seen(DataSpec((1, 4, 4)), outputs=1), RNG)


@pytest.mark.parametrize("knobs", [{"steps": 0}, {"lr": 0.0}])
def test_senseless_knobs_are_refused(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        ModelInversion(**knobs)  # type: ignore[arg-type]
