"""Experiment trackers: each finished trial as one run of TensorBoard or MLflow, with mean and interval of every metric.

Beside `psnr` stand `psnr_low` and `psnr_high`, its 95 % interval over the `psnr_clients` that gave a number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from seepage.audit.perform import Row
from seepage.audit.pool import Done
from seepage.audit.summary import over_clients
from seepage.audit.values import SpecError

__all__ = ["TRACKERS", "tracker"]

Tracker = Callable[[Done], None]


def tracker(name: str, folder: Path, experiment: str) -> Tracker:
    """What to call after each trial.

    Args:
        name: `"tensorboard"` or `"mlflow"`.
        folder: of the results; TensorBoard's files go into a folder of it.
        experiment: name of the experiment.

    Raises:
        SpecError: when the tracker is not known, or not installed.
    """
    if name not in TRACKERS:
        raise SpecError(f"--track: expected one of {sorted(TRACKERS)}, got {name!r}")
    try:
        return TRACKERS[name](folder, experiment)
    except ImportError as error:
        raise SpecError(f"--track: expected {name} to be installed; pip install 'seepage[{name}]'") from error


def _tensorboard(folder: Path, experiment: str) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    def track(done: Done) -> None:
        shared, numbers = _shared(done.rows[0]), _numbers(done.rows)
        # One folder for each trial is one line in its list of runs; the settings are what it can filter by.
        with SummaryWriter(str(folder / "tensorboard" / done.trial.digest)) as writer:
            for name, values in numbers.items():
                for item, value in values.items():
                    writer.add_scalar(name, value, item)
            writer.add_text("trial", "  \n".join(f"{key}: {value}" for key, value in shared.items()))

    return track


def _mlflow(folder: Path, experiment: str) -> Tracker:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # what is audited is nobody else's business
    import mlflow

    # Where to is MLflow's own business: $MLFLOW_TRACKING_URI.
    known = mlflow.set_experiment(experiment)

    def track(done: Done) -> None:
        shared, numbers = _shared(done.rows[0]), _numbers(done.rows)
        with mlflow.start_run(experiment_id=known.experiment_id, run_name=done.trial.digest):
            mlflow.log_params({key: str(value)[:500] for key, value in shared.items()})
            for name, values in numbers.items():
                for item, value in values.items():
                    mlflow.log_metric(name, value, step=item)

    return track


TRACKERS: Mapping[str, Callable[[Path, str], Tracker]] = {"tensorboard": _tensorboard, "mlflow": _mlflow}


def _shared(row: Row) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in ("client", "item", "metric", "value", "diagnosis")}


def _numbers(rows: list[Row]) -> dict[str, dict[int, float]]:
    """Mean, interval and clients of every metric, as step 0; accuracy, of which each round has one, round by round."""
    table = pd.DataFrame(rows)
    table = table[table["value"].notna()]
    numbers: dict[str, dict[int, float]] = {}
    for name, part in table.groupby("metric", sort=False):
        metric = str(name)
        if metric == "accuracy":
            numbers[metric] = {int(item): float(value) for item, value in zip(part["item"], part["value"], strict=True)}
            continue
        found = over_clients(part, metric)
        numbers[metric] = {0: found.mean}
        if not math.isnan(found.low):  # one value alone has no bounds
            numbers |= {f"{metric}_low": {0: found.low}, f"{metric}_high": {0: found.high}}
        numbers[f"{metric}_clients"] = {0: float(part["client"].nunique())}
    return numbers
