"""Attacks: one file per method."""

from seepage.attacks.analytic import Analytic
from seepage.attacks.base import Attack
from seepage.attacks.count_labels import CountLabels
from seepage.attacks.dlg import DLG, IDLG
from seepage.attacks.dlm import DLM, DLMPlus
from seepage.attacks.inverting_gradients import InvertingGradients
from seepage.attacks.spear import Spear

__all__ = [
    "ATTACKS",
    "DLG",
    "DLM",
    "IDLG",
    "Analytic",
    "Attack",
    "CountLabels",
    "DLMPlus",
    "InvertingGradients",
    "Spear",
]

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind for kind in (InvertingGradients, DLG, IDLG, DLM, DLMPlus, CountLabels, Analytic, Spear)
}
