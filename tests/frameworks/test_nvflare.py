"""NVFlare's own messages and filters, with the context of a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seepage.frameworks.arrange import arrange, find_captures
from seepage.spec import DataSpec
from seepage.task import Task

pytest.importorskip("nvflare", reason="pip install 'seepage[nvflare]'")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from nvflare.apis.dxo import DXO, DataKind, from_shareable  # noqa: E402
from nvflare.apis.fl_constant import ReservedKey  # noqa: E402
from nvflare.apis.fl_context import FLContextManager  # noqa: E402
from nvflare.app_common.filters.exclude_vars import ExcludeVars  # noqa: E402

from seepage.frameworks.nvflare import CaptureResult, RememberTask  # noqa: E402


def context(site: str = "site-1") -> Any:
    manager = FLContextManager(engine=None, identity_name=site, job_id="job")
    made = manager.new_context()
    made.set_prop(ReservedKey.RUN_NUM, "job", private=True, sticky=False)
    return made


def sent(kind: str, tensors: dict[str, torch.Tensor], number: int = 3) -> Any:
    shareable = DXO(data_kind=kind, data={name: t.numpy().copy() for name, t in tensors.items()}).to_shareable()
    shareable.set_header("current_round", number)
    return shareable


@pytest.fixture
def task() -> Task:
    return Task(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), DataSpec((3,), classes=2))


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_an_update_has_our_sign_whatever_nvflare_sends(kind: str, task: Task, tmp_path: Path) -> None:
    before = {name: t.clone() for name, t in task.module.state_dict().items()}
    after = {name: t + 0.5 if t.is_floating_point() else t + 1 for name, t in before.items()}
    ctx = context()
    RememberTask().process(sent(DataKind.WEIGHTS, before), ctx)
    answer = after if kind == DataKind.WEIGHTS else {name: after[name] - before[name] for name in task.params}
    CaptureResult(str(tmp_path), examples=4).process(sent(kind, answer), ctx)
    (capture,) = find_captures(tmp_path)
    (exchange,) = arrange(capture, task).exchanges
    assert (capture.client, exchange.round, exchange.examples) == ("site-1", 3, 4)
    for update in exchange.update.values():
        torch.testing.assert_close(update, torch.full_like(update, -0.5))


def test_a_message_is_not_changed_and_filters_before_are_seen(task: Task, tmp_path: Path) -> None:
    state = dict(task.module.state_dict())
    ctx = context()
    RememberTask().process(sent(DataKind.WEIGHTS, state), ctx)
    message = ExcludeVars(["0.bias"]).process(sent(DataKind.WEIGHTS, state), ctx)
    before = from_shareable(message).data
    after = from_shareable(CaptureResult(str(tmp_path)).process(message, ctx)).data
    assert set(after) == set(before) == set(state) - {"0.bias"}
    assert all((after[name] == before[name]).all() for name in before)
    (capture,) = find_captures(tmp_path)
    assert "0.bias" not in capture.exchanges[0].answer


@pytest.mark.parametrize("site", ["../../elsewhere", "/elsewhere", ".."])
def test_the_name_of_a_site_leads_nowhere_else(site: str, task: Task, tmp_path: Path) -> None:
    message, ctx = sent(DataKind.WEIGHTS, dict(task.module.state_dict())), context(site)
    RememberTask().process(message, ctx)
    CaptureResult(str(tmp_path / "c")).process(message, ctx)
    assert [p.parent.parent for p in tmp_path.rglob("capture.json")] == [tmp_path / "c" / "job" / "round-0003"]


def test_without_the_first_filter_or_a_place_to_write_the_job_goes_on(task: Task, tmp_path: Path) -> None:
    message = sent(DataKind.WEIGHTS, dict(task.module.state_dict()))
    CaptureResult(str(tmp_path / "c")).process(message, context())
    assert not (tmp_path / "c").exists()
    (tmp_path / "file").write_text("in the way")
    ctx = context()
    RememberTask().process(message, ctx)
    CaptureResult(str(tmp_path / "file")).process(message, ctx)
