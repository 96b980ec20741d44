"""The judge of what classes look like, and an audit that leaves its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from common.audits import perform, tiny
from common.nets import seeded
from seepage.audit.class_images import class_scores
from seepage.capture import Capture, Exchange, Secret
from seepage.metrics.pixels import ssim
from seepage.recipe import Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task
from seepage.threat import Setting

SPEC = DataSpec((1, 12, 12), classes=3, mean=(0.5,), std=(0.5,))


def test_every_image_is_held_against_its_own_class() -> None:
    pixels = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    examples = Examples(SPEC.normalise(pixels), torch.tensor([0, 1, 1, 2]))
    task = Task(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3))).float(), SPEC)
    capture = Capture("ada", (Exchange(0, task.params, task.params, "update", task.buffers, None, 4),))
    setting = Setting(task, public=Examples(examples.x[:1], examples.y[:1]), recipe=Recipe())
    found = examples.x[[0, 1, 3]]
    values = {s.metric: s.value for s in class_scores(found, capture, Secret("ada", examples), setting)}
    crossed = float(ssim(pixels[1:2], pixels[2:3], 0, 1))  # the second of class 1 has the first for its portrait
    assert values["class_ssim"] == pytest.approx((3 + crossed) / 4, abs=1e-6)
    mean = float(ssim(pixels[:1].expand_as(pixels), pixels, 0, 1).mean())
    assert values["class_ssim_of_public_mean"] == pytest.approx(mean, abs=1e-6)
    assert values["class_ssim_of_constant"] < 0.2
    assert values["class_ssim_of_optimum"] > values["class_ssim_of_constant"]


def test_an_audit_leaves_rows_about_classes(tmp_path: Path) -> None:
    experiment = tiny(
        recipe={"optimiser": {"kind": "SGD", "lr": 0.05}, "sends": "weights"},
        attack=[{"name": "model-inversion", "steps": 5}],
    )
    rows = perform(experiment, tmp_path).read()
    assert {"class_ssim", "class_ssim_of_constant", "class_ssim_of_optimum"} <= set(rows["metric"])
    assert set(rows["outcome"]) == {"reduced"}
