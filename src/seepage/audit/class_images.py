"""The judge of attacks that say what the classes of a client look like."""

from __future__ import annotations

from torch import Tensor

from seepage.attacks.model_inversion import class_images
from seepage.audit.own_network import own_model
from seepage.capture import Capture, Secret
from seepage.metrics.baselines import best_constant, mean_image
from seepage.metrics.pixels import ssim
from seepage.metrics.score import Score
from seepage.threat import Setting

__all__ = ["class_scores"]


def class_scores(found: Tensor, capture: Capture, secret: Secret, setting: Setting) -> list[Score]:
    """How alike a client's images are to what was said of their classes, beside guesses without any leak.

    Args:
        found: one input per class, (classes, …).
        capture: what the attack saw.
        secret: the client's data.
        setting: the federation; its public examples give a baseline, whoever the attacker is.
    """
    task, examples = setting.task, secret.examples.to("cpu")
    spec = task.spec
    if not spec.is_image:
        return []
    truth, y = spec.pixels(examples.x), examples.y

    def like(pixels: Tensor) -> float:
        return float(ssim(pixels, truth, spec.low, spec.high).mean())

    buffers = {**task.buffers, **capture.exchanges[-1].buffers_before}
    own, kept = ({n: t[None] for n, t in tree.items()} for tree in (own_model(capture, secret, setting), buffers))
    best = class_images(task, own, kept, train=setting.recipe.train).x[0, 0]
    scores = {
        "class_ssim": like(spec.pixels(found.cpu())[y]),
        "class_ssim_of_optimum": like(spec.pixels(best.cpu())[y]),
        "class_ssim_of_constant": like(best_constant(truth)),
    }
    if setting.public is not None:
        scores["class_ssim_of_public_mean"] = like(spec.pixels(mean_image(setting.public).cpu()).expand_as(truth))
    return [Score("all", metric, value) for metric, value in scores.items()]
