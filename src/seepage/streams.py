"""Randomness as an argument: named, one-way streams from one seed.

A stream is a 256-bit key. Its children are hashes of that key and a name, so the holder of one child can
reach neither its parent nor its siblings: an attack that is handed `root / "attack"` cannot replay
what a client drew from `root / "client" / 3`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

__all__ = ["Stream"]


@dataclass(frozen=True)
class Stream:
    """A named source of randomness.

    Example:
        >>> root = Stream.from_seed(0)
        >>> client, attack = root / "client" / 3, root / "attack"
        >>> client == Stream.from_seed(0) / "client" / 3
        True
        >>> torch.randn(2, generator=client.generator()).equal(torch.randn(2, generator=attack.generator()))
        False
    """

    key: bytes

    @classmethod
    def from_seed(cls, seed: int) -> Stream:
        """The root stream of a run."""
        return cls(hashlib.sha256(f"seepage:{seed}".encode()).digest())

    def __truediv__(self, name: str | int) -> Stream:
        return Stream(hashlib.sha256(self.key + f"/{type(name).__name__}:{name}".encode()).digest())

    def __repr__(self) -> str:
        return f"Stream({self.key.hex()[:8]}…)"

    @property
    def seed(self) -> int:
        """A 63-bit seed for generators that want an integer."""
        return int.from_bytes(self.key[:8], "little") >> 1

    def generator(self) -> torch.Generator:
        """A fresh CPU generator at the start of this stream.

        Draws are made on the CPU and moved, so that a seed means the same numbers on every device.
        """
        return torch.Generator().manual_seed(self.seed)

    def normal(
        self, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Standard normal numbers from the start of this stream.

        Example:
            >>> Stream.from_seed(0).normal(2, 3).shape
            torch.Size([2, 3])
        """
        return torch.randn(shape, generator=self.generator(), dtype=torch.float64).to(device=device, dtype=dtype)
