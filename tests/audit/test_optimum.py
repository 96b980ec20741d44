"""The judge of reconstructed models: its truth, and the rows that an audit leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from common.audits import perform, tiny
from common.nets import numbers
from seepage.audit.optimum import true_optimum
from seepage.local import local_update
from seepage.recipe import SGD, Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task

REGRESSION = {
    "data": {"name": "seepage.data.regression:gaussian_10", "dtype": "float64"},
    "clients": {"count": 10},
    "model": {"name": "linear", "options": {"bias": False}},
    "recipe": {"optimiser": {"kind": "SGD", "lr": 0.05}, "epochs": 5, "sends": "weights"},
    "federation": {"rounds": 40, "per_round": 5},
    "watch": {"since": 0, "round": 39},
    "attack": [{"name": "local-model"}],
    "threat": ["eavesdropper"],
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("targets", [1, 2])
def test_training_leaves_the_optimum_alone(weight_decay: float, targets: int) -> None:
    task = Task(nn.Linear(3, targets).double(), DataSpec((3,), targets=targets))
    examples = Examples(numbers(12, 3), numbers(12, targets, seed=1))
    recipe = Recipe(SGD(0.1, weight_decay=weight_decay), epochs=3)
    optimum = true_optimum(task, {}, examples, recipe)
    update = local_update(task, optimum, recipe.schedule(examples.x, examples.y), recipe)
    assert all(float(u.abs().max()) < 1e-14 for u in update.values())


def test_data_that_do_not_decide_the_model_have_no_optimum() -> None:
    task = Task(nn.Linear(3, 1), DataSpec((3,)))
    examples = Examples(numbers(2, 3).float(), numbers(2).float())
    assert all(p.isnan().all() for p in true_optimum(task, {}, examples, Recipe()).values())
    decay = Recipe(SGD(weight_decay=0.1))
    assert all(p.isfinite().all() for p in true_optimum(task, {}, examples, decay).values())


def test_the_task_is_left_as_it_was() -> None:
    task = Task(nn.Linear(3, 1), DataSpec((3,)))
    true_optimum(task, {}, Examples(numbers(9, 3).float(), numbers(9).float()), Recipe())
    assert next(task.module.parameters()).dtype == torch.float32


def test_an_audit_in_double_precision_leaves_rows_about_the_model(tmp_path: Path) -> None:
    rows = perform(tiny(**REGRESSION), tmp_path).read()
    measured = rows[rows["metric"] == "relative_error"]
    assert len(measured) == 5
    assert measured["value"].max() < 1e-8
    assert set(measured["item"]) == {"all"}
    assert set(measured["diagnosis"]) == {"recovered"}
    others = {"relative_error_of_global_model", "relative_error_of_last_answer"}
    assert rows[rows["metric"].isin(others)]["value"].min() > 0.05
    assert set(rows["metric"]) == {"relative_error", "objective", "wire_bytes", *others}


def test_single_precision_costs_digits_and_nothing_else(tmp_path: Path) -> None:
    single = {**REGRESSION, "data": {"name": "seepage.data.regression:gaussian_10"}}
    values = perform(tiny(**single), tmp_path).read().query("metric == 'relative_error'")["value"]
    assert len(values) == 5
    assert values.max() < 1e-3


def test_clients_seen_too_seldom_are_a_row_each_that_says_so(tmp_path: Path) -> None:
    short = {**REGRESSION, "watch": {"since": 0, "round": 9}}
    rows = perform(tiny(**short), tmp_path).read()
    assert set(rows["metric"]) == {"none"}
    assert rows["outcome"].str.contains("expected at least 11 observed rounds").all()


def test_precision_is_part_of_a_trial_only_where_it_is_asked_for() -> None:
    plain, double = (next(tiny(data={"name": "fashion-mnist", **more}).trials()) for more in ({}, {"dtype": "float64"}))
    again = next(tiny(data={"name": "fashion-mnist", "dtype": "float32"}).trials())
    assert plain.digest == again.digest != double.digest
