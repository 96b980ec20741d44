"""The pages about attacks, defences and threat models name all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from seepage.attacks import ATTACKS
from seepage.defences import DEFENCES
from seepage.threat import THREATS, Fact

DOCS = Path(__file__).parents[1] / "docs"


def missing(page: str, names: list[str]) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [name for name in names if f"`{name}`" not in text]


@pytest.mark.parametrize(("page", "kinds"), [("attacks.md", ATTACKS), ("defences.md", DEFENCES)])
def test_every_attack_and_defence_is_named_with_its_presets(page: str, kinds: dict[str, type]) -> None:
    presets = [preset for kind in kinds.values() for preset in kind.presets]  # type: ignore[attr-defined]
    assert missing(page, [*kinds, *presets]) == []


def test_every_threat_model_and_fact_is_named() -> None:
    assert missing("threats.md", [*THREATS, *(fact.value for fact in Fact)]) == []
