"""Training of the class-conditional generator that ROGS searches (yue2023, section 6), from any images, resumable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.generate import PictureDecoder, PictureEncoder, save_generator
from seepage.perceptual import LpipsWeights
from seepage.train.likeness import follow, psnr
from seepage.train.loop import Learners, Lesson, Training, some

__all__ = ["GeneratorTraining", "generator_lesson"]


@dataclass(frozen=True)
class GeneratorTraining(Training):
    """How a generator is trained.

    Args:
        divergence: weight of the divergence of an image's latent numbers from standard normal ones, in nats, beside
            the mean absolute error.
        zoom: smallest share of an image's side that is cut out of it and enlarged; 1 shows images whole.
        **more: knobs of every training, see `Training`.

    Note:
        yue2023 has BigGAN, which was trained on all of ImageNet for days.
    """

    divergence: float = 2e-4
    zoom: float = 0.75
    steps: int = field(default=20000, kw_only=True)
    lr: float = field(default=5e-4, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence < 0 or not 0 < self.zoom <= 1:
            raise ValueError(
                f"expected `divergence` of at least 0 and `zoom` in (0, 1], got {self.divergence} and {self.zoom}"
            )


class _Autoencoder(nn.Module):
    def __init__(self, classes: int, side: int) -> None:
        super().__init__()
        self.encoder, self.decoder = PictureEncoder(side), PictureDecoder(classes, side)

    def forward(self, images: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Images made anew, and the divergence of their latent numbers from standard normal ones."""
        mean, log_variance = self.encoder(images)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return self.decoder(mean + (0.5 * log_variance).exp() * noise, y), divergence


def generator_lesson(
    how: GeneratorTraining, pictures: Tensor, labels: Tensor, classes: int, lpips: LpipsWeights | None = None
) -> Lesson:
    """A generator that learns from pictures.

    Of classes with at least two pictures one in sixteen is held out, at most 64, and told as `psnr` of what the
    generator makes of their own latent numbers. Where each class has one picture, `psnr_learnt` is of learnt ones.

    Args:
        how: knobs.
        pictures: bytes, (n, 3, side, side), on the device of the training.
        labels: their classes, (n,).
        classes: how many there are.
        lpips: weights of LPIPS, for a `perceptual` above 0.
    """
    device = pictures.device
    labels = labels.to(device)
    held = held_out(labels)
    learnt, learnt_labels = pictures[~held], labels[~held]
    shown, shown_labels = (pictures[held], labels[held]) if held.any() else (learnt[:64], learnt_labels[:64])
    learners = Learners(how, "generator", lambda: _Autoencoder(classes, pictures.shape[-1]), device, lpips)
    net = learners.net

    def advance(draw: torch.Generator) -> dict[str, Tensor]:
        clean, chosen = some(learnt, how.batch, draw, upside_down=0.0)
        clean = _zoomed(clean, how.zoom, draw).contiguous(memory_format=torch.channels_last)
        noise = torch.randn((len(clean), net.decoder.latent), generator=draw, device=device)

        def make() -> tuple[Tensor, dict[str, Tensor]]:
            made, divergence = net(clean, learnt_labels[chosen], noise)
            return made, {"divergence": how.divergence * divergence}

        return follow(learners, make, clean)

    @torch.no_grad()
    def examine() -> dict[str, float]:
        clean = shown.float() / 255
        made = net.decoder(net.encoder(clean)[0], shown_labels)
        return {"psnr" if held.any() else "psnr_learnt": psnr(made, clean)}

    def save(path: Path, about: dict[str, str]) -> None:
        save_generator(net.decoder, path, about)

    return Lesson(learners, advance, examine, save)


def held_out(labels: Tensor) -> Tensor:
    """Which examples are held out: one in sixteen and at most 64, of classes that have others.

    Example:
        >>> held_out(torch.arange(32)).any(), held_out(torch.zeros(32).long()).sum()
        (tensor(False), tensor(2))
    """
    held = torch.zeros_like(labels, dtype=torch.bool)
    left = labels.bincount()
    for i in range(15, len(labels), 16):
        if left[labels[i]] > 1 and held.sum() < 64:
            held[i] = True
            left[labels[i]] -= 1
    return held


def _zoomed(images: Tensor, least: float, draw: torch.Generator) -> Tensor:
    """A random square of each image, at the size of the whole."""
    size, across, down = torch.rand((3, len(images)), generator=draw, device=images.device)
    size = least + (1 - least) * size
    zero = torch.zeros_like(size)
    # Coordinates from −1 to 1: a square of that size whose middle leaves it inside.
    shift = ((1 - size) * (2 * across - 1), (1 - size) * (2 * down - 1))
    places = torch.stack([size, zero, shift[0], zero, size, shift[1]], 1).reshape(-1, 2, 3)
    grid = functional.affine_grid(places, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
