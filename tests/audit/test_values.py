"""A digest changes with every value that decides a result, and with nothing else."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.audits import TINY, tiny
from seepage.attacks import InvertingGradients
from seepage.audit.experiment import Clients, Data, Experiment, Model, Pretraining, Trial, Watch, parse
from seepage.audit.values import digest, plain
from seepage.defences import Clip, GaussianNoise, NoDefence, TopK, chain
from seepage.metrics.tags import Tagging
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation
from seepage.threat import THREATS, Fact, ThreatModel

INSIDER = ThreatModel("insider", frozenset({Fact.COUNT}), "one sentence")
ATTACK = Trial(
    "all",
    Data(),
    Clients(examples=2, partition="owner"),
    Model("mlp", {"hidden": [8]}),
    Recipe(),
    Federation(rounds=5),
    Watch(round=1),
    chain(Clip(), GaussianNoise()),
    seed=0,
    threshold=20.0,
    attack=InvertingGradients(),
    threat=INSIDER,
    first=0,
    last=2,
)
LEARNING = dataclasses.replace(ATTACK, attack=None, threat=None, last=0)

# One other value for every field of every part of a trial.
OTHER: dict[str, Any] = {
    "case": "other",
    "seed": 1,
    "threshold": 21.0,
    "first": 1,
    "last": 3,
    "metrics": ("zhao2023",),
    "tagger": Tagging(),
    "label": "another name",
    "data.name": "mnist",
    "data.split": "test",
    "data.raw": True,
    "data.size": 20,
    "data.public": 5,
    "data.dtype": "float64",
    "data.sensitive": "age",
    "data.missing": ("hours",),
    "clients.count": 5,
    "clients.examples": 3,
    "clients.partition": "iid",
    "clients.alpha": 0.25,
    "clients.skip": 1,
    "clients.fewer": True,
    "model.name": "linear",
    "model.options": {"hidden": [9]},
    "model.pretraining": Pretraining(epochs=1),
    "model.pretraining.epochs": 2,
    "model.pretraining.share": 0.5,
    "model.pretraining.lr": 0.5,
    "model.pretraining.batch_size": 4,
    "model.pretraining.weight_decay": 0.5,
    "model.pretraining.augment": False,
    "recipe.optimiser": Adam(),
    "recipe.optimiser.lr": 0.25,
    "recipe.optimiser.momentum": 0.5,
    "recipe.optimiser.weight_decay": 0.5,
    "recipe.optimiser.nesterov": True,
    "recipe.epochs": 2,
    "recipe.batch_size": 2,
    "recipe.shuffle": False,
    "recipe.sends": "weights",
    "recipe.batch_norm": "eval",
    "recipe.sends_buffers": False,
    "federation.rounds": 6,
    "federation.per_round": 2,
    "federation.visible": "aggregate",
    "federation.group": 1,
    "federation.server_lr": 0.5,
    "federation.together": True,
    "federation.repeats": True,
    "watch.round": 2,
    "watch.clients": 2,
    "watch.together": 3,
    "watch.since": 0,
    "watch.every": 2,
    "defence": TopK(),
    "defence.parts": (GaussianNoise(), Clip()),
    "attack": None,
    "attack.tv": 0.5,
    "attack.lr": 0.5,
    "attack.steps": 7,
    "attack.starts": 2,
    "attack.distance": "squared",
    "attack.optimiser": "lbfgs",
    "attack.signed": False,
    "attack.decay": "none",
    "attack.layers": "top2",
    "attack.median_every": 3,
    "attack.precision": "tf32",
    "attack.compiled": True,
    "attack.boxed": False,
    "attack.chunk": 3,
    "attack.keep_every": 3,
    "threat": THREATS["honest-server"],
    "threat.name": "outsider",
    "threat.facts": frozenset({Fact.COUNT, Fact.LABELS}),
    "threat.about": "another sentence",
}
ATTACK_IGNORES = {"federation.rounds", "watch.clients", "watch.together", "threat.about", "label"}
LEARNING_IGNORES = {
    "watch.round", "watch.clients", "watch.together", "watch.since", "watch.every", "threshold",
    "federation.visible", "federation.group", "metrics", "tagger", "label",
}  # fmt: skip


def changed(value: Any, path: str, new: Any) -> Any:
    name, _, rest = path.partition(".")
    return dataclasses.replace(value, **{name: changed(getattr(value, name), rest, new) if rest else new})


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(value):
        yield prefix + field.name
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from paths(inner, f"{prefix}{field.name}.")


def test_no_field_of_a_trial_is_forgotten_here() -> None:
    parts = {"data", "clients", "model", "recipe", "federation", "watch"}  # their fields are changed one by one
    assert set(OTHER) == set(paths(ATTACK)) - parts


@pytest.mark.parametrize("path", OTHER)
def test_the_digest_of_an_attack_changes_with_each_field_that_matters_and_with_no_other(path: str) -> None:
    other = changed(ATTACK, path, OTHER[path])
    assert other != ATTACK
    assert (other.digest == ATTACK.digest) is (path in ATTACK_IGNORES)


@pytest.mark.parametrize("path", [p for p in OTHER if not p.startswith(("attack", "threat"))])
def test_the_digest_of_learning_changes_with_each_field_that_matters_and_with_no_other(path: str) -> None:
    other = changed(LEARNING, path, OTHER[path])
    assert (other.digest == LEARNING.digest) is (path in LEARNING_IGNORES)


@pytest.mark.parametrize("path", OTHER)
def test_what_is_sent_depends_on_data_clients_model_recipe_defence_and_seed_alone(path: str) -> None:
    parts = ("data", "clients", "model", "recipe", "federation", "defence", "seed", "watch")
    decides = path.startswith(parts)
    free = {"data.public", "data.sensitive", "data.missing", "federation.rounds", "watch.clients", "watch.together"}
    assert (changed(ATTACK, path, OTHER[path]).scene != ATTACK.scene) is (decides and path not in free)


def digests(experiment: Experiment) -> list[str]:
    return [trial.digest for trial in experiment.trials()]


def turned(value: Any) -> Any:
    """The same table with all keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(v) for v in value] if isinstance(value, list) else value


def test_the_order_of_keys_in_the_file_does_not_matter() -> None:
    table = tomllib.loads(TINY)
    table["recipe"] = {"epochs": 2, "optimiser": {"kind": "SGD", "lr": 0.5, "momentum": 0.5}, "sends": "weights"}
    table["model"]["options"] = {"hidden": [8], "activation": "tanh", "bias": False}
    other = turned(table)
    assert list(other) != list(table)
    assert digests(parse(other, "b.toml")) == digests(parse(table, "a.toml"))


def test_name_sentence_and_expectations_of_an_experiment_do_not_matter() -> None:
    expect = [{"case": "all", "metric": "psnr", "reported": 20.0}]
    assert digests(tiny(name="other", about="other", expect=expect)) == digests(tiny(name="one", about="one"))


def test_writing_a_default_out_does_not_matter() -> None:
    written = tiny(defence=["none"], threat=["honest-server"], seed=0, recipe={"epochs": 1}, federation={"rounds": 1})
    assert digests(written) == digests(tiny())


def test_seeing_the_rounds_since_the_attacked_one_is_seeing_it_alone() -> None:
    one, two = (tiny(federation={"rounds": 3}, watch={"round": 2, **since}) for since in ({}, {"since": 2}))
    assert digests(one) == digests(two)


def test_watching_more_clients_leaves_finished_groups_finished() -> None:
    few, many = (tiny(clients={"count": 6}, watch={"clients": n, "together": 2}) for n in (4, 6))
    assert digests(many)[:2] == digests(few)


def test_a_digest_is_the_same_on_every_machine() -> None:
    assert digest(SGD(lr=0.5)) == "497137622b9ffb2b"


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(plain_values, plain_values)
def test_plain_data_have_the_same_digest_only_if_they_are_the_same(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) is (repr(plain(one)) == repr(plain(other)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes"])
def test_what_is_not_plain_has_no_digest(value: Any) -> None:
    with pytest.raises(TypeError, match="expected plain data, got"):
        digest([value])


def test_the_name_of_a_class_is_part_of_the_digest_where_fields_are_alike() -> None:
    assert digest(NoDefence()) != digest(THREATS["honest-server"])
    assert digest(Clip(0.5)) != digest(GaussianNoise(0.5))
