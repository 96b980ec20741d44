"""Factors of the records' gradients against the gradients themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from common.nets import numbers
from seepage.defences.clip import clipped
from seepage.finding import NotApplicable
from seepage.pieces.record_gradients import record_gradients
from seepage.spec import DataSpec
from seepage.task import Task

SPEC = DataSpec((4,), classes=3)
Y = torch.tensor([0, 2, 1, 1, 0])
COMPANY = numbers(5, 4)
CANDIDATES = [numbers(5, 4, seed=1), numbers(5, 4, seed=2)]


def task(*between: nn.Module, bias: bool = True) -> Task:
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Linear(4, 6, bias=bias), *between, nn.ReLU(), nn.Linear(6, 3)).double(), SPEC)


def gradient_of(task: Task, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in task.gradient(task.params, x[None], y[None]).values()])


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_single_gradients(bias: bool) -> None:
    net = task(bias=bias)
    factors = record_gradients(net, net.params, COMPANY, CANDIDATES, Y)
    rows = torch.stack([gradient_of(net, x, y) for c in CANDIDATES for x, y in zip(c, Y, strict=True)])
    torch.testing.assert_close(factors.products(), rows @ rows.T)
    direction = {name: numbers(*p.shape, seed=3) for name, p in net.params.items()}
    flat = torch.cat([d.flatten() for d in direction.values()])
    torch.testing.assert_close(factors.along(direction), rows @ flat)


@pytest.mark.parametrize("norm", [0.2, 100.0])
def test_clipped_products_are_those_of_clipped_gradients(norm: float) -> None:
    net = task()
    factors = record_gradients(net, net.params, COMPANY, CANDIDATES, Y).clipped(norm)
    rows = [clipped(gradient_of(net, x, y), norm) for c in CANDIDATES for x, y in zip(c, Y, strict=True)]
    torch.testing.assert_close(factors.products(), torch.stack(rows) @ torch.stack(rows).T)


def test_records_in_the_company_of_their_batch_add_up_to_its_gradient_through_batch_norm() -> None:
    net = task(nn.BatchNorm1d(6))
    factors = record_gradients(net, net.params, COMPANY, [COMPANY], Y, train=True)
    whole = net.gradient(net.params, COMPANY, Y, train=True)
    for weight, a, delta in zip(factors.weights, factors.entering, factors.returning, strict=True):
        torch.testing.assert_close(delta.T @ a / len(Y), whole[weight])


def test_another_candidate_does_not_disturb_its_company() -> None:
    net = task(nn.BatchNorm1d(6))
    tables = [COMPANY], [COMPANY, *CANDIDATES]
    alone, beside = (record_gradients(net, net.params, COMPANY, table, Y, train=True) for table in tables)
    torch.testing.assert_close(alone.products(), beside.products()[:5, :5])


def test_dropout_is_left_out_and_the_module_stays_as_it_was() -> None:
    net = task(nn.Dropout(0.5))
    one, two = (record_gradients(net, net.params, COMPANY, CANDIDATES, Y, train=True).products() for _ in range(2))
    torch.testing.assert_close(one, two)
    assert isinstance(net.module[1], nn.Dropout)


def test_a_module_without_linear_layers_is_refused() -> None:
    conv = Task(nn.Sequential(nn.Conv1d(1, 3, 4), nn.Flatten()).double(), DataSpec((1, 4), classes=3))
    with pytest.raises(NotApplicable, match="linear layer that sees one row per record"):
        record_gradients(conv, conv.params, COMPANY[:, None], [COMPANY[:, None]], Y)
