"""Networks as people have them: recorded in a training loop, examined, and attacked or refused with a reason."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from seepage.inspect.suite import Effort

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED: dict[str, tuple[str, dict[str, tuple[str, float] | str]]] = {
    "ResNet, train-mode BatchNorm": (
        "BatchNorm",
        {
            "count-labels": ("label_accuracy", 1.0),
            "analytic": "not applicable: expected single examples",
            "inverting-gradients": ("psnr", 0.0),
        },
    ),
    "ViT": (
        "",
        {
            "count-labels": ("label_accuracy", 1.0),
            "patches": ("psnr", 60.0),
            "inverting-gradients": ("psnr", 0.0),
        },
    ),
    "text transformer": ("", {"token-bag": ("token_bag", 1.0), "dager": ("token_accuracy", 1.0)}),
    "text transformer, dropout 0.1": ("dropout", {"token-bag": ("token_bag", 1.0), "dager": ("token_accuracy", 0.0)}),
    "text transformer, 3 local steps": ("", {"token-bag": ("token_bag", 1.0), "lamp": ("rouge1", 0.2)}),
    "LSTM on text": (
        "",
        {
            "token-bag": ("token_bag", 1.0),
            "lamp": ("rouge1", 0.2),
            "dager": "not applicable: expected a transformer",
        },
    ),
    "LSTM on series": ("", {"count-labels": ("label_accuracy", 1.0), "inverting-gradients": ("mae", 0.0)}),
    "tabular MLP": ("", {"analytic": ("exact_match", 1.0), "inverting-gradients": ("exact_match", 0.0)}),
}
"""What the doctor must hold against a leak, and of each attack the least that it must bring back, or its refusal."""


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example, with searches that are too short to find anything: that they run is what is looked at here."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(Effort, "steps", 5)
    monkeypatch.setattr(Effort, "restarts", 1)
    monkeypatch.setattr(Effort, "sweeps", 1)
    yield importlib.import_module("networks.__main__")
    for name in [name for name in sys.modules if name.split(".")[0] == "networks"]:
        del sys.modules[name]


@pytest.mark.parametrize("title", EXPECTED)
def test_a_network_is_recorded_examined_and_attacked_or_refused(
    title: str, networks: ModuleType, tmp_path: Path
) -> None:
    (case,) = [case for case in networks.CASES if case.title == title]
    networks.record(case, tmp_path)
    said, rows = networks.attack(case, tmp_path)
    doubt, expected = EXPECTED[title]
    assert not [one for one in said if one.get("status") == "problem"], "the capture is sound"
    assert doubt in networks.doubts(said)
    assert not rows["outcome"].str.startswith("error").any(), list(rows["outcome"])
    assert set(expected) <= set(rows["attack"])
    for attack, least in expected.items():
        part = rows[rows["attack"] == attack]
        if isinstance(least, str):
            assert part["outcome"].iloc[0].startswith(least)
        else:
            assert part.loc[part["metric"] == least[0], "value"].mean() >= least[1], attack
    assert all(f"`{attack}`" in " ".join(networks.outcome(rows)) for attack in expected)


def test_every_network_of_the_example_is_looked_at(networks: ModuleType) -> None:
    assert {case.title for case in networks.CASES} == {*EXPECTED, "ViT, batch"}
