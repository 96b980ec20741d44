"""The share of a client's images that came back recognisably."""

from __future__ import annotations

from torch import Tensor

__all__ = ["THRESHOLD", "recovered"]

THRESHOLD = 20.0
"""In dB: a root mean square error of a tenth of the range, about where a person recognises the picture."""


def recovered(psnr_values: Tensor, threshold: float = THRESHOLD) -> float:
    """Share of images whose PSNR is strictly above the threshold; NaN is not recovered.

    Args:
        psnr_values: one PSNR per true image (n,) in dB, NaN where an attack gave nothing.
        threshold: in dB.

    Example:
        >>> import torch
        >>> recovered(torch.tensor([31.0, 20.0, 12.5, float("nan")]))
        0.25
    """
    if psnr_values.ndim != 1 or len(psnr_values) == 0:
        raise ValueError(
            f"expected one PSNR per image of shape (n,) with n at least 1, got shape {tuple(psnr_values.shape)}"
        )
    return int((psnr_values > threshold).sum()) / len(psnr_values)
