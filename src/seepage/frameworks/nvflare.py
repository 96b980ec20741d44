"""Captures from NVFlare: a filter for what comes in and one for what goes out (https://nvflare.readthedocs.io).

`RememberTask` is a task data filter of the client, placed last; `CaptureResult` a task result filter, placed last, so
that the privacy filters before it are captured as they are sent. Neither changes a DXO.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seepage.capture import Capture, Exchange, Kind, write_capture
from seepage.task import Params

try:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.dxo_filter import DXOFilter
except ImportError as error:
    raise ImportError(f"seepage.frameworks.nvflare needs NVFlare ({error}); pip install 'seepage[nvflare]'") from error

__all__ = ["CaptureResult", "RememberTask"]

BEFORE = "seepage.before"
ROUND = "current_round"
KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]


class RememberTask(DXOFilter):  # type: ignore[misc]  # NVFlare has no types
    """Remembers the global model that a client is sent, for `CaptureResult`."""

    def __init__(self) -> None:
        super().__init__([DataKind.WEIGHTS], [DataKind.WEIGHTS])

    def process_dxo(self, dxo: DXO, shareable: Any, fl_ctx: Any) -> None:
        """Take a copy; nothing is filtered."""
        number = shareable.get_header(ROUND, fl_ctx.get_prop(ROUND, 0))
        fl_ctx.set_prop(BEFORE, (int(number), _tensors(dxo.data)), private=True, sticky=True)


class CaptureResult(DXOFilter):  # type: ignore[misc]
    """Captures what a client answers.

    Args:
        folder: where captures go: `folder/JOB/round-0001/SITE`.
        examples: how many the client has; NVFlare's messages say steps, not examples.
    """

    def __init__(self, folder: str, examples: int | None = None) -> None:
        super().__init__(KINDS, KINDS)
        # A string, since NVFlare's job API writes the attributes down for the clients' processes to read.
        self.folder, self.examples = str(Path(folder).absolute()), examples

    def process_dxo(self, dxo: DXO, shareable: Any, fl_ctx: Any) -> None:
        """Write the capture; nothing is filtered, and a capture that cannot be written is a warning."""
        del shareable
        remembered = fl_ctx.get_prop(BEFORE)
        if remembered is None:
            self.log_warning(fl_ctx, "seepage: what came in was not seen; add RememberTask to the task data filters")
            return
        try:
            number, before = remembered
            answer = _tensors(dxo.data)
            kind: Kind = "weights"
            if dxo.data_kind == DataKind.WEIGHT_DIFF:
                # NVFlare sends after − before, and an update here is before − after.
                kind, answer = "update", {name: -tensor for name, tensor in answer.items()}
            site = str(fl_ctx.get_identity_name())
            exchange = Exchange(number, before, answer, kind, {}, None, self.examples)
            job = str(fl_ctx.get_job_id())
            home = Path(self.folder) / _file_name(job) / f"round-{number:04d}" / _file_name(site)
            write_capture(home, [Capture(site, (exchange,))])
        except Exception as error:
            self.log_warning(fl_ctx, f"seepage: could not capture this round: {type(error).__name__}: {error}")


def _file_name(said: str) -> str:
    """A name that leads into no other folder."""
    return re.sub(r"[^\w.-]", "_", said).strip(".") or "_"


def _tensors(data: Mapping[str, Any]) -> Params:
    return {
        name: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        for name, value in data.items()
    }
