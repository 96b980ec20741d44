"""The example that shows what the attacks of yue2023 see, cut short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seepage.attacks import ROG
from seepage.audit.experiment import read_experiment
from seepage.audit.run import run

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_six_photographs_are_attacked_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    experiment = read_experiment(EXAMPLES / "photographs" / "audit.toml")
    assert len(experiment.cases) == 7
    first = experiment.cases[0]
    attacks = (ROG(factor=8, steps=3), ROG(factor=8, steps=3, enhancer="dead-leaves-x4-perceptual"))
    short = replace(experiment, cases=[replace(first, attacks=attacks, labels=("found", "enhanced"))])
    table = run(short, tmp_path, device=torch.device("cpu"))
    rows = table.read()
    assert not rows["outcome"].str.startswith("error").any()
    assert (rows["metric"] == "psnr").sum() == 12
    for trial in table.finished():
        pictures = table.pictures(trial)
        assert pictures is not None
        assert pictures.truth.shape == (6, 96, 96, 3)
        assert 60 < pictures.truth.mean() < 130  # photographs, and not what a wrong range would make of them
