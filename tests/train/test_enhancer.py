"""Training of the enhancer: it learns, it resumes to the bit, and it refuses what is not its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn
from typer.testing import CliRunner

from common.trainings import Stopped, ends_as_an_undisturbed_one
from seepage.cli import app
from seepage.enhance import Degradation, load_enhancer
from seepage.perceptual import LpipsWeights
from seepage.streams import Stream
from seepage.train.enhancer import EnhancerTraining, enhancer_lesson
from seepage.train.loop import CheckpointBroken, train
from seepage.train.pictures import PicturesMissing, gather_pictures

CPU = torch.device("cpu")
RNG = Stream.from_seed(0)
SMALL = EnhancerTraining(Degradation(2), steps=4, batch=2)
PICTURES = gather_pictures("dead-leaves", 16, 32, RNG, CPU, None)


def toy_lpips() -> LpipsWeights:
    draw = torch.Generator().manual_seed(0)
    kernels = [torch.randn(2, c, k, k, generator=draw) for c, k in ((3, 11), (2, 5), (2, 3), (2, 3), (2, 3))]
    return LpipsWeights(tuple((k, torch.zeros(2)) for k in kernels), (torch.ones(2),) * 5)


def train_enhancer(
    how: EnhancerTraining, pictures: Tensor, out: Path, lpips: LpipsWeights | None = None, **pace: Any
) -> nn.Module:
    return train(enhancer_lesson(how, pictures, lpips), out, **pace)


@pytest.mark.parametrize("how", [SMALL, replace(SMALL, adversarial=0.1)], ids=["l1", "adversarial"])
def test_a_training_that_was_stopped_ends_as_an_undisturbed_one(how: EnhancerTraining, tmp_path: Path) -> None:
    ends_as_an_undisturbed_one(lambda: enhancer_lesson(how, PICTURES), tmp_path)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "net.safetensors"

    def stop(step: int, steps: int, losses: dict[str, float]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train_enhancer(SMALL, PICTURES, out, source="test", checkpoint_every=1, listener=stop)
    with pytest.raises(CheckpointBroken, match="choose another --out"):
        train_enhancer(replace(SMALL, lr=0.5), PICTURES, out, source="test")
    (tmp_path / "net.safetensors.checkpoint").write_bytes(b"?")
    with pytest.raises(CheckpointBroken, match="delete it"):
        train_enhancer(SMALL, PICTURES, out, source="test")


def test_each_term_of_the_loss_is_reported(tmp_path: Path) -> None:
    seen: dict[str, float] = {}
    train_enhancer(
        replace(SMALL, steps=1, perceptual=0.3, adversarial=0.1),
        PICTURES,
        tmp_path / "net.safetensors",
        source="test",
        lpips=toy_lpips(),
        listener=lambda step, steps, losses: seen.update(losses),
    )
    assert {"l1", "lpips", "fooling", "judging", "psnr", "psnr_before"} == set(seen)


def test_perceptual_training_asks_for_the_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seepage fetch lpips"):
        train_enhancer(replace(SMALL, perceptual=0.3), PICTURES, tmp_path / "net", source="test")


def test_it_learns_to_undo_the_blur(tmp_path: Path) -> None:
    how = EnhancerTraining(Degradation(2, 0.06, 0.06), steps=60, batch=8, lr=2e-3)
    pictures = gather_pictures("dead-leaves", 32, 64, RNG, CPU, None)
    held: dict[str, float] = {}

    def listen(step: int, steps: int, losses: dict[str, float]) -> None:
        if "psnr" in losses:
            held.update(losses)

    train_enhancer(how, pictures, tmp_path / "net.safetensors", source="test", listener=listen)
    assert held["psnr"] > held["psnr_before"] + 0.3


def test_the_command_trains_on_a_folder_and_says_how_in_the_file(tmp_path: Path) -> None:
    for i in range(17):
        Image.effect_noise((20, 30), 50 + i).save(tmp_path / f"{i}.png")
    out = tmp_path / "net.safetensors"
    options = ["--images", str(tmp_path), "--size", "16", "--steps", "2", "--batch", "2", "--factor", "2"]
    result = CliRunner().invoke(app, ["train", "enhancer", "--out", str(out), "--device", "cpu", *options])
    assert result.exit_code == 0, result.output
    assert sum(p.numel() for p in load_enhancer(str(out)).parameters()) > 1_000_000
    with safe_open(out, framework="pt") as file:
        assert '"factor": 2' in file.metadata()["training"]
        assert file.metadata()["source"] == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--images", "nowhere"], "expected 'dead-leaves', a folder"),
        (["--images", "adult", "--data", "nowhere"], "adult"),
        (["--size", "20"], "multiple of 8"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
        (["--least-noise", "1", "--most-noise", "0"], "least_noise"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(options: list[str], what: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "enhancer", "--out", str(tmp_path / "net.safetensors"), *options])
    assert result.exit_code == 2
    assert what in result.output.replace("\n", " ")


def test_pictures_of_a_data_set_become_square_colour_bytes() -> None:
    pictures = gather_pictures("fashion-mnist", 32, 5, RNG, CPU, None)
    assert pictures.shape == (5, 3, 32, 32)
    assert pictures.dtype == torch.uint8
    assert pictures[:, 0].equal(pictures[:, 2])


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PicturesMissing, match="got none"):
        gather_pictures(str(tmp_path), 16, None, RNG, CPU, None)
    (tmp_path / "broken.png").write_bytes(b"?")
    with pytest.raises(PicturesMissing, match=r"broken\.png"):
        gather_pictures(str(tmp_path), 16, None, RNG, CPU, None)
