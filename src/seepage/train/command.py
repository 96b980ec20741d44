"""`seepage train …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from seepage.data import DataBroken, DataMissing, data_folder
from seepage.enhance.degrade import Degradation
from seepage.metrics.perceptual import WeightsBroken, WeightsMissing, load_lpips
from seepage.streams import Stream
from seepage.train.enhancer import CheckpointBroken, EnhancerTraining, train_enhancer
from seepage.train.pictures import DEAD_LEAVES, PicturesMissing, gather_pictures

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Train what attacks bring with them.")
say = Console(stderr=True, highlight=False)

WRONG = (ValueError, PicturesMissing, CheckpointBroken, DataMissing, DataBroken, WeightsMissing, WeightsBroken)


@app.callback()
def train() -> None:
    """Train what attacks bring with them."""


@app.command()
def enhancer(
    out: Annotated[Path, typer.Option("--out", help="File of weights to write; a checkpoint lies beside it.")] = Path(
        "enhancer.safetensors"
    ),
    images: Annotated[
        str, typer.Option("--images", help="dead-leaves, a data set (its training half), or a folder of files.")
    ] = DEAD_LEAVES,
    count: Annotated[int | None, typer.Option("--count", min=16, help="Most images; default: all, or 4096.")] = None,
    size: Annotated[int, typer.Option("--size", min=16, help="Height and width of the images; 8 divides it.")] = 128,
    factor: Annotated[int, typer.Option("--factor", min=1, help="Of the representation, as in the attack rog.")] = 4,
    least_noise: Annotated[float, typer.Option("--least-noise", help="Smallest error of a representation.")] = 0.03,
    most_noise: Annotated[float, typer.Option("--most-noise", help="Largest.")] = 0.08,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of Adam.")] = 8000,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images per step.")] = 32,
    lr: Annotated[float, typer.Option("--lr", help="First learning rate.")] = 1e-3,
    perceptual: Annotated[float, typer.Option("--perceptual", help="Weight of LPIPS beside the L1 loss.")] = 0.0,
    adversarial: Annotated[float, typer.Option("--adversarial", help="Weight of a PatchGAN beside it.")] = 0.0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    data: Annotated[Path | None, typer.Option("--data", help="Folder of data sets; default: $SEEPAGE_DATA.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
) -> None:
    """Train the network that sharpens what the attack `rog` finds.

    Run the same command again to go on after an interruption.
    """
    try:
        how = EnhancerTraining(
            Degradation(factor, least_noise, most_noise), steps, batch, lr, perceptual, adversarial, seed
        )
        if size % 8:
            raise ValueError(f"--size: expected a multiple of 8, got {size}")
        where = _device(device)
        lpips = load_lpips(data_folder(data)) if perceptual else None
        say.print(f"Gathering images: {escape(images)}", soft_wrap=True)
        pictures = gather_pictures(images, size, count, Stream.from_seed(seed) / "pictures", where, data)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=say, transient=True) as progress:
            task = progress.add_task("Training", total=steps)

            def listen(step: int, steps: int, losses: dict[str, float]) -> None:
                words = "  ".join(f"{name} {value:.4g}" for name, value in losses.items())
                progress.update(task, completed=step, description=f"Training  {words}")
                if "psnr" in losses:
                    say.print(f"step {step}: held out {losses['psnr_before']:.2f} → {losses['psnr']:.2f} dB")

            train_enhancer(how, pictures, out, source=images, lpips=lpips, listener=listen)
    except KeyboardInterrupt:
        say.print("Stopped. Run the same command again to go on from the last checkpoint.")
        raise typer.Exit(130) from None
    except WRONG as error:
        say.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    say.print(f"Wrote [bold]{escape(str(out))}[/bold]", soft_wrap=True)


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device: expected auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: expected a CUDA device, got none that torch can see; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
