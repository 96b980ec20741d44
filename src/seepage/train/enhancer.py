"""Training of the post-processor of ROG (yue2023, appendix A), from any images, resumable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from seepage.enhance.degrade import Degradation, degrade
from seepage.enhance.network import Enhancer, enhance
from seepage.enhance.weights import save_enhancer
from seepage.perceptual import LpipsWeights
from seepage.train.likeness import follow, psnr
from seepage.train.loop import Learners, Lesson, Training, halves, some

__all__ = ["EnhancerTraining", "enhancer_lesson"]


@dataclass(frozen=True)
class EnhancerTraining(Training):
    """How an enhancer is trained.

    Args:
        degradation: what it learns to undo.
        **more: knobs of every training, see `Training`.

    Note:
        yue2023 adds the verdict of a PatchGAN to the absolute error, with learning rates of 1e-5, and does not say with
        which weight.
    """

    degradation: Degradation = field(default_factory=Degradation)


def enhancer_lesson(how: EnhancerTraining, pictures: Tensor, lpips: LpipsWeights | None = None) -> Lesson:
    """An enhancer that learns from pictures; held-out ones are told as `psnr`, beside `psnr_before`.

    Args:
        how: knobs.
        pictures: bytes, (n, 3, height, width), on the device of the training; the last ones, a sixteenth of them and
            at most 64, are held out.
        lpips: weights of LPIPS, for a `perceptual` above 0.
    """
    learnt, unseen = (pictures[part] for part in halves(len(pictures)))
    learners = Learners(how, "enhancer", Enhancer, pictures.device, lpips)
    net = learners.net

    def advance(draw: torch.Generator) -> dict[str, Tensor]:
        clean, _ = some(learnt, how.batch, draw)
        blurred = degrade(clean, how.degradation, draw).contiguous(memory_format=torch.channels_last)
        clean = clean.contiguous(memory_format=torch.channels_last)
        return follow(learners, lambda: (net(blurred), {}), clean)

    def examine() -> dict[str, float]:
        if not len(unseen):
            return {}
        clean = unseen.float() / 255
        blurred = degrade(clean, how.degradation, learners.draw("held out"))
        return {"psnr": psnr(enhance(net, blurred), clean), "psnr_before": psnr(blurred, clean)}

    def save(path: Path, about: dict[str, str]) -> None:
        save_enhancer(net, path, about)

    return Lesson(learners, advance, examine, save)
