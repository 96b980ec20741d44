"""What trackers are told is what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.audits import perform, tiny
from seepage.audit.summary import over_clients
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
        told = {name: [event.value for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
        own = rows[rows["trial"] == trial.digest]
        if trial.attack is None:
            assert told == {"accuracy": pytest.approx(own["value"].tolist(), rel=1e-6)}
            continue
        assert set(told) == {f"{metric}{end}" for metric in own["metric"] for end in ("", "_low", "_high", "_clients")}
        for metric, part in own.groupby("metric"):
            expected = over_clients(part, metric)
            assert told[metric] == pytest.approx([expected.mean], rel=1e-6)
            assert told[f"{metric}_low"] == pytest.approx([expected.low], rel=1e-6)
            assert told[f"{metric}_high"] == pytest.approx([expected.high], rel=1e-6)
            assert told[f"{metric}_clients"] == [3]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'seepage[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # else it wants a database
    experiment = tiny()
    rows = perform(experiment, tmp_path, after=[tracker("mlflow", tmp_path, "tiny")]).read()
    (told,) = mlflow.search_runs(experiment_names=["tiny"], output_format="list")
    expected = over_clients(rows[rows["metric"] == "psnr"], "psnr")
    psnr = {
        name: value for name, value in told.data.metrics.items() if name.split("_")[0] == "psnr" and "_of_" not in name
    }
    assert psnr == pytest.approx(
        {"psnr": expected.mean, "psnr_low": expected.low, "psnr_high": expected.high, "psnr_clients": 3}
    )
    assert told.data.params["attack"] == "inverting-gradients"


@pytest.mark.filterwarnings("ignore")
def test_one_client_with_one_image_has_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'seepage[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    perform(tiny(), tmp_path, limit=1, after=[tracker("mlflow", tmp_path, "one")])
    (told,) = mlflow.search_runs(experiment_names=["one"], output_format="list")
    assert told.data.metrics["psnr_clients"] == 1
    assert not [name for name in told.data.metrics if name.endswith(("_low", "_high"))]


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
