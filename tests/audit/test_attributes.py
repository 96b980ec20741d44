"""The judge of columns and sources, and an audit of a table from its file to its rows."""

from __future__ import annotations

from dataclasses import replace
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


def coloured() -> Dataset:
    """The same with a third column of three colours."""
    base = census()
    draw = torch.Generator().manual_seed(1)
    colours = torch.eye(3)[torch.randint(3, (60,), generator=draw)]
    half = Examples(torch.cat([base.train.x, colours], 1), base.train.y)
    column = Column("colour", 6, 9, "categorical", ("red", "green", "blue"))
    spec = replace(base.spec, shape=(9,))
    return replace(base, spec=spec, train=half, test=half[:20], columns=(*base.columns, column))


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


@pytest.mark.parametrize("data", ["binary_10", "binary_10_clear"])
def test_a_model_of_least_squares_gives_away_what_proposition_4_says_at_least(data: str, tmp_path: Path) -> None:
    experiment = audit(
        data={"name": f"seepage.data.regression:{data}", "dtype": "float64", "sensitive": "x1"},
        clients={"count": 10},
        model={"name": "linear", "options": {"bias": False}},
        recipe={"optimiser": {"kind": "SGD", "lr": 0.05}, "epochs": 5, "sends": "weights"},
        federation={"rounds": 60, "per_round": 4},
        watch={"since": 0, "round": 59},
        attack=[{"name": "attribute-model", "model": "exact"}],
    )
    rows = perform(experiment, tmp_path).read()
    bound, best = of(rows, "attribute_accuracy_bound"), of(rows, "attribute_accuracy_of_optimum")
    assert all(least <= share for least, share in zip(bound, best, strict=True))
    assert of(rows, "attribute_accuracy") == pytest.approx(best)  # Proposition 1: the model is the client's own
    if data == "binary_10_clear":
        assert min(bound) > 0.98


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


def test_a_number_is_found_where_it_is_near() -> None:
    age = Sensitive("age", slice(1, 2), torch.tensor([[-1.0], [1.0]]), numeric=True)
    x = torch.tensor([[1.0, 0.0], [1.0, 0.15], [1.0, 0.3], [2.0, 5.0]])
    secret = Secret("ada", Examples(x, torch.zeros(4).long()))
    values = {s.metric: s.value for s in attribute_scores(torch.tensor([0.05, 0.15, 0.5, 4.95]), secret, age)}
    # Within 0.1: one answer finds at most two of the first three, and no public column tells these apart.
    assert values == pytest.approx(
        {"attribute_accuracy": 0.75, "attribute_accuracy_of_majority": 0.5, "attribute_ceiling": 0.75}
    )


def test_an_audit_finds_numbers(tmp_path: Path) -> None:
    data = {"name": "audit.test_attributes:census", "sensitive": "number 1"}
    attacks = [
        {"name": "attribute-inversion", "preset": "numbers"},
        {"name": "attribute-model"},
        {"name": "attribute-gradient"},
        {"name": "stand-in", "model": "recovered"},
    ]
    rows = perform(audit(attack=attacks, data=data), tmp_path).read()
    found = rows[rows["metric"] == "attribute_accuracy"].groupby("attack")["value"].mean()
    assert found["attribute-inversion"] > 0.5 > found["attribute-model"]
    assert max(of(rows, "attribute_accuracy_of_majority")) < 0.3
    assert rows[rows["attack"] == "attribute-gradient"]["outcome"].str.contains("got one of numbers").all()
    assert (rows["attack"] == "stand-in").any()


def test_columns_that_the_attacker_lacks_are_solved_for_too(tmp_path: Path) -> None:
    data = {"name": "audit.test_attributes:coloured", "sensitive": "sex", "missing": ["colour"]}
    attack = [{"name": "attribute-inversion", "passes": 4}]
    rows = perform(audit(attack=attack, data=data), tmp_path).read()
    assert min(of(rows, "attribute_accuracy")) > 0.9 > 0.7 > min(of(rows, "attribute_accuracy_of_majority"))


def test_too_many_combinations_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.attacks.attribute_inversion.MOST_ROWS", 100)
    data = {"name": "audit.test_attributes:coloured", "sensitive": "sex", "missing": ["colour"]}
    rows = perform(audit(attack=[{"name": "attribute-inversion"}], data=data), tmp_path).read()
    refused = rows[rows["metric"] == "none"]["outcome"]
    assert refused.str.contains("6 combinations of .'sex', 'colour'. for each of 24 records; grant more columns").all()
    assert len(of(rows, "attribute_accuracy")) == 1  # of the client with 12 records


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sensitive": "age"}, "data.sensitive: expected one of the columns"),
        ({"sensitive": "sex", "missing": ["age"]}, "data.missing: expected one of the columns"),
    ],
)
def test_a_column_that_is_not_there_is_refused(wrong, words: str, tmp_path: Path) -> None:
    data = {"name": "audit.test_attributes:census", **wrong}
    with pytest.raises(SpecError, match=words):
        perform(audit(attack=[{"name": "attribute-inversion"}], data=data), tmp_path)


@pytest.mark.parametrize("data", [{"missing": ["sex"]}, {"sensitive": "sex", "missing": ["sex"]}])
def test_what_is_missing_is_beside_what_is_sensitive(data) -> None:
    with pytest.raises(SpecError, match="beside the `sensitive` one"):
        audit(data=data)
