"""What matching in a small representation makes of an image, so that a network can learn to undo it.

A search that goes well ends near the representation whose image is nearest to the true one. Errors of a representation
are noise that pixels share with their neighbours. The paper degrades by plain down-sampling and white noise instead
(yue2023, section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.pieces.representations import Bicubic

__all__ = ["Degradation", "degrade"]


@dataclass(frozen=True)
class Degradation:
    """How badly.

    Args:
        factor: of the representation, as in `ROG`.
        least_noise: smallest root mean square of the error of a representation.
        most_noise: largest.
    """

    factor: int = 4
    least_noise: float = 0.03
    most_noise: float = 0.08

    def __post_init__(self) -> None:
        if not 0 <= self.least_noise <= self.most_noise:
            raise ValueError(f"expected 0 ≤ `least_noise` ≤ `most_noise`, got {self.least_noise} and {self.most_noise}")
        Bicubic(self.factor)


def degrade(images: Tensor, how: Degradation, rng: torch.Generator) -> Tensor:
    """Images as an attack would give them back.

    Args:
        images: (n, channels, height, width) in [0, 1].
        how: the degradation.
        rng: on the device of the images.

    Example:
        >>> clean = torch.rand(2, 3, 16, 16)
        >>> degrade(clean, Degradation(4, 0.05, 0.05), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 16, 16])
    """
    small = Bicubic(how.factor)
    z = small.encode(images)

    error = torch.randn(z.shape, generator=rng, device=z.device, dtype=z.dtype)
    draw = torch.rand((len(z), 1, 1, 1), generator=rng, device=z.device, dtype=z.dtype)
    size = how.least_noise + (how.most_noise - how.least_noise) * draw
    return small.decode(z + size * error, tuple(images.shape[-2:])).clamp(0, 1)
