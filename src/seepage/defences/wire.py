"""How many bytes a message takes on the wire, once its values are written as a defence allows."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch import Tensor

__all__ = ["Wire"]

FLOAT = 32  # bits of a value, a scale or a count


@dataclass(frozen=True)
class Wire:
    """How the entries of a message are written: as codes of a fixed width, packed without gaps.

    Names and shapes, which both sides know, cost nothing, and nothing is compressed further: an entropy code, such as
    the Elias code of QSGD, would be shorter.

    Args:
        bits: of one entry.
        scales: whether a scale goes with each tensor, as a float32.
        sparse: whether zeros may be left out. A tensor is then sent as the shortest of: all entries; a bitmap and the
            entries that are not zero; a count, and an index of ⌈log₂ n⌉ bits with each of those.

    Example:
        >>> import torch
        >>> update = {"w": torch.tensor([0.0, 0.0, 0.0, 7.0] * 8)}
        >>> Wire().bytes(update), Wire(bits=3, scales=True).bytes(update), Wire(sparse=True).bytes(update)
        (128, 16, 36)
    """

    bits: int = FLOAT
    scales: bool = False
    sparse: bool = False

    def bytes(self, sent: dict[str, Tensor]) -> int:
        """Bytes of a whole message, each tensor rounded up to whole bytes."""
        return sum(ceil(self._tensor_bits(tensor) / 8) for tensor in sent.values())

    def _tensor_bits(self, tensor: Tensor) -> int:
        count, scale = tensor.numel(), FLOAT * self.scales
        dense = count * self.bits
        if not self.sparse:
            return dense + scale
        kept = int(tensor.count_nonzero())
        bitmap = count + kept * self.bits
        index = max(count - 1, 0).bit_length()  # ⌈log₂ n⌉
        return min(dense, bitmap, FLOAT + kept * (index + self.bits)) + scale
