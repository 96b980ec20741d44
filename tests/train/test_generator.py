"""Training of generators: they learn what classes look like, from data sets and from folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from common.trainings import ends_as_an_undisturbed_one
from seepage.cli import app
from seepage.generate import load_generator
from seepage.train.generator import GeneratorTraining, generator_lesson, held_out
from seepage.train.loop import train
from seepage.train.pictures import PicturesMissing, gather_classes

CPU = torch.device("cpu")


def coloured(n: int, side: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Red pictures of class 0 and blue ones of class 1, more or less bright."""
    labels = torch.arange(n) % 2
    bright = torch.randint(150, 256, (n,), generator=torch.Generator().manual_seed(0))
    pictures = torch.zeros(n, 3, side, side, dtype=torch.uint8)
    for i in range(n):
        pictures[i, 2 * labels[i]] = bright[i]
    return pictures, labels


def test_it_learns_what_classes_look_like(tmp_path: Path) -> None:
    pictures, labels = coloured(64)
    lesson = generator_lesson(GeneratorTraining(steps=60, batch=8, lr=2e-3), pictures, labels, 2)
    file = tmp_path / "net.safetensors"
    held: dict[str, float] = {}
    train(lesson, file, source="test", listener=lambda step, steps, losses: held.update(losses))
    net = load_generator(str(file), torch.zeros(()))
    z = torch.randn(8, net.latent, generator=torch.Generator().manual_seed(0))
    for label in (0, 1):
        red, _, blue = net(z, torch.full((8,), label)).mean((0, 2, 3)).tolist()
        assert (red > blue + 0.2) == (label == 0)
        assert (blue > red + 0.2) == (label == 1)
    assert held["psnr"] > 10
    assert {"l1", "divergence"} <= set(held)


def test_a_training_that_was_stopped_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    how = GeneratorTraining(steps=4, batch=2, adversarial=0.1)
    ends_as_an_undisturbed_one(lambda: generator_lesson(how, *coloured(20), 2), tmp_path)


def test_no_class_is_held_out_whole() -> None:
    assert not held_out(torch.arange(100)).any()
    labels = torch.arange(2000) % 3
    held = held_out(labels)
    assert int(held.sum()) == 64
    alone = torch.cat([torch.zeros(15).long(), torch.tensor([1])])
    assert not held_out(alone).any()


def test_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, colour in (("zebra", (0, 0, 255)), ("ant", (255, 0, 0))):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (20, 30), colour).save(tmp_path / name / f"{i}.png")
    pictures, labels, classes = gather_classes(str(tmp_path), 16, 4, CPU, None)
    assert classes == 2
    assert labels.tolist() == [0, 1, 0, 1]  # in turn, so that fewer images are of all classes
    assert pictures[0, 0].float().mean() == 255
    assert pictures[1, 2].float().mean() == 255
    with pytest.raises(PicturesMissing, match="at least two classes"):
        gather_classes(str(tmp_path / "ant"), 16, None, CPU, None)
    with pytest.raises(PicturesMissing, match="expected a folder, or one of the data sets"):
        gather_classes("dead-leaves", 16, None, CPU, None)


def test_the_command_trains_on_a_data_set(tmp_path: Path) -> None:
    out = tmp_path / "net.safetensors"
    options = ["--images", "fashion-mnist", "--size", "16", "--count", "32", "--steps", "2", "--batch", "2"]
    result = CliRunner().invoke(app, ["train", "generator", *options, "--device", "cpu", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert load_generator(str(out), torch.zeros(())).classes == 10
    result = CliRunner().invoke(app, ["train", "generator", *options, "--zoom", "0", "--out", str(out)])
    assert result.exit_code == 2
    assert "`zoom` in (0, 1]" in result.output.replace("\n", " ")
    result = CliRunner().invoke(app, ["train", "generator", "--images", "sentences", "--out", str(out)])
    assert result.exit_code == 2
