"""Labels alone: what the last layer gives away before any input is reconstructed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from seepage.attacks.base import check_needs
from seepage.finding import Finding
from seepage.pieces.labels import METHODS, Geng, MethodName, guess_labels
from seepage.streams import Stream
from seepage.threat import Fact, View

__all__ = ["CountLabels"]


@dataclass(frozen=True)
class CountLabels:
    """Say how often each label occurs in each client's data, and how sure that is.

    Args:
        method: one of `seepage.pieces.labels.METHODS`; `"auto"` takes labels that are granted, else the best of them.
        formula: of the `geng-…` methods: from the head's `"bias"`, from its `"weight"`, or as the method has it
            (`"auto"`), which is the first there is but for `"geng-as-code"`.
        rounding: of the `geng-…` methods: as dimitrov2022's `"code"` does it, or as the method has it, which is to the
            `"nearest"` whole numbers but for `"geng-as-code"`.

    Note:
        An update says how often labels occur, not which example has which; they are answered in ascending order.
    """

    name: ClassVar[str] = "count-labels"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_code": {"method": "geng-interpolated", "formula": "weight", "rounding": "code"},  # dimitrov2022
    }

    method: MethodName = "auto"
    formula: Literal["auto", "bias", "weight"] = "auto"
    rounding: Literal["nearest", "code"] = "nearest"

    def __post_init__(self) -> None:
        if self.method not in ("auto", *METHODS):
            raise ValueError(f"expected `method` to be one of {['auto', *METHODS]}, got {self.method!r}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view."""
        check_needs(self, view)
        method = METHODS.get(self.method, self.method)  # "auto" is chosen when the view is known
        if isinstance(method, Geng) and self.formula != "auto":
            method = replace(method, formula=self.formula)
        if isinstance(method, Geng) and self.rounding != "nearest":
            method = replace(method, rounding=self.rounding)
        labels, confidence = guess_labels(view, rng / "labels", method)
        return Finding(labels=labels, confidence=confidence)
