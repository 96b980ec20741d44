"""ROGS: reconstruction from obfuscated gradients at the semantic level.

Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a false sense of security in federated learning"
(yue2023, https://arxiv.org/abs/2206.04055), section 6.

ROG's images are right and blurred. A generator of images is searched for those of the same class that look most like
them: what is lost in pixels is gained in what they show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from seepage.attacks.base import check_needs
from seepage.attacks.rog import ROG
from seepage.engine.film import shown_as
from seepage.engine.minimise import best_start, minimise
from seepage.engine.optimisers import adam
from seepage.engine.precision import Precision
from seepage.finding import Finding, NotApplicable
from seepage.generate import Generator, check_generator, load_generator
from seepage.home import data_folder
from seepage.perceptual import load_lpips, perceptual_distance
from seepage.pieces.starts import normal_lanes
from seepage.streams import Stream
from seepage.threat import Fact, View

__all__ = ["ROGS"]


@dataclass(frozen=True)
class ROGS:
    """Find images by `rog`, and a generator's images that look like them.

    Args:
        generator: the path of one that `seepage train generator` made, or of public weights of BigGAN-deep.
        rog: how the images are found that the generator is to match.
        distance: weight of the root mean square difference of pixels in [0, 1], λ₁ in eq. (20).
        perceptual: weight of LPIPS, λ₂ in eq. (20); its weights are looked for in the folder of data sets.
        steps: iterations.
        lr: step size of Adam over the standard normal numbers that images are made of.
        starts: random latent numbers for each image to begin with; the end with the lowest objective is answered.
        precision: of products on a GPU.
        chunk: most images × restarts in one program; `None` is as many as memory allows.

    Note:
        Classes are the labels that `rog` was told, or counted. Eq. (20) has the norm of the difference, which grows
        with the number of pixels and would leave LPIPS without a say; the root of the mean has the size of LPIPS. The
        paper gives no step size and no restarts. Images are compared at the size of the generator's.
    """

    name: ClassVar[str] = "rogs"
    needs: ClassVar[frozenset[Fact]] = ROG.needs
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    generator: str = "generator.safetensors"
    rog: ROG = field(default_factory=ROG)
    distance: float = 1.0
    perceptual: float = 1.0
    steps: int = 1000
    lr: float = 0.05
    starts: int = 1
    precision: Precision = "fp32"
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_generator(self.generator)
        if self.distance < 0 or self.perceptual < 0 or self.distance + self.perceptual == 0:
            raise ValueError(
                "expected `distance` and `perceptual` of at least 0 and not both 0, "
                f"got {self.distance} and {self.perceptual}"
            )

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        spec, like = view.task.spec, next(iter(view.update.values()))
        if not spec.is_image or spec.shape[0] not in (1, 3):
            raise NotApplicable(f"expected images with 1 or 3 channels, got inputs of shape {spec.shape}")
        # Before the work, so that a missing file is noticed at once.
        generator = load_generator(self.generator, like)
        if spec.classes is None or spec.classes > generator.classes:
            raise NotApplicable(
                f"expected at most the {generator.classes} classes that the generator {self.generator} knows, "
                f"got {spec.classes}; train one on the same kind of data"
            )
        lpips = load_lpips(data_folder(view.folder)).to(like.device) if self.perceptual else None

        blurred = self.rog(view, rng / "rog")
        assert blurred.inputs is not None
        assert blurred.labels is not None
        lower, upper = spec.box(like)
        pixels = ((blurred.inputs - lower) / (upper - lower)).clamp(0, 1).flatten(0, 1)  # (images, channels, h, w)
        targets = _resized(pixels.expand(-1, 3, -1, -1), generator.side, generator.side)

        def objective(z: Tensor, target: Tensor, y: Tensor) -> Tensor:
            made = generator(z[None], y[None])
            loss = self.distance * (made - target).square().mean().clamp(min=1e-12).sqrt()  # eq. (20)
            if lpips is not None:
                loss = loss + self.perceptual * perceptual_distance(made, target[None], 0.0, 1.0, lpips)[0]
            return loss

        classes = blurred.labels.flatten()

        def images(z: Tensor, y: Tensor) -> Tensor:
            made = _resized(_generated(generator, z, y), *spec.shape[1:])
            made = made.mean(1, keepdim=True) if spec.shape[0] == 1 else made
            return lower + (upper - lower) * made.clamp(0, 1)

        def of_lanes(z: Tensor, begin: int) -> Tensor:
            return images(z, classes.repeat_interleave(self.starts)[begin : begin + len(z)])

        start = normal_lanes(view, self.starts, rng / "start", view.count, generator.latent)
        with shown_as(of_lanes, clients=len(blurred.labels)):
            found = best_start(
                minimise(
                    objective,
                    start.transpose(1, 2).flatten(0, 1),  # every image is a lane of its own
                    (targets, classes),
                    optimiser=adam(self.lr),
                    steps=self.steps,
                    chunk=self.chunk,
                    precision=self.precision,
                )
            )

        def of_clients(values: Tensor) -> Tensor:
            return values.reshape(blurred.labels.shape)  # type: ignore[union-attr]  # there are labels, see above

        return Finding(
            images(found.x, classes).reshape(*blurred.labels.shape, *spec.shape),
            blurred.labels,
            of_clients(found.value).mean(1),
            of_clients(found.status).amax(1),  # the worst of a client's images
            of_clients(found.first_value).mean(1),
            blurred.confidence,
        )


@torch.no_grad()
def _generated(generator: Generator, z: Tensor, y: Tensor) -> Tensor:
    return torch.cat([generator(*part) for part in zip(z.split(32), y.split(32), strict=True)])


def _resized(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[-2:] == (height, width):
        return images
    return functional.interpolate(images, (height, width), mode="bicubic", antialias=True, align_corners=False)
