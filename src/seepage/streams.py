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

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal numbers in the shape of a tensor, made on its own device.

        For one number per parameter and example, which would take longer to draw on the CPU than all else. The k-th
        pair is a hash of the key and of k (SplitMix64: Steele, Lea and Flood, 2014, https://doi.org/10.1145/2660193.2660195)
        by the transform of Box and Muller: the same on every device, but for the last digits of logarithm and cosine.

        Example:
            >>> Stream.from_seed(0).noise(torch.zeros(2, 3)).shape
            torch.Size([2, 3])
        """
        begin, odd = self.seed, int.from_bytes(self.key[8:16], "little", signed=True) | 1
        pairs = (like.numel() + 1) // 2
        bits = torch.arange(1, pairs + 1, device=like.device).mul_(odd).add_(begin)  # integers wrap around
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = bits.bitwise_xor_(_shifted(bits, shift)).mul_(factor - 2**64)
        bits = bits.bitwise_xor_(_shifted(bits, 31))
        dtype = torch.promote_types(like.dtype, torch.float32)
        size = (_shifted(bits, 40).to(dtype) + 0.5).mul_(2.0**-24).log_().mul_(-2).sqrt_()
        angle = (bits & (2**24 - 1)).to(dtype).mul_(torch.pi * 2.0**-23)
        return torch.cat([size * angle.cos(), size * angle.sin()])[: like.numel()].reshape(like.shape).to(like)


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, as if there were no sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
