"""Training of the autoencoders whose codes ROG searches (yue2023, section 5.1), from any images, resumable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seepage.perceptual import LpipsWeights
from seepage.pieces.autoencoder import Autoencoder, LatentSize, save_autoencoder
from seepage.train.likeness import follow, psnr
from seepage.train.loop import Learners, Lesson, Training, halves, some

__all__ = ["AutoencoderTraining", "autoencoder_lesson"]


@dataclass(frozen=True)
class AutoencoderTraining(Training):
    """How an autoencoder is trained.

    Args:
        latent: `"S"`, `"M"` or `"L"`: 512, 2048 or 8192 numbers for an image of 128 × 128.
        noise: largest root mean square of the error of codes that it learns to bear; a search does not find them
            exactly.
        **more: knobs of every training, see `Training`.
    """

    latent: LatentSize = "L"
    noise: float = 0.08

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0:
            raise ValueError(f"expected `noise` of at least 0, got {self.noise}")


def autoencoder_lesson(how: AutoencoderTraining, pictures: Tensor, lpips: LpipsWeights | None = None) -> Lesson:
    """An autoencoder that learns from pictures; held-out ones are told as `psnr`, beside `psnr_noisy`.

    Args:
        how: knobs.
        pictures: bytes, (n, 3, height, width), on the device of the training; the last ones, a sixteenth of them and
            at most 64, are held out.
        lpips: weights of LPIPS, for a `perceptual` above 0.
    """
    learnt, unseen = (pictures[part] for part in halves(len(pictures)))
    learners = Learners(how, "autoencoder", lambda: Autoencoder(how.latent), pictures.device, lpips)
    net, device = learners.net, learners.device
    if any(side % net.factor for side in pictures.shape[-2:]):
        raise ValueError(f"expected sides of images that {net.factor} divides, got {tuple(pictures.shape[-2:])}")

    def error(count: int, draw: torch.Generator, share: Tensor | float) -> Tensor:
        places = (side // net.factor for side in pictures.shape[-2:])
        normal = torch.randn((count, net.normal.num_features, *places), generator=draw, device=device)
        return how.noise * share * normal

    def advance(draw: torch.Generator) -> dict[str, Tensor]:
        clean = some(learnt, how.batch, draw)[0].contiguous(memory_format=torch.channels_last)
        noise = error(len(clean), draw, torch.rand((len(clean), 1, 1, 1), generator=draw, device=device))
        net.train()
        return follow(learners, lambda: (net(clean, noise), {}), clean)

    @torch.no_grad()
    def examine() -> dict[str, float]:
        if not len(unseen):
            return {}
        clean = unseen.float() / 255
        noise = error(len(clean), learners.draw("held out"), 1.0)
        net.eval()
        return {
            "psnr": psnr(net(clean).clamp(0, 1), clean),
            "psnr_noisy": psnr(net(clean, noise).clamp(0, 1), clean),
        }

    def save(path: Path, about: dict[str, str]) -> None:
        save_autoencoder(net, path, about)

    return Lesson(learners, advance, examine, save)
