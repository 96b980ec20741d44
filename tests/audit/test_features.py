"""What enters a layer: found by an attack, and measured against what did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from common.audits import perform, tiny
from common.nets import CLASSES, image_task, images, mlp
from seepage.attacks import ATTACKS
from seepage.audit.features import true_features
from seepage.finding import Finding
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import Fact, View


@dataclass(frozen=True)
class HeadInputs:
    """For one example, what enters the last layer is the ratio of its two gradients; labels go with it.

    Args:
        off: factor on the answer.
        sure: what it says of itself.
    """

    name: ClassVar[str] = "head-inputs"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    off: float = 1.0
    sure: float = 0.75

    def __call__(self, view: View, rng: Stream) -> Finding:
        assert view.task.head is not None
        weight, bias = (view.update[f"{view.task.head}.{part}"] for part in ("weight", "bias"))
        label = bias.argmin(-1)  # the label's score is to rise
        clients = torch.arange(len(label))
        features = weight[clients, label] / bias[clients, label, None]
        return Finding(
            labels=label[:, None],
            confidence=torch.full((len(label),), self.sure),
            features=self.off * features[:, None],
            layer=view.task.head,
        )


def test_an_attack_on_what_enters_a_layer_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, HeadInputs.name, HeadInputs)
    attacks = [{"name": "head-inputs"}, {"name": "head-inputs", "off": 1.5}]
    rows = perform(tiny(attack=attacks), tmp_path).read()
    for off, error, diagnosis in ((1.0, 0.0, "recovered"), (1.5, 0.5, "unexplained")):
        part = rows[rows["attack_settings"].str.startswith(f"off={off}")]
        values = part[part["metric"] == "feature_error"]["value"]
        assert values.tolist() == pytest.approx([error] * 3, abs=1e-3)
        assert set(part["diagnosis"]) == {diagnosis}
        assert set(part[part["metric"] == "label_confidence"]["value"]) == {0.75}
        assert part[part["metric"] == "psnr"]["value"].isna().all()
        assert set(part[part["metric"] == "label_accuracy"]["value"]) == {1.0}


def test_features_are_those_of_the_modules_own_forward_pass() -> None:
    task, examples = image_task(mlp), images(3)
    net = task.module
    assert isinstance(net, nn.Sequential)
    found = true_features(task, task.params, task.buffers, examples, "3", train=True)
    torch.testing.assert_close(found, net[:3](examples.x).detach())


def test_statistics_of_the_batch_count_in_train_mode_and_nothing_is_left_changed() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Dropout(0.5), nn.Linear(36, CLASSES)).double()
    task, examples = Task(module, DataSpec((1, 6, 6), classes=CLASSES)), images(4)
    buffers, state = {name: b.clone() for name, b in task.buffers.items()}, torch.get_rng_state()
    batch = true_features(task, task.params, task.buffers, examples, "3", train=True)
    running = true_features(task, task.params, task.buffers, examples, "3", train=False)
    torch.testing.assert_close(batch.mean(0), torch.zeros(36).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(running, examples.x.flatten(1), rtol=1e-4, atol=1e-6)
    assert all(buffers[name].equal(b) for name, b in task.buffers.items())
    assert state.equal(torch.get_rng_state())


def test_a_layer_that_is_passed_twice_has_no_one_input() -> None:
    def build() -> nn.Module:
        same = nn.Linear(36, 36)
        return nn.Sequential(nn.Flatten(), same, same, nn.Linear(36, CLASSES))

    task = image_task(build)
    with pytest.raises(ValueError, match="layer '1' once, got 2 times"):
        true_features(task, task.params, task.buffers, images(1), "1", train=False)
