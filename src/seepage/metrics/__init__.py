"""What came back, in numbers: one file per family of metrics, each a pure function of a guess and the truth.

`METRICS` says what every number means; `seepage.metrics.score.score` measures them all.

Example:
    >>> METRICS["psnr"].unit, METRICS["psnr_of_constant"].unit
    ('dB', 'dB')
"""

from seepage.metrics.registry import METRICS as METRICS
from seepage.metrics.registry import Metric as Metric

__all__ = ["METRICS", "Metric"]
