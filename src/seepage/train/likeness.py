"""What a network that makes images is told about them: absolute error, LPIPS, and the verdict of a PatchGAN."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from seepage.metrics.perceptual import LpipsWeights, perceptual_distance
from seepage.train.loop import Knobs, Learners
from seepage.train.patch_gan import fooling_loss, judging_loss

__all__ = ["check_lpips", "follow", "psnr"]


def check_lpips(how: Knobs, lpips: LpipsWeights | None) -> None:
    """Refuse a perceptual training without the weights of the metric."""
    if how.perceptual and lpips is None:
        raise ValueError("expected `lpips` weights for a `perceptual` above 0, got none; run `seepage fetch lpips`")


def follow(
    learners: Learners,
    make: Callable[[], tuple[Tensor, dict[str, Tensor]]],
    clean: Tensor,
    lpips: LpipsWeights | None,
) -> dict[str, Tensor]:
    """One step of the network `net`, and of its `judge` where there is one, towards given images.

    Args:
        learners: with a `net`, and a `judge` if `adversarial` is above 0.
        make: the images that the network makes of what it is given, in its own precision, and further terms of its
            loss.
        clean: what they should be, (n, 3, height, width) in [0, 1].
        lpips: weights of the metric, for a `perceptual` above 0.

    Returns:
        Every term of the losses: `l1`, what `make` adds, and, where asked for, `lpips`, `fooling` and `judging`.
    """
    how = learners.how
    with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
        made, more = make()
        made = made.float()
        losses = {"l1": functional.l1_loss(made, clean), **more}
        if how.perceptual and lpips is not None:
            losses["lpips"] = perceptual_distance(made, clean, 0.0, 1.0, lpips).mean()
        if how.adversarial:
            losses["fooling"] = fooling_loss(learners.modules["judge"], made)
    share = {"lpips": how.perceptual, "fooling": how.adversarial}
    learners.step("net", torch.stack([share.get(name, 1.0) * loss for name, loss in losses.items()]).sum())
    if how.adversarial:
        with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
            losses["judging"] = judging_loss(learners.modules["judge"], clean, made)
        learners.step("judge", losses["judging"])
    return losses


def psnr(made: Tensor, clean: Tensor) -> float:
    """Mean PSNR of images in [0, 1]."""
    return float(-10 * (made - clean).square().mean((1, 2, 3)).clamp(min=1e-10).log10().mean())
