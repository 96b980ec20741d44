"""Noise on the gradients of local training.

Dimitrov, Balunović, Konstantinov and Vechev, 2022, "Data leakage in federated averaging"
(https://arxiv.org/abs/2206.12395), appendix C.1; with clipping before it, this is the noise of Abadi et al., 2016,
"Deep learning with differential privacy" (https://arxiv.org/abs/1607.00133).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.defences.base import Defence, NoDefence
from seepage.defences.placed import Placed, Where
from seepage.defences.wire import Wire
from seepage.streams import Stream

__all__ = ["GradientNoise"]


@dataclass(frozen=True)
class GradientNoise(Placed):
    """Add independent noise to every entry of every gradient.

    Args:
        scale: of the noise, σ in Table 6: the deviation of a Gaussian; the scale b of a Laplacian, whose deviation is
            √2·b.
        kind: `"gaussian"` or `"laplacian"`.
        where: on the gradient of each local `"step"`; of each `"example"`, whose mean over a batch of m then has noise
            of deviation σ/√m; or on the `"update"` that is sent.
        reuse: the same noise in every epoch, for the gradient at the same place of it.

    Note:
        The text says that noise is added "to the communicated gradients", as in Abadi et al.: `as_paper` noises each
        step anew. The released code noises each example's gradient and draws once for all epochs: `as_code`. Over E
        epochs of B batches the update then has noise of deviation ησ·E·√(B/m), against ησ·√(E·B) by the text: 1.4 times
        as much for E = B = 10 and m = 5. That Table 6 has b for its Laplacian "σ" is the code's way, and fits: 0.02
        costs as much accuracy as 0.03 of the Gaussian. The code also draws from one key for every tensor; as tensors
        differ in size, so does what they get, and here they are independent. Its training repeats the noise in every
        round besides, which is a matter of the federation (`Federation.repeats`) and most likely what costs it
        accuracy.

    Example:
        >>> GradientNoise(0.01, kind="laplacian").expected
        NoDefence()
    """

    name: ClassVar[str] = "gradient-noise"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"where": "step"},
        "as_code": {"where": "example", "reuse": True},
    }

    scale: float = 0.01
    kind: Literal["gaussian", "laplacian"] = "gaussian"
    where: Where = "step"
    reuse: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale < 0:
            raise ValueError(f"expected `scale` of at least 0, got {self.scale}")
        if self.kind not in ("gaussian", "laplacian"):
            raise ValueError(f"expected `kind` to be 'gaussian' or 'laplacian', got {self.kind!r}")

    @property
    def expected(self) -> Defence:
        """The noise has mean zero: nothing is left."""
        return NoDefence()

    @property
    def only_adds_to_examples(self) -> bool:
        """Where their gradients are the place."""
        return self.where == "example"

    def changed(self, gradient: Tensor, rng: Stream | None) -> Tensor:
        """The gradient plus its noise."""
        if rng is None or not self.scale:
            return gradient
        # Single precision where it will do: one number per parameter and example is drawn at every step.
        dtype, generator = torch.promote_types(gradient.dtype, torch.float32), rng.generator()
        if self.kind == "gaussian":
            noise = torch.randn(gradient.shape, generator=generator, dtype=dtype)
        else:  # an exponential number on either side of zero, both from one draw
            twice = 2 * torch.rand(gradient.shape, generator=generator, dtype=dtype)
            side = twice.floor()
            noise = (1 - 2 * side) * torch.log1p(side - twice)
        return gradient + self.scale * noise.to(gradient)

    def wire(self, before: Wire) -> Wire:
        """Floats: nothing is zero or on a level any more, where what is sent is noised."""
        return Wire() if self.where == "update" else before
