"""A residual block of two convolutions, of which the networks are made that attacks bring with them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ResidualBlock"]


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions of one width, added to what they were given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps of the same shape."""
        out: Tensor = self.second(functional.gelu(self.first(x)))
        return x + out
