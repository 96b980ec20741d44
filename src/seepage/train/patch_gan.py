"""PatchGAN: a judge of how real small parts of an image look.

Isola, Zhu, Zhou and Efros, 2017, "Image-to-image translation with conditional adversarial networks"
(https://arxiv.org/abs/1611.07004), with spectral normalisation (Miyato et al., 2018, https://arxiv.org/abs/1802.05957)
and the widths of yue2023's released code.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

__all__ = ["PatchGan", "fooling_loss", "judging_loss"]


class PatchGan(nn.Module):
    """A score for each patch of an image, high for real ones.

    Note:
        The released code has BatchNorm beside spectral normalisation, and a sigmoid with the loss after it; here the
        loss takes scores, and there is no BatchNorm, so that an image is judged without its company.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 256)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [spectral_norm(nn.Conv2d(before, after, 3, stride=2, padding=1)), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, spectral_norm(nn.Conv2d(widths[-1], 1, 3, padding=1)))

    def forward(self, images: Tensor) -> Tensor:
        """Scores of patches of images in [0, 1], (n, 1, height / 8, width / 8)."""
        scores: Tensor = self.layers(2 * images - 1)
        return scores


def judging_loss(judge: nn.Module, real: Tensor, made: Tensor) -> Tensor:
    """What the judge minimises."""
    return functional.softplus(-judge(real)).mean() + functional.softplus(judge(made.detach())).mean()


def fooling_loss(judge: nn.Module, made: Tensor) -> Tensor:
    """What the maker of images minimises."""
    return functional.softplus(-judge(made)).mean()
