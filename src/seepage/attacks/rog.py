"""ROG: reconstruction from obfuscated gradients.

Yue, Jin, Wong, Baron and Dai, 2023, "Gradient obfuscation gives a false sense of security in federated learning"
(yue2023, https://arxiv.org/abs/2206.04055).

The update is matched over a representation of the images that is smaller than they are, which takes a hundred
iterations where pixels take thousands; what comes out is blurred, and a trained network sharpens it (section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.film import shown_as
from seepage.engine.minimise import best_start, minimise
from seepage.engine.optimisers import adam, cosine
from seepage.engine.precision import Precision
from seepage.enhance import check_enhancer, enhance, load_enhancer
from seepage.finding import Finding
from seepage.local import local_update
from seepage.pieces.assign import combine, match_epochs
from seepage.pieces.autoencoder import AUTOENCODERS
from seepage.pieces.distances import squared
from seepage.pieces.filters import as_photographs, equalised
from seepage.pieces.labels import guess_labels
from seepage.pieces.priors import total_variation
from seepage.pieces.representations import Bicubic, Learnt, Representation
from seepage.pieces.starts import uniform_lanes
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["ROG", "mean_of"]

REACH = 4.0  # standard normal numbers reach that far, and pixels as far as 1: one step size serves both


@dataclass(frozen=True)
class ROG:
    """Reconstruct small images by matching the update, and enlarge and enhance them.

    Args:
        factor: height and width of an image over those of its representation; 1 is the pixels themselves.
        autoencoder: `"none"`, or one whose codes are searched in the place of small images (and of `factor`): its name
            if it comes with Seepage, or the path of one that `seepage train autoencoder` made.
        steps: iterations.
        lr: step size of Adam, in units of the range of a pixel; it falls as half a cosine to a tenth.
        tv: weight of total variation beside the distance, which is relative to the size of the update; images only.
        equalise: equalise the histogram of each image, which the paper does where signs alone were sent: they keep no
            contrast.
        as_photographs: for the same purpose, shift and stretch a client's images together to the mean and contrast of
            photographs: signs tell which image is brighter, but not how bright all of them are.
        enhancer: `"none"`, an enhancer that comes with Seepage, or the path of one that `seepage train enhancer` made.
        starts: restarts, of which the one with the lowest objective is answered.
        mean: answer the mean of all restarts' images instead, after matching them: what each of them makes up where the
            message is coarse differs, and cancels.
        precision: of products on a GPU; `"tf32"` is faster, and the row says so.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.

    Note:
        The paper's text and its released code agree on 100 iterations of plain squared distance over a representation
        of a quarter of the height and width: preset `as_code`. Both have the true labels, which a threat model must
        grant; else they are counted. Where the threat model grants the defence, it is simulated as `Defence.given` has
        it: eq. (15) for signs, and for the others what the paper leaves out. The paper's network that enhances images
        is not released with its training; ours has the same place and another form. The best candidate is answered,
        the last one by the code.
    """

    name: ClassVar[str] = "rog"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_code": {"factor": 4, "steps": 100},
        "ours": {"factor": 2, "steps": 300},
    }

    factor: int = 4
    autoencoder: str = "none"
    steps: int = 100
    lr: float = 0.05
    tv: float = 0.0
    equalise: bool = False
    as_photographs: bool = False
    enhancer: str = "none"
    starts: int = 1
    mean: bool = False
    precision: Precision = "fp32"
    chunk: int | None = None

    def __post_init__(self) -> None:
        Bicubic(self.factor)
        if self.autoencoder != "none":
            AUTOENCODERS.check(self.autoencoder)
            if self.tv:
                raise ValueError(f"expected `tv` of 0 beside an `autoencoder`: codes are no pixels; got {self.tv}")
        if self.enhancer != "none":
            check_enhancer(self.enhancer)

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        develop = self.developer(view)
        return develop(self._found(view, rng))

    @property
    def search(self) -> ROG:
        """See `Developing`."""
        return replace(self, equalise=False, as_photographs=False, enhancer="none")

    def developer(self, view: View) -> Callable[[Finding], Finding]:
        """See `Developing`."""
        spec, like = view.task.spec, next(iter(view.update.values()))
        net = None if self.enhancer == "none" else load_enhancer(self.enhancer, like.device)
        lower, upper = spec.box(like)

        def develop(found: Finding) -> Finding:
            assert found.inputs is not None
            if not spec.is_image or self == self.search:
                return found
            shown = (found.inputs - lower) / (upper - lower)  # (clients, count, channels, height, width)
            if self.as_photographs:
                shown = torch.stack([as_photographs(of_client) for of_client in shown])
            images = shown.flatten(0, 1)
            if self.equalise:
                images = equalised(images)
            if net is not None:
                images = enhance(net, images)
            return replace(found, inputs=lower + (upper - lower) * images.reshape(shown.shape))

        return develop

    def _found(self, view: View, rng: Stream) -> Finding:
        task, recipe, defence = view.task, view.assumed_recipe.followed, view.assumed_defence
        labels, sure = guess_labels(view, rng / "labels")
        small = self._representation(next(iter(view.update.values())))
        start = uniform_lanes(view, self.starts, rng / "start", view.count, *small.shape(task.spec.shape))
        lower, upper = task.spec.box(start)
        decoded = small.decoder(task.spec.shape, start)

        def images(z: Tensor) -> Tensor:
            return lower + (upper - lower) * decoded(z)

        # What a defence draws inside the module is unknown like the images, and is searched for beside them.
        drawn = defence.hidden(task.module, recipe, view.count)
        hidden = {name: start.new_zeros(*start.shape[:2], *shape) for name, shape in drawn.items()}

        def objective(x: Params, y: Tensor, params: Params, buffers: Params, update: Params) -> Tensor:
            z, guessed = x["images"], {name: REACH * x[name] for name in drawn}
            schedule = recipe.schedule(images(z), y)
            guess = local_update(task, params, schedule, recipe, defence.given(update), buffers={**buffers, **guessed})
            size = torch.stack([(u**2).sum() for u in update.values()]).sum()
            # Relative, because small updates have squares at which Adam's ε would slow it down.
            distance = squared(guess, update) / torch.where(size > 0, size, 1)  # eq. (12)
            return distance + self.tv * total_variation(z) if self.tv and task.spec.is_image else distance

        with shown_as(lambda x, _: images(x["images"])):
            found = minimise(
                objective,
                {"images": start, **hidden},
                (labels, view.params, view.buffers, view.update),
                optimiser=cosine(adam(self.lr), max(1, self.steps), final=0.1),
                steps=self.steps,
                chunk=self.chunk,
                batched=task.batched,
                precision=self.precision,
            )
        best = best_start(found)
        shown = images(best.x["images"])
        if self.mean:
            shown = torch.stack([mean_of(images(z), y) for z, y in zip(found.x["images"], labels, strict=True)])
        return Finding(shown, labels, best.value, best.status, best.first_value, sure)

    def _representation(self, like: Tensor) -> Representation:
        return Bicubic(self.factor) if self.autoencoder == "none" else Learnt.named(self.autoencoder, like)


def mean_of(shown: Tensor, labels: Tensor) -> Tensor:
    """Of the images that several searches found, (starts, count, …); which of one label came first is chance."""
    return combine(shown, match_epochs(shown, labels.expand(len(shown), -1)))
