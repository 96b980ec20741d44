from __future__ import annotations

from seepage.metrics import METRICS
from seepage.metrics.baselines import BASELINES
from seepage.metrics.registry import BASELINE_METRICS


def test_every_entry_is_complete_and_under_its_own_name() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.per in ("image", "client")
        assert metric.about.endswith(".")


def test_every_baseline_reads_as_its_metric_does() -> None:
    assert set(BASELINE_METRICS) == set(BASELINES)
    for baseline, names in BASELINE_METRICS.items():
        for name in names:
            of_baseline = METRICS[f"{name}_of_{baseline}"]
            assert of_baseline.unit == METRICS[name].unit
            assert of_baseline.per == METRICS[name].per
            assert of_baseline.higher_is_more_leakage == METRICS[name].higher_is_more_leakage
