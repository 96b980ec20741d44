"""Two wards and a server in NVFlare's simulator, every round of every ward captured.

`cd examples/nvflare && python job.py captures`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from nvflare import FilterType
from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
from nvflare.job_config.script_runner import ScriptRunner
from ward_model import Net

from seepage.frameworks.nvflare import CaptureResult, RememberTask

WARDS = 2


def main(folder: str) -> None:
    """Run one round."""
    job = FedAvgJob(name="wards", n_clients=WARDS, num_rounds=1, initial_model=Net())
    for number in range(1, WARDS + 1):
        site = f"site-{number}"
        job.to(ScriptRunner(script="train.py"), site)
        job.to("ward_model.py", site)
        # The last filters of each kind, so that privacy filters before them are captured as they are sent.
        job.to(RememberTask(), site, tasks=["train"], filter_type=FilterType.TASK_DATA)
        capture = CaptureResult(str(Path(folder).absolute()), examples=2)
        job.to(capture, site, tasks=["train"], filter_type=FilterType.TASK_RESULT)
    with tempfile.TemporaryDirectory() as workspace:
        job.simulator_run(workspace)


if __name__ == "__main__":
    main(sys.argv[1])
