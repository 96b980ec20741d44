"""Labels from the update of the last layer, one file per method.

For softmax and cross-entropy the gradient of the last layer's bias is mean(p) − share of each label, so that the labels
of a batch can be read off it once the mean prediction p is known; the methods differ in where they take p from.
"""

from seepage.pieces.labels.geng import Geng
from seepage.pieces.labels.guess import LabelGuess, LabelMethod, LabelsHidden, guess_from
from seepage.pieces.labels.idlg import Idlg
from seepage.pieces.labels.ilrg import Ilrg
from seepage.pieces.labels.recover import METHODS, MethodName, best_method, guess_labels, recover_labels
from seepage.pieces.labels.rlu import Rlu
from seepage.pieces.labels.rounding import round_as_code, round_counts

__all__ = [
    "METHODS",
    "Geng",
    "Idlg",
    "Ilrg",
    "LabelGuess",
    "LabelMethod",
    "LabelsHidden",
    "MethodName",
    "Rlu",
    "best_method",
    "guess_from",
    "guess_labels",
    "recover_labels",
    "round_as_code",
    "round_counts",
]
