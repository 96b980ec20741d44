"""What Data Leakage in Federated Averaging is compared with: the same attack with less in it.

Dimitrov, Balunović, Konstantinov and Vechev, 2022 (dimitrov2022, https://arxiv.org/abs/2206.12395), section 5.1. Each
is `FedAvg` with other values of some fields, and no code of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from seepage.attacks.fedavg import FedAvg

__all__ = ["FedSGD", "FedSGDEpoch", "NoPrior", "SharedVariables"]


def _without_prior(presets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The presets with a prior of weight 0, for which the statistic and its convolution are not computed."""
    return {name: {**knobs, "order": 0.0} for name, knobs in presets.items()}


@final
@dataclass(frozen=True)
class NoPrior(FedAvg):
    """Ours (no prior) of dimitrov2022: dummies of their own for each epoch, which nothing holds together."""

    name: ClassVar[str] = "fedavg-no-prior"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = _without_prior(FedAvg.presets)

    order: float = 0.0


@final
@dataclass(frozen=True)
class SharedVariables(FedAvg):
    """Shared of dimitrov2022: the same dummies in the same batches in all epochs, as geiping2020 simulates clients."""

    name: ClassVar[str] = "fedavg-shared"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = _without_prior(FedAvg.presets)

    order: float = 0.0
    variables: Literal["epochs", "shared"] = "shared"


@final
@dataclass(frozen=True)
class FedSGDEpoch(FedAvg):
    """FedSGD-Epoch of dimitrov2022: each epoch as one step on all examples, as long as all its steps together.

    Note:
        The text matches and averages dummies of their own for each epoch (`variables = "epochs"`, in the presets
        `as_paper_…`); the code shares them.
    """

    name: ClassVar[str] = "fedavg-fedsgd-epoch"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {**knobs, "variables": "epochs"} if name.startswith("as_paper") else knobs
        for name, knobs in _without_prior(FedAvg.presets).items()
    }

    order: float = 0.0
    variables: Literal["epochs", "shared"] = "shared"
    simulates: Literal["steps", "epochs", "gradient"] = "epochs"


@final
@dataclass(frozen=True)
class FedSGD(FedAvg):
    """FedSGD of dimitrov2022: the update taken for one gradient on all examples times the number of steps.

    Geng et al., 2021, "Towards general deep leakage in federated learning" (https://arxiv.org/abs/2110.09074).
    """

    name: ClassVar[str] = "fedavg-fedsgd"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = _without_prior(FedAvg.presets)

    order: float = 0.0
    variables: Literal["epochs", "shared"] = "shared"
    simulates: Literal["steps", "epochs", "gradient"] = "gradient"
