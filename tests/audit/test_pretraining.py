"""Networks that have learnt something before the federation begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from common.audits import perform, tiny
from common.nets import image_task, images, mlp
from seepage.audit.experiment import Pretraining
from seepage.audit.pretraining import augmented, pretrain
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task

RNG = Stream.from_seed(0)


def test_it_learns_and_leaves_the_task_as_it_was() -> None:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    examples = Examples(x, (x[:, 0] > x[:, 1]).long())
    task = Task(
        nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), DataSpec((2,), classes=2)
    )
    before = {name: p.clone() for name, p in task.params.items()}
    trained = pretrain(task, examples, Pretraining(epochs=20, batch_size=16), RNG)
    assert task.accuracy(trained.params, examples.x, examples.y, buffers=trained.buffers) > 0.95
    assert set(trained.params) == set(task.params)
    assert set(trained.buffers) == set(task.buffers)
    assert int(trained.buffers["1.num_batches_tracked"]) == 80
    assert all(p.equal(before[name]) for name, p in task.params.items())


def test_one_plain_epoch_is_torchs_own_sgd() -> None:
    task, examples = image_task(mlp), images(8)
    how = Pretraining(epochs=1, lr=0.05, batch_size=8, augment=False)
    trained = pretrain(task, examples, how, RNG)
    grads = task.gradient(task.params, examples.x, examples.y)
    for name, p in task.params.items():
        slope = grads[name] + how.weight_decay * p
        torch.testing.assert_close(trained.params[name], p - how.lr * 1.9 * slope)  # Nesterov's first step: (1 + 0.9) g


def test_augmented_images_are_mirrored_and_shifted_copies() -> None:
    ramp = torch.arange(16.0).expand(1, 1, 16, 16).repeat(40, 1, 1, 1)  # grows to the right
    out = augmented(ramp, torch.Generator().manual_seed(0))
    rising = out[:, 0, 8, 8] < out[:, 0, 8, 9]
    assert 8 < int(rising.sum()) < 32
    centre = out[:, 0, 8, 7][rising]
    assert centre.min() >= 5
    assert centre.max() <= 9
    assert len(centre.unique()) > 2


def test_a_seed_repeats_it() -> None:
    task, examples, how = image_task(mlp), images(12), Pretraining(epochs=2, batch_size=5)
    one, again, other = (pretrain(task, examples, how, rng).params for rng in (RNG, RNG, Stream.from_seed(1)))
    assert all(p.equal(again[name]) for name, p in one.items())
    assert not all(p.equal(other[name]) for name, p in one.items())


def test_an_experiment_attacks_the_trained_network_and_says_how_good_it_is(tmp_path: Path) -> None:
    model = {"name": "mlp", "pretraining": {"epochs": 30, "lr": 0.05, "batch_size": 16, "augment": False}}
    trained, plain = (
        perform(tiny(accuracy=True, **extra), tmp_path / name).read()
        for name, extra in (("trained", {"model": model}), ("plain", {}))
    )
    first = [rows[(rows["metric"] == "accuracy") & (rows["item"] == "0")]["value"].item() for rows in (trained, plain)]
    assert first[0] > first[1] + 0.2


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("epochs", -1, "`epochs` of at least 0"), ("share", 1.0, "between 0 and 1"), ("lr", 0.0, "`lr` above 0")],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pretraining(**{field: value})
