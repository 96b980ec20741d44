"""The judge of columns and sources, and an audit of a table from its file to its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.audits import perform, tiny
from seepage.audit.attributes import attribute_scores, source_scores
from seepage.audit.values import SpecError
from seepage.capture import Secret
from seepage.data.dataset import Column, Dataset
from seepage.spec import DataSpec, Examples
from seepage.threat import Sensitive

SEX = Sensitive("sex", slice(1, 2), torch.tensor([[0.0], [1.0]]))


def census() -> Dataset:
    """Three owners of different size with five numbers and a bit."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=draw)
    x[:, 5] = (torch.rand(60, generator=draw) > 0.4).float()
    y = (x.sum(1) > 0.5).long()
    columns = (
        *(Column(f"number {i}", i, i + 1, "numeric") for i in range(5)),
        Column("sex", 5, 6, "binary", ("Female", "Male")),
    )
    owner = torch.tensor([0] * 12 + [1] * 24 + [2] * 24)
    half = Examples(x, y)
    return Dataset(
        "census", DataSpec((6,), 2), half, half[:20], owner, ("poor", "rich"), "CC0", "here", columns=columns
    )


def audit(**changed):
    base = {
        "data": {"name": "audit.test_attributes:census", "sensitive": "sex"},
        "clients": {"count": 3, "partition": "owner"},
        "model": {"name": "mlp", "options": {"hidden": [32, 32]}},
        "recipe": {"optimiser": {"kind": "SGD", "lr": 0.05}, "sends": "weights"},
        "federation": {"rounds": 5, "together": True},
        "watch": {"since": 0, "round": 4, "every": 2},
        "threat": ["column-aware-server"],
    }
    return tiny(**{**base, **changed})


def of(rows, metric: str) -> list[float]:
    return rows[rows["metric"] == metric]["value"].tolist()


def test_records_that_differ_in_the_column_alone_are_the_ceiling() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [2.0, 0.0], [2.0, 0.0]])
    secret = Secret("ada", Examples(x, torch.tensor([0, 0, 0, 0, 1])))
    found = torch.tensor([1, 1, 1, 0, 1])
    values = {s.metric: s.value for s in attribute_scores(found, secret, SEX)}
    assert values == pytest.approx(
        {"attribute_accuracy": 0.6, "attribute_accuracy_of_majority": 0.6, "attribute_ceiling": 0.8}
    )


def test_a_record_is_traced_where_its_client_is_named() -> None:
    held = {"ada": [[1.0], [2.0]], "bob": [[3.0], [4.0]]}
    ada, bob = (Secret(name, Examples(torch.tensor(x), torch.zeros(2).long())) for name, x in held.items())
    sources = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    of_ada, of_bob = ({s.metric: s.value for s in source_scores(sources, i, [ada, bob])} for i in (0, 1))
    assert of_ada == {"source_accuracy": 0.5, "source_accuracy_of_chance": 0.5}
    assert of_bob == {"source_accuracy": 1.0, "source_accuracy_of_chance": 0.5}


def test_an_audit_leaves_rows_about_the_column(tmp_path: Path) -> None:
    rows = perform(audit(attack=[{"name": "attribute-inversion", "noise": 1e-5}]), tmp_path).read()
    assert min(of(rows, "attribute_accuracy")) == 1.0
    assert len(of(rows, "attribute_accuracy")) == 3
    assert min(of(rows, "attribute_accuracy_of_majority")) < 0.7
    assert set(of(rows, "attribute_ceiling")) == {1.0}
    assert all(0 <= share <= 1 for share in of(rows, "attribute_accuracy_of_optimum"))
    assert set(rows["diagnosis"]) == {"recovered"}


def test_an_audit_compares_clients_of_different_size(tmp_path: Path) -> None:
    experiment = audit(attack=[{"name": "source-inversion"}], threat=["source-seeking-server"])
    rows = perform(experiment, tmp_path).read()
    assert len(of(rows, "source_accuracy")) == 3
    assert min(of(rows, "source_accuracy")) > max(of(rows, "source_accuracy_of_chance"))


def test_models_trained_on_the_recovered_column_are_the_clients_own(tmp_path: Path) -> None:
    models = ("last-answer", "ignoring", "recovered")
    attacks = [{"name": "stand-in", "label": model, "model": model} for model in models]
    rows = perform(audit(attack=attacks), tmp_path).read()
    distance = rows[rows["metric"] == "prediction_distance"].groupby("attack")["value"].mean()
    assert distance["recovered"] < 1e-4
    zest = rows[rows["metric"] == "zest"].groupby("attack")["value"].mean()
    assert zest["recovered"] > 0.999 > zest["last-answer"]
    assert distance["recovered"] < distance["ignoring"] < distance["last-answer"]
    assert max(of(rows[rows["attack"] == "recovered"], "relative_error")) < 1e-3
    accuracy = rows[rows["metric"] == "model_accuracy"].groupby("attack")["value"].mean()
    assert accuracy["recovered"] == pytest.approx(sum(of(rows, "model_accuracy_of_optimum")) / 9)


@pytest.mark.parametrize(("name", "words"), [("number 1", "a column of categories"), ("age", "one of the columns")])
def test_a_column_that_cannot_be_sensitive_is_refused(name: str, words: str, tmp_path: Path) -> None:
    experiment = audit(
        attack=[{"name": "attribute-inversion"}],
        data={"name": "audit.test_attributes:census", "sensitive": name},
    )
    with pytest.raises(SpecError, match=rf"data.sensitive: expected {words}"):
        perform(experiment, tmp_path)
