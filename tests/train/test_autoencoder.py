"""Training of autoencoders: it learns, its codes have the promised size, and it resumes to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from common.trainings import ends_as_an_undisturbed_one
from seepage.cli import app
from seepage.pieces.autoencoder import load_autoencoder
from seepage.streams import Stream
from seepage.train.autoencoder import AutoencoderTraining, autoencoder_lesson
from seepage.train.loop import train
from seepage.train.pictures import gather_pictures

CPU = torch.device("cpu")
RNG = Stream.from_seed(0)
PICTURES = gather_pictures("dead-leaves", 32, 64, RNG, CPU, None)


def test_a_training_that_was_stopped_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    how = AutoencoderTraining("S", steps=4, batch=2)
    ends_as_an_undisturbed_one(lambda: autoencoder_lesson(how, PICTURES), tmp_path)


def test_it_learns_and_its_codes_can_be_searched_as_pixels_are(tmp_path: Path) -> None:
    how = AutoencoderTraining("L", steps=80, batch=8, lr=2e-3)
    held: dict[str, float] = {}
    file = tmp_path / "net.safetensors"
    lesson = autoencoder_lesson(how, PICTURES)
    before = lesson.examine()
    train(lesson, file, source="test", listener=lambda step, steps, losses: held.update(losses))
    assert held["psnr"] > before["psnr"] + 3
    assert held["psnr"] > held["psnr_noisy"]
    codes = load_autoencoder(str(file), torch.zeros(())).encode(PICTURES[:60].float() / 255).transpose(0, 1).flatten(1)
    torch.testing.assert_close(codes.mean(1), torch.full((8,), 0.5), rtol=0, atol=0.1)
    torch.testing.assert_close(codes.std(1), torch.full((8,), 0.25), rtol=0, atol=0.1)


def test_the_command_says_how_in_the_file_and_what_is_wrong_in_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "net.safetensors"
    options = ["--size", "32", "--count", "16", "--steps", "1", "--batch", "2", "--device", "cpu", "--out", str(out)]
    result = CliRunner().invoke(app, ["train", "autoencoder", "--latent", "M", *options])
    assert result.exit_code == 0, result.output
    with safe_open(out, framework="pt") as file:
        assert file.metadata()["size"] == "M"
        assert '"latent": "M"' in file.metadata()["training"]
    for wrong, what in (
        (["--latent", "XL"], "expected one of ['S', 'M', 'L'], got 'XL'"),
        (["--size", "40"], "multiple of 16"),
        (["--noise", "-1"], "`noise` of at least 0"),
    ):
        result = CliRunner().invoke(app, ["train", "autoencoder", *options, *wrong])
        assert result.exit_code == 2
        assert what in result.output.replace("\n", " ")


def test_sides_that_the_factor_does_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="that 16 divides"):
        autoencoder_lesson(AutoencoderTraining("S"), PICTURES[..., :24])
