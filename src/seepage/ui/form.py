"""From a form to the TOML of an experiment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from seepage.attacks import ATTACKS
from seepage.audit.experiment import Experiment, parse
from seepage.audit.values import SpecError
from seepage.data import DATASETS
from seepage.defences import DEFENCES
from seepage.models import MODELS
from seepage.threat import THREATS

__all__ = ["ABOUT", "CHOICES", "START", "as_toml", "checked"]

CHOICES: dict[str, Sequence[str]] = {
    "data": list(DATASETS),
    "model": list(MODELS),
    "sends": ["update", "weights", "gradient"],
    "attack": list(ATTACKS),
    "defence": list(DEFENCES),
    "threat": list(THREATS),
}

ABOUT: dict[str, str] = {
    **{name: threat.about for name, threat in THREATS.items()},
    **{name: (thing.__doc__ or "").strip().splitlines()[0] for name, thing in {**ATTACKS, **DEFENCES}.items()},
}
"""One sentence about each attack, defence and attacker."""

START: dict[str, list[str]] = {
    "name": ["first run"],
    "data": ["fashion-mnist"],
    "model": ["cnn-femnist"],
    "count": ["20"],
    "examples": ["4"],
    "watched": ["4"],
    "epochs": ["1"],
    "lr": ["0.05"],
    "sends": ["update"],
    "rounds": ["1"],
    "seed": ["0"],
    "threat": ["honest-server"],
    "attack": ["inverting-gradients"],
    "steps": ["300"],
    "defence": ["none"],
}
"""What the form shows first."""


def as_toml(form: Mapping[str, Sequence[str]]) -> str:
    """The specification that a form asks for.

    Args:
        form: the values of every field by name.

    Raises:
        SpecError: naming the field that is not as expected.

    Example:
        >>> print(as_toml({**START, "defence": ["none", "top-k"]}).splitlines()[-2])
        [[defence]]
    """
    sends = _one(form, "sends")
    recipe: dict[str, Any] = {"optimiser": {"kind": "SGD", "lr": _number(form, "lr")}, "sends": sends}
    if sends != "gradient":
        recipe["epochs"] = _whole(form, "epochs")
    if _first(form, "batch"):
        recipe["batch_size"] = _whole(form, "batch")
    attacks: list[dict[str, Any]] = [{"name": name} for name in _some(form, "attack")]
    for attack in attacks:
        if _first(form, "steps") and "steps" in getattr(ATTACKS[attack["name"]], "__dataclass_fields__", {}):
            attack["steps"] = _whole(form, "steps")
    rounds, count = _whole(form, "rounds"), _whole(form, "count")
    table = {
        "name": _first(form, "name") or "run",
        "seed": _whole(form, "seed", least=0),
        "accuracy": bool(_first(form, "accuracy")),
        "data": {"name": _one(form, "data")},
        "clients": {"count": count, "examples": _whole(form, "examples")},
        "model": {"name": _one(form, "model")},
        "recipe": recipe,
        "federation": {"rounds": rounds},
        "watch": {"clients": _whole(form, "watched")},
    }
    lists = {"attack": attacks, **{key: [{"name": name} for name in _some(form, key)] for key in ("threat", "defence")}}
    entries = [f"[[{key}]]\n{tomli_w.dumps(entry)}" for key, whole in lists.items() for entry in whole]
    return "\n".join([tomli_w.dumps(table), *entries])


def checked(text: str) -> Experiment:
    """An experiment from its text.

    Raises:
        SpecError: when it is not one, as `seepage audit` would say it.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"expected TOML, got: {error}") from error
    experiment = parse(table, "specification")
    if not list(experiment.trials(1)):
        raise SpecError("specification: expected at least one attack, or accuracy, got neither")
    return experiment


def _first(form: Mapping[str, Sequence[str]], name: str) -> str:
    return next(iter(form.get(name, ())), "").strip()


def _one(form: Mapping[str, Sequence[str]], name: str) -> str:
    value = _first(form, name)
    if value not in CHOICES[name]:
        raise SpecError(f"{name}: expected one of {', '.join(CHOICES[name])}, got {value!r}")
    return value


def _some(form: Mapping[str, Sequence[str]], name: str) -> list[str]:
    values = list(form.get(name, ()))
    for value in values or [""]:
        if value not in CHOICES[name]:
            raise SpecError(f"{name}: expected some of {', '.join(CHOICES[name])}, got {value!r}")
    return values


def _whole(form: Mapping[str, Sequence[str]], name: str, least: int = 1) -> int:
    value = _first(form, name)
    if not value.isdecimal() or int(value) < least:
        raise SpecError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def _number(form: Mapping[str, Sequence[str]], name: str) -> float:
    value = _first(form, name)
    try:
        return float(value)
    except ValueError:
        raise SpecError(f"{name}: expected a number, got {value!r}") from None
