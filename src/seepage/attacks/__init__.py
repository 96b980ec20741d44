"""Attacks: one file per method."""

from seepage.attacks.analytic import Analytic
from seepage.attacks.attribute_gradient import AttributeGradient
from seepage.attacks.attribute_inversion import AttributeInversion
from seepage.attacks.attribute_model import AttributeModel
from seepage.attacks.base import Attack
from seepage.attacks.count_labels import CountLabels
from seepage.attacks.dlg import DLG, IDLG
from seepage.attacks.dlm import DLM, DLMPlus
from seepage.attacks.fedavg import FedAvg
from seepage.attacks.fedavg_baselines import FedSGD, FedSGDEpoch, NoPrior, SharedVariables
from seepage.attacks.fedavg_unknown import UnknownCount, UnknownSchedule
from seepage.attacks.inverting_gradients import InvertingGradients
from seepage.attacks.lamp import LAMP
from seepage.attacks.lmra import LMRA, StandIn
from seepage.attacks.local_model import LocalModel
from seepage.attacks.model_inversion import ModelInversion
from seepage.attacks.patches import Patches
from seepage.attacks.rog import ROG
from seepage.attacks.rogs import ROGS
from seepage.attacks.sme import SME
from seepage.attacks.source_inference import SourceInference
from seepage.attacks.source_inversion import SourceInversion
from seepage.attacks.spear import Spear
from seepage.attacks.tableak import TabLeak
from seepage.attacks.tag import TAG
from seepage.attacks.tokens import Dager, TokenBag

__all__ = [
    "ATTACKS",
    "DLG",
    "DLM",
    "IDLG",
    "LAMP",
    "LMRA",
    "ROG",
    "ROGS",
    "SME",
    "TAG",
    "Analytic",
    "Attack",
    "AttributeGradient",
    "AttributeInversion",
    "AttributeModel",
    "CountLabels",
    "DLMPlus",
    "Dager",
    "FedAvg",
    "FedSGD",
    "FedSGDEpoch",
    "InvertingGradients",
    "LocalModel",
    "ModelInversion",
    "NoPrior",
    "Patches",
    "SharedVariables",
    "SourceInference",
    "SourceInversion",
    "Spear",
    "StandIn",
    "TabLeak",
    "TokenBag",
    "UnknownCount",
    "UnknownSchedule",
]

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind
    for kind in (
        InvertingGradients,
        TabLeak,
        DLG,
        IDLG,
        DLM,
        DLMPlus,
        CountLabels,
        Analytic,
        Patches,
        Spear,
        Dager,
        TokenBag,
        TAG,
        LAMP,
        SME,
        ROG,
        ROGS,
        FedAvg,
        NoPrior,
        SharedVariables,
        FedSGDEpoch,
        FedSGD,
        UnknownSchedule,
        UnknownCount,
        LocalModel,
        AttributeInversion,
        AttributeGradient,
        AttributeModel,
        LMRA,
        StandIn,
        SourceInference,
        SourceInversion,
        ModelInversion,
    )
}
