"""Plain tables to frozen dataclasses and back: the keys of a TOML file are the fields, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from seepage.knobs import knobs
from seepage.spelling import meant
from seepage.untrusted import Refused, read_text

__all__ = ["SpecError", "build", "digest", "inside", "laid_over_preset", "plain", "read_table"]

T = TypeVar("T")


class SpecError(ValueError):
    """A specification that cannot be used; the message names the key, what was expected and what came."""


def read_table(path: Path, what: str = "a TOML file") -> dict[str, Any]:
    """The content of a TOML file that may come from anybody: it is measured before it is read.

    Args:
        path: of the file.
        what: it is, for the message when there is none.

    Raises:
        SpecError: naming the file, and what is wrong with it.
    """
    if not path.exists():
        raise SpecError(f"{path}: expected {what}, got none; check the path")
    try:
        return tomllib.loads(read_text(path))
    except Refused as refused:
        raise SpecError(f"{path}: {refused}") from refused
    except (ValueError, RecursionError) as error:  # Python's reader gives up in either way
        raise SpecError(f"{path}: expected TOML, got: {error}") from error


def inside(where: str, key: str) -> str:
    """The place of a key in a file or in a table of it.

    Example:
        >>> inside("audit.toml", "clients"), inside("audit.toml: clients", "count")
        ('audit.toml: clients', 'audit.toml: clients.count')
    """
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


def build(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table whose keys are its fields.

    Args:
        kind: the dataclass.
        table: as read from TOML.
        where: the place in the file, for messages.

    Example:
        >>> from seepage.recipe import Recipe
        >>> build(Recipe, {"epochs": 3, "optimiser": {"kind": "SGD", "lr": 0.5}}, "recipe").optimiser
        SGD(lr=0.5, momentum=0.0, weight_decay=0.0, nesterov=False)
        >>> build(Recipe, {"epoch": 3}, "recipe")
        Traceback (most recent call last):
        ...
        seepage.audit.values.SpecError: recipe: unknown key 'epoch'; expected some of ['batch_norm', 'batch_size', \
'epochs', 'optimiser', 'sends', 'sends_buffers', 'shuffle']; did you mean 'epochs'?
    """
    if not isinstance(table, Mapping):
        raise SpecError(f"{where}: expected a table, got {table!r}")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise SpecError(f"{where}: unknown key {key!r}; expected some of {sorted(fields)}{meant(key, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in table:
            raise SpecError(f"{where}: expected the key {name!r}, got only {sorted(table)}")
    values = {key: _convert(hints[key], value, inside(where, key)) for key, value in table.items()}
    try:
        return kind(**values)
    except SpecError:
        raise
    except (ValueError, TypeError) as error:
        raise SpecError(f"{where}: {error}") from error


def laid_over_preset(kind: type[Any], table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The knobs of the preset that `table` names, if it names one, with its own knobs in their place."""
    known = getattr(kind, "presets", None)
    if known is None or "preset" not in table:
        return table
    rest = dict(table)
    chosen = rest.pop("preset")
    if not isinstance(chosen, str) or chosen not in known:
        raise SpecError(f"{where}.preset: expected one of {sorted(known)}, got {chosen!r}")
    return {**known[chosen], **rest}


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise SpecError(f"{where}: expected one of {list(arguments)}, got {value!r}")
        return value
    if origin in (tuple, frozenset) and not isinstance(value, list | tuple):
        raise SpecError(f"{where}: expected a list, got {value!r}")
    if origin is frozenset:
        return frozenset(_convert(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is tuple:
        if arguments[-1] is not Ellipsis and len(arguments) != len(value):
            raise SpecError(f"{where}: expected {len(arguments)} entries, got {len(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        return tuple(_convert(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        named = {choice.value: choice for choice in hint}
        if not isinstance(value, str) or value not in named:
            raise SpecError(f"{where}: expected one of {sorted(named)}, got {value!r}")
        return named[value]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    if hint is Any or origin in (dict, Mapping):
        return _convert_any(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise SpecError(f"{where}: expected {hint.__name__}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{where}: expected a finite number, got {value!r}")
    return value


def _convert_any(hint: Any, value: Any, where: str) -> Any:
    if hint is not Any and not isinstance(value, Mapping):
        raise SpecError(f"{where}: expected a table, got {value!r}")
    try:
        plain(value)
    except TypeError as error:
        raise SpecError(f"{where}: {error}") from error
    return value


def _convert_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    named = {c.__name__: c for c in choices if isinstance(c, type) and dataclasses.is_dataclass(c)}
    if named and isinstance(value, Mapping):
        rest = dict(value)
        kind = rest.pop("kind", None) if len(named) > 1 else next(iter(named))
        chosen = {name.lower(): c for name, c in named.items()}.get(str(kind).lower())
        if chosen is None:
            got = repr(kind) if kind is not None else f"only the keys {sorted(rest)}"
            raise SpecError(f"{where}: expected `kind` to be one of {sorted(named)}, got {got}")
        return build(chosen, laid_over_preset(chosen, rest, where), where)
    problems = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _convert(choice, value, where)
        except SpecError as error:
            problems.append(str(error))
    raise SpecError(problems[0])


def plain(value: Any) -> Any:
    """A dataclass as numbers, strings, lists and tables of `knobs`; a class keeps its name where there is a choice.

    Example:
        >>> from seepage.recipe import SGD
        >>> plain(SGD(lr=0.5))
        {'kind': 'SGD', 'lr': 0.5, 'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        said = {name: plain(knob) for name, knob in knobs(value).items()}
        return dict(sorted({"kind": type(value).__name__, **said}.items()))
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, set | frozenset):
        return sorted(plain(v) for v in value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise TypeError(f"expected plain data, got {value!r}")


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits that change whenever anything in `value` does.

    Example:
        >>> from seepage.recipe import SGD
        >>> digest(SGD(lr=0.5)) == digest(SGD(lr=0.5)), digest(SGD(lr=0.5)) == digest(SGD(lr=0.4))
        (True, False)
    """
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
