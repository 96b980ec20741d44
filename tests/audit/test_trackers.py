"""What trackers are told is what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.audits import perform, tiny
from seepage.audit.trackers import tracker
from seepage.audit.values import SpecError


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_means_of_every_metric_and_accuracy_round_by_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'seepage[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    experiment = tiny(accuracy=True, federation={"rounds": 2})
    rows = perform(experiment, tmp_path, after=[tracker("tensorboard", tmp_path, "tiny")]).read()
    for trial in experiment.trials():
        read = EventAccumulator(str(tmp_path / "tensorboard" / trial.digest))
        read.Reload()
        own = rows[rows["trial"] == trial.digest]
        assert set(read.Tags()["scalars"]) == set(own["metric"])
        for metric, part in own.groupby("metric"):
            told = [event.value for event in read.Scalars(metric)]
            expected = part["value"].tolist() if metric == "accuracy" else [part["value"].mean()]
            assert told == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'seepage[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # else it wants a database
    experiment = tiny()
    rows = perform(experiment, tmp_path, after=[tracker("mlflow", tmp_path, "tiny")]).read()
    (told,) = mlflow.search_runs(experiment_names=["tiny"], output_format="list")
    assert told.data.metrics["psnr"] == pytest.approx(rows[rows["metric"] == "psnr"]["value"].mean())
    assert told.data.params["attack"] == "inverting-gradients"


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("tensorboard", "torch.utils.tensorboard", r"pip install 'seepage\[tensorboard\]'"),
        ("mlflow", "mlflow", r"pip install 'seepage\[mlflow\]'"),
        ("abacus", "abacus", r"--track: expected one of \['mlflow', 'tensorboard'\], got 'abacus'"),
    ],
)
def test_what_is_not_there_is_named(
    name: str, module: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError, match=message):
        tracker(name, tmp_path, "tiny")
