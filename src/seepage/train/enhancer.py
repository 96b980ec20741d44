"""Training of the post-processor of ROG (yue2023, appendix A), from any images, resumable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from seepage.enhance.degrade import Degradation, degrade
from seepage.enhance.network import Enhancer, enhance
from seepage.enhance.weights import save_enhancer
from seepage.metrics.perceptual import LpipsWeights
from seepage.streams import Stream
from seepage.train.likeness import check_lpips, follow, psnr
from seepage.train.loop import Learners, Lesson, check_knobs, first_weights, halves, some
from seepage.train.patch_gan import PatchGan

__all__ = ["EnhancerTraining", "enhancer_lesson"]


@dataclass(frozen=True)
class EnhancerTraining:
    """How an enhancer is trained.

    Args:
        degradation: what it learns to undo.
        steps: of Adam.
        batch: images per step.
        lr: first learning rate; it falls as half a cosine to a hundredth.
        perceptual: weight of LPIPS beside the mean absolute error.
        adversarial: weight of a PatchGAN's verdict.
        seed: of everything random.

    Note:
        yue2023 adds the verdict of a PatchGAN to the absolute error, with learning rates of 1e-5, and does not say with
        which weight.
    """

    degradation: Degradation = field(default_factory=Degradation)
    steps: int = 8000
    batch: int = 32
    lr: float = 1e-3
    perceptual: float = 0.0
    adversarial: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_knobs(self)


def enhancer_lesson(how: EnhancerTraining, pictures: Tensor, lpips: LpipsWeights | None = None) -> Lesson:
    """An enhancer that learns from pictures; held-out ones are told as `psnr`, beside `psnr_before`.

    Args:
        how: knobs.
        pictures: bytes, (n, 3, height, width), on the device of the training; the last ones, a sixteenth of them and
            at most 64, are held out.
        lpips: weights of LPIPS, for a `perceptual` above 0.
    """
    check_lpips(how, lpips)
    device = pictures.device
    learnt, unseen = (pictures[part] for part in halves(len(pictures)))
    rng = Stream.from_seed(how.seed) / "enhancer"
    with first_weights(rng):
        net, judge = Enhancer(), PatchGan()
    learners = Learners(how, device, {"net": net, "judge": judge})
    weights = None if lpips is None else lpips.to(device)

    def advance(draw: torch.Generator) -> dict[str, Tensor]:
        clean, _ = some(learnt, how.batch, draw)
        blurred = degrade(clean, how.degradation, draw).contiguous(memory_format=torch.channels_last)
        clean = clean.contiguous(memory_format=torch.channels_last)
        return follow(learners, lambda: (net(blurred), {}), clean, weights)

    def examine() -> dict[str, float]:
        if not len(unseen):
            return {}
        clean = unseen.float() / 255
        blurred = degrade(clean, how.degradation, torch.Generator(device).manual_seed((rng / "held out").seed))
        return {"psnr": psnr(enhance(net, blurred), clean), "psnr_before": psnr(blurred, clean)}

    def save(path: Path, about: dict[str, str]) -> None:
        save_enhancer(net, path, about)

    return Lesson(learners, advance, examine, save, rng, device)
