"""What a network that makes images is told about them: absolute error, LPIPS, and the verdict of a PatchGAN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.perceptual import perceptual_distance
from seepage.train.loop import Learners
from seepage.train.patch_gan import fooling_loss, judging_loss

__all__ = ["follow", "psnr"]


def follow(
    learners: Learners[Any], make: Callable[[], tuple[Tensor, dict[str, Tensor]]], clean: Tensor
) -> dict[str, Tensor]:
    """One step of a network, and of its judge if `adversarial` is above 0, towards given images.

    Args:
        learners: the network and its judge.
        make: the images that the network makes of what it is given, in its own precision, and further terms of its
            loss.
        clean: what they should be, (n, 3, height, width) in [0, 1].

    Returns:
        Every term of the losses: `l1`, what `make` adds, and, where asked for, `lpips`, `fooling` and `judging`.
    """
    how = learners.how
    with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
        made, more = make()
        made = made.float()
        losses = {"l1": functional.l1_loss(made, clean), **more}
        if how.perceptual and learners.lpips is not None:
            losses["lpips"] = perceptual_distance(made, clean, 0.0, 1.0, learners.lpips).mean()
        if how.adversarial:
            losses["fooling"] = fooling_loss(learners.judge, made)
    share = {"lpips": how.perceptual, "fooling": how.adversarial}
    learners.step("net", torch.stack([share.get(name, 1.0) * loss for name, loss in losses.items()]).sum())
    if how.adversarial:
        with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
            losses["judging"] = judging_loss(learners.judge, clean, made)
        learners.step("judge", losses["judging"])
    return losses


def psnr(made: Tensor, clean: Tensor) -> float:
    """Mean PSNR of images in [0, 1]."""
    return float(-10 * (made - clean).square().mean((1, 2, 3)).clamp(min=1e-10).log10().mean())
