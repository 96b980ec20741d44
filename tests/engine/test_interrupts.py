"""An interrupt stays one where PyTorch's own clean-up fails over it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from seepage.audit.experiment import read_experiment
from seepage.audit.run import run
from seepage.engine.interrupts import heeding_interrupts
from seepage.engine.minimise import minimise
from seepage.engine.optimisers import sgd


def interrupted_before_it_enters_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch._functorch.vmap._vmap_increment_nesting", interrupt)


def square(x: Tensor) -> Tensor:
    return (x**2).sum()


def test_pytorch_replaces_an_interrupt_by_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_before_it_enters_a_level(monkeypatch)
    with pytest.raises(RuntimeError, match="dynamicLayerStack"):
        torch.vmap(square)(torch.ones(2, 3))


def test_a_search_that_is_interrupted_raises_the_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_before_it_enters_a_level(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        minimise(square, torch.ones(2, 1, 2), optimiser=sgd(0.25), steps=3)


def test_an_interrupted_trial_has_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'clients = { count = 1, examples = 1 }\nmodel = { name = "linear" }\n'
        'attack = [{ name = "inverting-gradients", steps = 2 }]\n'
    )

    def perform(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("clean-up failed")

    monkeypatch.setattr("seepage.audit.pool.perform", perform)
    with pytest.raises(KeyboardInterrupt):
        run(read_experiment(spec), tmp_path / "out", device=torch.device("cpu"))
    assert not list((tmp_path / "out").glob("rows/*"))


def fail_while_another_error_is_handled(error: Exception) -> None:
    try:
        raise KeyError("below")
    except KeyError as below:
        raise error from below


def test_other_errors_pass_as_they_are() -> None:
    error = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong") as caught, heeding_interrupts():
        fail_while_another_error_is_handled(error)
    assert caught.value is error
