"""`seepage train …`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.markup import escape
from torch import Tensor

from seepage.console import DataFolder, Device, DeviceOption, bar, clear_errors, pick_device, say
from seepage.data import DataBroken, DataMissing, data_folder
from seepage.enhance.degrade import Degradation
from seepage.perceptual import LpipsWeights, WeightsBroken, WeightsMissing, load_lpips
from seepage.pieces.autoencoder import LatentSize
from seepage.streams import Stream
from seepage.train.autoencoder import AutoencoderTraining, autoencoder_lesson
from seepage.train.enhancer import EnhancerTraining, enhancer_lesson
from seepage.train.generator import GeneratorTraining, generator_lesson
from seepage.train.loop import CheckpointBroken, Lesson, Training
from seepage.train.loop import train as train_lesson
from seepage.train.pictures import DEAD_LEAVES, PicturesMissing, gather_classes, gather_pictures

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Train what attacks bring with them.")
WRONG = (ValueError, PicturesMissing, CheckpointBroken, DataMissing, DataBroken, WeightsMissing, WeightsBroken)
GO_ON = "Stopped. Run the same command again to go on from the last checkpoint."


@app.callback()
def train() -> None:
    """Train what attacks bring with them."""


Images = Annotated[
    str, typer.Option("--images", help="dead-leaves, a data set (its training half), or a folder of files.")
]
Count = Annotated[int | None, typer.Option("--count", min=16, help="Most images; default: all, or 4096.")]
Size = Annotated[int, typer.Option("--size", min=16, help="Height and width of the images.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps of Adam.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Images per step.")]
Rate = Annotated[float, typer.Option("--lr", help="First learning rate.")]
Perceptual = Annotated[float, typer.Option("--perceptual", help="Weight of LPIPS beside the L1 loss.")]
Adversarial = Annotated[float, typer.Option("--adversarial", help="Weight of a PatchGAN beside it.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Out = Annotated[Path, typer.Option("--out", help="File of weights to write; a checkpoint lies beside it.")]

# Typer reads options off a signature, so those that all trainings have stand in each.


@app.command()
def enhancer(
    out: Out = Path("enhancer.safetensors"),
    images: Images = DEAD_LEAVES,
    count: Count = None,
    size: Size = 128,
    factor: Annotated[int, typer.Option("--factor", min=1, help="Of the representation, as in the attack rog.")] = 4,
    least_noise: Annotated[float, typer.Option("--least-noise", help="Smallest error of a representation.")] = 0.03,
    most_noise: Annotated[float, typer.Option("--most-noise", help="Largest.")] = 0.08,
    steps: Steps = 8000,
    batch: Batch = 32,
    lr: Rate = 1e-3,
    perceptual: Perceptual = 0.0,
    adversarial: Adversarial = 0.0,
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    seed: Seed = 0,
) -> None:
    """Train the network that sharpens what the attack `rog` finds.

    Run the same command again to go on after an interruption.
    """
    with clear_errors(*WRONG, stopped=GO_ON):
        shared = _knobs(steps, batch, lr, perceptual, adversarial, seed)
        how = EnhancerTraining(Degradation(factor, least_noise, most_noise), **shared)
        lpips, pictures = _lpips(how, data), _pictures(how, images, size, 8, count, device, data)
        _train(enhancer_lesson(how, pictures, lpips), out, images)


@app.command()
def autoencoder(
    out: Out = Path("autoencoder.safetensors"),
    latent: Annotated[
        str, typer.Option("--latent", help="S, M or L: 512, 2048 or 8192 numbers for an image of 128 × 128.")
    ] = "L",
    images: Images = DEAD_LEAVES,
    count: Count = None,
    size: Size = 128,
    noise: Annotated[float, typer.Option("--noise", help="Largest error of codes that it learns to bear.")] = 0.08,
    steps: Steps = 8000,
    batch: Batch = 32,
    lr: Rate = 1e-3,
    perceptual: Perceptual = 0.0,
    adversarial: Adversarial = 0.0,
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    seed: Seed = 0,
) -> None:
    """Train an autoencoder whose codes the attack `rog` can search instead of small images.

    Run the same command again to go on after an interruption.
    """
    with clear_errors(*WRONG, stopped=GO_ON):
        if latent not in get_args(LatentSize):
            raise ValueError(f"--latent: expected one of {list(get_args(LatentSize))}, got {latent!r}")
        shared = _knobs(steps, batch, lr, perceptual, adversarial, seed)
        how = AutoencoderTraining(cast(LatentSize, latent), noise, **shared)
        lpips, pictures = _lpips(how, data), _pictures(how, images, size, 16, count, device, data)
        _train(autoencoder_lesson(how, pictures, lpips), out, images)


@app.command()
def generator(
    images: Annotated[
        str, typer.Option("--images", help="A data set (its training half), or a folder with a folder for each class.")
    ],
    out: Out = Path("generator.safetensors"),
    count: Count = None,
    size: Annotated[int, typer.Option("--size", help="Height and width of the images: 16, 32, 64, 128, ….")] = 128,
    divergence: Annotated[
        float, typer.Option("--divergence", help="Weight of the latent numbers' divergence from normal ones.")
    ] = 2e-4,
    zoom: Annotated[float, typer.Option("--zoom", help="Smallest share of an image that is shown.")] = 0.75,
    steps: Steps = 20000,
    batch: Batch = 32,
    lr: Rate = 5e-4,
    perceptual: Perceptual = 0.0,
    adversarial: Adversarial = 0.0,
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    seed: Seed = 0,
) -> None:
    """Train the class-conditional generator that the attack `rogs` searches.

    Run the same command again to go on after an interruption.
    """
    with clear_errors(*WRONG, stopped=GO_ON):
        shared = _knobs(steps, batch, lr, perceptual, adversarial, seed)
        how = GeneratorTraining(divergence, zoom, **shared)
        lpips = _lpips(how, data)
        say.print(f"Gathering images: {escape(images)}", soft_wrap=True)
        pictures, labels, classes = gather_classes(images, size, count, pick_device(device), data)
        _train(generator_lesson(how, pictures, labels, classes, lpips), out, images)


def _knobs(*values: float) -> dict[str, Any]:
    """What every training has, by name, from values in the order of `Training`."""
    return dict(zip((knob.name for knob in fields(Training)), values, strict=True))


def _lpips(how: Training, data: Path | None) -> LpipsWeights | None:
    return load_lpips(data_folder(data)) if how.perceptual else None


def _pictures(
    how: Training, images: str, size: int, multiple: int, count: int | None, device: Device, data: Path | None
) -> Tensor:
    if size % multiple:
        raise ValueError(f"--size: expected a multiple of {multiple}, got {size}")
    where = pick_device(device)
    say.print(f"Gathering images: {escape(images)}", soft_wrap=True)
    return gather_pictures(images, size, count, Stream.from_seed(how.seed) / "pictures", where, data)


def _train(lesson: Lesson, out: Path, source: str) -> None:
    steps = lesson.learners.how.steps
    with bar() as progress:
        task = progress.add_task("Training", total=steps)

        def listen(step: int, steps: int, losses: dict[str, float]) -> None:
            words = "  ".join(f"{name} {value:.4g}" for name, value in losses.items())
            progress.update(task, completed=step, description=f"Training  {words}")
            if any(name.startswith("psnr") for name in losses):
                held = ", ".join(f"{name} {value:.2f} dB" for name, value in losses.items())
                say.print(f"step {step}: {held}")

        train_lesson(lesson, out, source=source, listener=listen)
    say.print(f"Wrote [bold]{escape(str(out))}[/bold]", soft_wrap=True)
