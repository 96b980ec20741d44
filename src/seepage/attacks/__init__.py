"""Attacks: one file per method."""

from seepage.attacks.analytic import Analytic
from seepage.attacks.base import Attack
from seepage.attacks.count_labels import CountLabels
from seepage.attacks.dlg import DLG, IDLG
from seepage.attacks.dlm import DLM, DLMPlus
from seepage.attacks.fedavg import FedAvg
from seepage.attacks.fedavg_baselines import FedSGD, FedSGDEpoch, NoPrior, SharedVariables
from seepage.attacks.fedavg_unknown import UnknownCount, UnknownSchedule
from seepage.attacks.inverting_gradients import InvertingGradients
from seepage.attacks.local_model import LocalModel
from seepage.attacks.sme import SME
from seepage.attacks.spear import Spear

__all__ = [
    "ATTACKS",
    "DLG",
    "DLM",
    "IDLG",
    "SME",
    "Analytic",
    "Attack",
    "CountLabels",
    "DLMPlus",
    "FedAvg",
    "FedSGD",
    "FedSGDEpoch",
    "InvertingGradients",
    "LocalModel",
    "NoPrior",
    "SharedVariables",
    "Spear",
    "UnknownCount",
    "UnknownSchedule",
]

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        InvertingGradients,
        DLG,
        IDLG,
        DLM,
        DLMPlus,
        CountLabels,
        Analytic,
        Spear,
        SME,
        FedAvg,
        NoPrior,
        SharedVariables,
        FedSGDEpoch,
        FedSGD,
        UnknownSchedule,
        UnknownCount,
        LocalModel,
    )
}
