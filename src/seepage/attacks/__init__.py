"""Attacks: one file per method."""

from seepage.attacks.base import Attack
from seepage.attacks.inverting_gradients import InvertingGradients

__all__ = ["ATTACKS", "Attack", "InvertingGradients"]

ATTACKS: dict[str, type[Attack]] = {kind.name: kind for kind in (InvertingGradients,)}
