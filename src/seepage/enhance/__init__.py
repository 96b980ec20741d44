"""From blurred reconstructions to images: the network, how it is stored, and the blur that it learns to undo."""

from seepage.enhance.degrade import Degradation, degrade
from seepage.enhance.network import Enhancer, enhance
from seepage.enhance.weights import check_enhancer, load_enhancer, save_enhancer, shipped

__all__ = [
    "Degradation",
    "Enhancer",
    "check_enhancer",
    "degrade",
    "enhance",
    "load_enhancer",
    "save_enhancer",
    "shipped",
]
