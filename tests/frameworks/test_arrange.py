"""Whatever names a framework sends, the module's own come out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from common.nets import CLASSES, IMAGE, batch_resnet, image_task
from seepage.capture import Capture, CaptureError, Exchange, Secret, examine, write_capture, write_secret
from seepage.frameworks.arrange import arrange, find_captures, find_secrets
from seepage.spec import DataSpec, Examples
from seepage.task import Params, Task


def state(task: Task, shift: float = 0.0) -> Params:
    return {name: t + shift if t.is_floating_point() else t + 1 for name, t in task.module.state_dict().items()}


def arranged(task: Task, before: Params, after: Params) -> Exchange:
    whole = arrange(Capture("a", (Exchange(1, before, after, "weights", {}),)), task)
    assert [p for p in examine(whole, task) if p.fatal] == []
    return whole.exchanges[0]


@pytest.mark.parametrize("prefix", ["", "module.", "_module.", "_orig_mod.", "_orig_mod.module."])
def test_a_state_dict_is_sorted_into_parameters_and_buffers(prefix: str) -> None:
    task = image_task(batch_resnet)
    named = {f"{prefix}{name}": t for name, t in reversed(state(task).items())}
    after = {f"{prefix}{name}": t for name, t in state(task, -0.5).items()}
    exchange = arranged(task, named, after)
    assert list(exchange.before) == list(exchange.answer) == list(task.params)
    assert list(exchange.buffers_before) == list(task.buffers)
    for update in exchange.update.values():
        torch.testing.assert_close(update, torch.full_like(update, 0.5))


def test_lists_have_the_order_of_the_state_dict_or_of_the_parameters() -> None:
    task = image_task(batch_resnet)
    whole = {str(i): t for i, t in enumerate(state(task).values())}
    moved = {str(i): t for i, t in enumerate(state(task, 1.0).values())}
    assert arranged(task, whole, moved).buffers_after is not None
    short = {str(i): p for i, p in enumerate(task.params.values())}
    exchange = arranged(task, short, {name: p + 1 for name, p in short.items()})
    assert exchange.buffers_after is None
    torch.testing.assert_close(exchange.buffers_before, task.buffers)
    with pytest.raises(CaptureError, match="got 3 arrays"):
        arrange(Capture("a", (Exchange(1, dict(list(whole.items())[:3]), {}, "weights", {}),)), task)


def test_half_precision_and_averaged_counters_get_the_modules_types() -> None:
    task = image_task(batch_resnet)
    averaged = {name: t.double() + (0.25 if not t.is_floating_point() else 0) for name, t in state(task).items()}
    half = {name: t.half() if t.is_floating_point() else t for name, t in state(task, 1.0).items()}
    exchange = arranged(task, averaged, half)
    assert {t.dtype for t in exchange.answer.values()} == {torch.float64}
    assert {t.dtype for t in exchange.buffers_before.values()} == {torch.float64, torch.int64}


def test_what_the_module_does_not_know_is_left_to_be_named() -> None:
    task = image_task(batch_resnet)
    strange = {**state(task), "adapter.weight": torch.ones(2)}
    whole = arrange(Capture("a", (Exchange(1, state(task), strange, "weights", {}),)), task)
    (problem,) = [p for p in examine(whole, task) if p.fatal]
    assert problem.key == "adapter.weight"


def test_frozen_parameters_that_travel_go_to_the_buffers() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Linear(4, CLASSES))
    module[1].requires_grad_(False)
    task = Task(module, DataSpec(IMAGE, classes=CLASSES))
    sent = {name: t.clone() for name, t in module.state_dict().items()}
    exchange = arranged(task, sent, {name: t + 1 if name.startswith("2") else t for name, t in sent.items()})
    assert set(exchange.before) == {"2.weight", "2.bias"}
    assert {"1.weight", "1.bias"} <= set(exchange.buffers_before)


def test_captures_and_secrets_are_found_below_a_folder(tmp_path: Path) -> None:
    for number in (2, 1):
        for client in ("a", "b"):
            exchange = Exchange(number, {"w": torch.zeros(1)}, {"w": torch.ones(1) * number}, "update", {})
            write_capture(tmp_path / "7" / f"round-{number}" / client, [Capture(client, (exchange,))])
    captures = find_captures(tmp_path)
    assert [(c.client, [e.round for e in c.exchanges]) for c in captures] == [("a", [1, 2]), ("b", [1, 2])]
    assert len(find_captures(tmp_path / "7" / "round-1" / "b")) == 1
    with pytest.raises(CaptureError, match=r"expected a folder with a capture\.json"):
        find_captures(tmp_path / "nowhere")
    for client in ("a", "b"):
        write_secret(
            tmp_path / "s" / f"{client}.safetensors", Secret(client, Examples(torch.ones(1, 1), torch.ones(1)))
        )
    assert set(find_secrets(tmp_path / "s")) == {"a", "b"}
    assert set(find_secrets(tmp_path / "s" / "b.safetensors")) == {"b"}
