"""What went over the wire, and the client's data kept apart from it; both as plain data on disk.

A capture is a folder: `capture.json` (schema version, who answered in which round, with which files) and one
safetensors file per global state and per answer. A secret is one safetensors file of its own. Nothing is ever
unpickled, and nothing is read before its size is known (`seepage.untrusted`).

One sign convention everywhere: update = parameters before − parameters after.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seepage.spec import Examples
from seepage.task import Params, Task
from seepage.untrusted import (
    Refused,
    check_checkpoint,
    check_npz,
    check_safetensors,
    check_size,
    largest,
    parse_json,
    read_text,
)

__all__ = [
    "Capture",
    "CaptureError",
    "Exchange",
    "Problem",
    "Secret",
    "examine",
    "moved",
    "read_capture",
    "read_gradient",
    "read_pair",
    "read_secret",
    "write_capture",
    "write_secret",
]

SCHEMA = 1
Kind = Literal["gradient", "update", "weights"]
KINDS = get_args(Kind)


@dataclass(frozen=True, eq=False)
class Exchange:
    """One question and answer: the global model that a client received and what it sent back.

    Args:
        round: number of the round.
        before: the global model's parameters.
        answer: what was sent, by parameter name.
        kind: whether the answer is a gradient, an update (before − after) or the new weights.
        buffers_before: the global model's buffers.
        buffers_after: the buffers that came back, if any did.
        examples: how many examples the client says it trained on, if it says so.
    """

    round: int
    before: Params
    answer: Params
    kind: Kind
    buffers_before: Params
    buffers_after: Params | None = None
    examples: int | None = None

    @property
    def update(self) -> Params:
        """Parameters before − after, or the gradient."""
        if self.kind != "weights":
            return self.answer
        return {name: self.before[name] - after for name, after in self.answer.items()}


@dataclass(frozen=True, eq=False)
class Capture:
    """All that was seen of one client, or of an aggregate of several.

    Args:
        client: its name.
        exchanges: in order of rounds.
        members: the clients whose sum this is, where only an aggregate was visible.
    """

    client: str
    exchanges: tuple[Exchange, ...]
    members: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Secret:
    """The client's own examples, for scoring; taken by `observe` and `score` alone.

    Args:
        client: its name.
        examples: what it trained on.
        orders: in which order each epoch visited them, (epochs, n); `None` where that is not known.
        sizes: of an aggregate, how many examples each of its members has, in the order in which they follow each other.
    """

    client: str
    examples: Examples
    orders: Tensor | None = None
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.sizes and (min(self.sizes) < 1 or sum(self.sizes) != len(self.examples)):
            raise ValueError(f"expected `sizes` that sum to {len(self.examples)} examples, got {self.sizes}")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a capture.

    Args:
        where: file or exchange.
        key: parameter or buffer.
        what: expected and got.
        fix: what to do.
        fatal: whether an attack on it would be meaningless.
    """

    where: str
    key: str
    what: str
    fix: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.what}; {self.fix}"


class CaptureError(ValueError):
    """A capture that cannot be used; the message names file, key and fix for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


def examine(capture: Capture, task: Task) -> list[Problem]:
    """Every inconsistency between a capture and the module it is said to come from.

    Example:
        >>> from torch import nn
        >>> from seepage.spec import DataSpec
        >>> task = Task(nn.Linear(2, 2, bias=False), DataSpec((2,), classes=2))
        >>> same = Exchange(0, task.params, task.params, "weights", {})
        >>> [problem.what for problem in examine(Capture("a", (same,)), task)]
        ['expected the answer to differ from the global model, got the same numbers']
    """
    problems = []
    for exchange in capture.exchanges:
        where = f"client {capture.client}, round {exchange.round}"
        misfits = _compare(f"{where}, before", exchange.before, task.params, "parameter")
        misfits += _compare(f"{where}, {exchange.kind}", exchange.answer, task.params, "parameter")
        misfits += _compare(f"{where}, buffers before", exchange.buffers_before, task.buffers, "buffer")
        if exchange.buffers_after is not None:
            misfits += _compare(f"{where}, buffers after", exchange.buffers_after, task.buffers, "buffer")
            problems += _changed_buffers(where, exchange.buffers_before, exchange.buffers_after)
        problems += misfits or _unchanged(where, exchange)
    return problems


def _compare(where: str, got: Params, expected: Params, noun: str) -> list[Problem]:
    # Clients that train adapters or a last layer alone send no more than that.
    frozen = (
        ", or set requires_grad = False on it in the module if clients do not train it" if noun == "parameter" else ""
    )
    lacking = f"add it, or use the module that was trained{frozen}"
    problems = [
        Problem(where, name, f"expected this {noun} of the module, got none", lacking)
        for name in expected
        if name not in got
    ]
    for name, tensor in got.items():
        if name not in expected:
            fix = "remove it, or use the module that was trained, which has it"
            problems.append(Problem(where, name, f"expected only the module's {noun}s, got one more", fix))
            continue
        like = expected[name]
        if tensor.shape != like.shape:
            what = f"expected shape {tuple(like.shape)}, got {tuple(tensor.shape)}"
            problems.append(Problem(where, name, what, "build the module with the sizes that were trained"))
        elif tensor.dtype != like.dtype:
            what = f"expected {like.dtype}, got {tensor.dtype}"
            problems.append(Problem(where, name, what, f"convert it, or the module with .to({tensor.dtype})"))
        elif not torch.isfinite(tensor).all():
            bad = int((~torch.isfinite(tensor)).sum())
            what = f"expected finite numbers, got {bad} of {tensor.numel()} NaN or infinite"
            problems.append(
                Problem(
                    where,
                    name,
                    what,
                    "the client diverged: drop this round for another (--round), or look at other clients (--client)",
                )
            )
    return problems


def _changed_buffers(where: str, before: Params, after: Params) -> list[Problem]:
    changed = [name for name, b in before.items() if name in after and not torch.equal(b, after[name])]
    if not changed:
        return []
    differ = f"{len(changed)} of {len(before)} buffers differ between question and answer"
    what = f"{differ}, so the client trained in train mode"
    return [Problem(where, changed[0], what, "attack with batch_norm = 'train' in the recipe", fatal=False)]


def _unchanged(where: str, exchange: Exchange) -> list[Problem]:
    still = [name for name, u in exchange.update.items() if not u.any()]
    if len(still) == len(exchange.update):
        if exchange.kind == "weights":
            what = "expected the answer to differ from the global model, got the same numbers"
        else:
            what = f"expected a non-zero {exchange.kind}, got zeros"
        return [Problem(where, "all", what, "check that the client trained, and that the two files are not one")]
    if not still:
        return []
    what = f"{len(still)} of {len(exchange.update)} tensors did not change"
    return [Problem(where, still[0], what, "freeze them in the module (requires_grad=False) if the client did", False)]


# Files of Seepage's own.


def write_capture(folder: Path, captures: Sequence[Capture]) -> None:
    """Write captures as one folder, whole or not at all.

    A global state that several clients received is stored once.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        building = Path(scratch) / "capture"
        building.mkdir()
        states: dict[tuple[int, ...], str] = {}
        clients = []
        for c, capture in enumerate(captures):
            exchanges = []
            for e, exchange in enumerate(capture.exchanges):
                state = {**_prefixed("params", exchange.before), **_prefixed("buffers", exchange.buffers_before)}
                identity = tuple(id(tensor) for tensor in state.values())
                if identity not in states:
                    states[identity] = f"state-{len(states):04d}.safetensors"
                    _save(state, building / states[identity])
                answer = f"answer-{c:04d}-{e:04d}.safetensors"
                _save(
                    {**_prefixed("params", exchange.answer), **_prefixed("buffers", exchange.buffers_after or {})},
                    building / answer,
                )
                exchanges.append(
                    {
                        "round": exchange.round,
                        "kind": exchange.kind,
                        "examples": exchange.examples,
                        "buffers": exchange.buffers_after is not None,
                        "before": states[identity],
                        "answer": answer,
                    }
                )
            clients.append({"client": capture.client, "members": list(capture.members), "exchanges": exchanges})
        digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(building.iterdir())}
        header = {"schema": SCHEMA, "what": "seepage capture", "clients": clients, "sha256": digests}
        (building / "capture.json").write_text(json.dumps(header, indent=1))
        if folder.exists():
            raise FileExistsError(f"{folder}: expected no such folder yet; remove it or choose another name")
        os.rename(building, folder)


def read_capture(folder: Path, only: slice = slice(None)) -> list[Capture]:
    """Read what `write_capture` wrote.

    Args:
        folder: where it is.
        only: the places of the clients to read; by default all.

    Raises:
        CaptureError: naming the file, the key and the fix, if anything is missing, damaged or of another version.
    """
    path = Path(folder) / "capture.json"
    header = _read_header(path, "seepage capture")
    loaded: dict[str, dict[str, Tensor]] = {}
    total = 0

    def load(name: str) -> dict[str, Tensor]:
        nonlocal total
        if name not in loaded:
            file = _beside(path, name)
            with _naming(file):
                check_safetensors(file)
                total += file.stat().st_size
                check_size(total, largest(), "all files together")
            with file.open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != header["sha256"].get(name):
                    what = "expected the checksum in capture.json, got another"
                    raise _error(file, "sha256", what, "copy the file again")
            loaded[name] = _load(file)
        return loaded[name]

    captures = []
    try:
        for client in header["clients"][only]:
            exchanges = []
            for entry in client["exchanges"]:
                state, answer = load(entry["before"]), load(entry["answer"])
                if entry["kind"] not in KINDS:
                    what = f"expected one of {KINDS}, got {entry['kind']!r}"
                    raise _error(path, "kind", what, "write the capture again")
                exchanges.append(
                    Exchange(
                        entry["round"],
                        _part("params", state),
                        _part("params", answer),
                        entry["kind"],
                        _part("buffers", state),
                        _part("buffers", answer) if entry["buffers"] else None,
                        entry["examples"],
                    )
                )
            captures.append(Capture(client["client"], tuple(exchanges), tuple(client["members"])))
            _refuse_types(captures[-1], path)
    except (KeyError, TypeError, AttributeError) as missing:
        raise _error(path, str(missing), "expected this key in the header", "write the capture again") from missing
    return captures


def _beside(header: Path, name: str) -> Path:
    """The file of a name in the header, which lies in the same folder and nowhere else."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        what = f"expected the name of a file in the same folder, got {name!r}"
        raise _error(header, "before or answer", what, "write the capture again")
    file = header.parent / name
    if file.is_symlink():
        raise _error(file, "file", "expected a file, got a link", "copy what it points to beside capture.json")
    if not file.exists():
        raise _error(file, "file", "expected a file, got none", "copy it beside capture.json")
    return file


def _refuse_types(capture: Capture, path: Path) -> None:
    """A header is written by others: a round that is no number would fail far from here."""

    def whole(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

    right = {
        "client": isinstance(capture.client, str),
        "members": all(isinstance(member, str) for member in capture.members),
        "round": all(whole(exchange.round) for exchange in capture.exchanges),
        "examples": all(exchange.examples is None or whole(exchange.examples) for exchange in capture.exchanges),
    }
    for key, holds in right.items():
        if not holds:
            what = "expected names as text and whole numbers that are not negative, got something else"
            raise _error(path, key, what, "write the capture again")


def write_secret(path: Path, secret: Secret) -> None:
    """Write a client's examples to a file of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    header = {"schema": SCHEMA, "what": "seepage secret", "client": secret.client}
    header |= {"sizes": list(secret.sizes)} if secret.sizes else {}
    tensors = {"x": secret.examples.x.contiguous(), "y": secret.examples.y.contiguous()}
    if secret.orders is not None:
        tensors["orders"] = secret.orders.contiguous()
    save_file(tensors, scratch, metadata={"seepage": json.dumps(header)})
    os.replace(scratch, path)


def read_secret(path: Path) -> Secret:
    """Read what `write_secret` wrote."""
    path = Path(path)
    tensors = _load(path)
    with safe_open(path, framework="pt") as file:
        try:
            header = parse_json((file.metadata() or {}).get("seepage", "{}"), "header")
        except Refused:
            header = {}
    header = header if isinstance(header, dict) else {}
    if header.get("what") != "seepage secret" or header.get("schema") != SCHEMA:
        what = f"expected a secret of schema {SCHEMA}, got {header.get('what')!r} of schema {header.get('schema')}"
        raise _error(path, "header", what, "give a file that write_secret wrote")
    try:
        sizes = tuple(map(int, header.get("sizes", ())))
        return Secret(str(header["client"]), Examples(tensors["x"], tensors["y"]), tensors.get("orders"), sizes)
    except KeyError as missing:
        what, fix = "expected this entry, got none", "give a file that write_secret wrote"
        raise _error(path, str(missing), what, fix) from missing
    except (ValueError, TypeError) as error:  # of different lengths, or without any
        what = f"expected inputs and as many targets, got: {_first_line(error)}"
        raise _error(path, "x and y", what, "give a file that write_secret wrote") from error


# Files of others.


def read_pair(before: Path, after: Path, task: Task, *, client: str = "client", examples: int | None = None) -> Capture:
    """A capture from two files of weights: the global model and what the client made of it.

    Args:
        before: PyTorch state dict (`.pt`, `.pth`, read with `weights_only=True`), `.npz` or `.safetensors`.
        after: the same for the client's weights.
        task: the module that the keys belong to.
        client: name.
        examples: how many examples the client trained on, if known.

    Raises:
        CaptureError: listing everything that does not fit the module.
    """
    first, second = _read_tensors(before), _read_tensors(after)
    problems = [
        *_compare(str(before), first, {**task.params, **task.buffers}, "entry"),
        *_compare(str(after), second, {**task.params, **task.buffers}, "entry"),
    ]
    if problems:
        raise CaptureError(problems)
    exchange = Exchange(
        0,
        {name: first[name] for name in task.params},
        {name: second[name] for name in task.params},
        "weights",
        {name: first[name] for name in task.buffers},
        {name: second[name] for name in task.buffers},
        examples,
    )
    return _sound(Capture(client, (exchange,)), task, f"{before} and {after}")


def read_gradient(
    path: Path, task: Task, *, before: Path | None = None, client: str = "client", examples: int | None = None
) -> Capture:
    """A capture from a gradient: tensors by name, or a list in the order of the module's parameters.

    Args:
        path: `.pt` (list, tuple or dictionary of tensors), `.npz` (by name, or `arr_0`, `arr_1`, …) or `.safetensors`.
        task: the module.
        before: the global weights; the module's own when absent.
        client: name.
        examples: how many examples the gradient is the mean over, if known.
    """
    gradient = _read_tensors(path)
    if all(name.removeprefix("arr_").isdigit() for name in gradient):
        if len(gradient) != len(task.params):
            what = f"expected {len(task.params)} tensors, one per parameter, got {len(gradient)}"
            raise _error(path, "list", what, "write one gradient per trainable parameter, in the module's order")
        ordered = sorted(gradient, key=lambda name: int(name.removeprefix("arr_")))
        gradient = {name: gradient[key] for name, key in zip(task.params, ordered, strict=True)}
    state = {**task.params, **task.buffers} if before is None else _read_tensors(before)
    problems = _compare(str(path), gradient, task.params, "parameter")
    problems += _compare(str(before), state, {**task.params, **task.buffers}, "entry")
    if problems:
        raise CaptureError(problems)
    exchange = Exchange(
        0,
        {name: state[name] for name in task.params},
        {name: gradient[name] for name in task.params},
        "gradient",
        {name: state[name] for name in task.buffers},
        None,
        examples,
    )
    return _sound(Capture(client, (exchange,)), task, str(path))


def _sound(capture: Capture, task: Task, files: str) -> Capture:
    fatal = [replace(problem, where=files) for problem in examine(capture, task) if problem.fatal]
    if fatal:
        raise CaptureError(fatal)
    return capture


def _read_tensors(path: Path) -> dict[str, Tensor]:
    path = Path(path)
    if not path.exists():
        raise _error(path, "file", "expected a file, got none", "check the path")
    if path.suffix == ".safetensors":
        return _load(path)
    if path.suffix == ".npz":
        with _reading(path, "npz", "plain numeric arrays", "save with numpy.savez and no object arrays"):
            check_npz(path)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}
    if path.suffix in (".pt", ".pth", ".bin"):
        return _read_torch(path)
    raise _error(path, "suffix", f"expected .pt, .pth, .npz or .safetensors, got {path.suffix!r}", "convert the file")


def _read_torch(path: Path) -> dict[str, Tensor]:
    with _reading(path, "pickle", "a file of tensors alone", "save `module.state_dict()` rather than the module"):
        check_checkpoint(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if isinstance(content, list | tuple):
        content = {str(i): tensor for i, tensor in enumerate(content)}
    if not isinstance(content, Mapping) or not all(isinstance(t, Tensor) for t in content.values()):
        what = f"expected a state dict or a list of tensors, got {type(content).__name__}"
        raise _error(path, "content", what, "save `module.state_dict()`, or a list of gradients")
    return {str(name): tensor.detach() for name, tensor in content.items()}


# Small pieces of the above.


def _error(path: Path, key: str, what: str, fix: str) -> CaptureError:
    return CaptureError([Problem(str(path), key, what, fix)])


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is refused in it, with the name of the file."""
    try:
        yield
    except Refused as refused:
        raise _error(path, refused.key, refused.what, refused.fix) from refused


@contextmanager
def _reading(path: Path, key: str, expected: str, fix: str) -> Iterator[None]:
    """The same, and whatever else goes wrong with a file that is not what it should be."""
    try:
        with _naming(path):
            yield
    except CaptureError:
        raise
    except Exception as error:
        raise _error(path, key, f"expected {expected}, got: {_first_line(error)}", fix) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _prefixed(prefix: str, params: Params) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in params.items()}


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    return {
        name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}/")
    }


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    # safetensors sorts by size; the order of parameters is kept in the metadata.
    order = json.dumps(list(tensors))
    save_file({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, path, metadata={"order": order})


def _load(path: Path) -> dict[str, Tensor]:
    with _reading(path, "safetensors", "a readable file", "copy the file again"):
        check_safetensors(path)
        tensors: dict[str, Tensor] = load_file(path)
        with safe_open(path, framework="pt") as file:
            order = (file.metadata() or {}).get("order", "null")
        names = parse_json(order, "order")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or set(names) != set(tensors):
        return tensors
    return {name: tensors[name] for name in names}


def _read_header(path: Path, expected: str) -> dict[str, Any]:
    if not path.exists():
        raise _error(path, "file", "expected a header, got none", "give the folder that write_capture wrote")
    with _naming(path):
        header = parse_json(read_text(path), "json")
    if not isinstance(header, dict) or header.get("what") != expected or header.get("schema") != SCHEMA:
        got = (header.get("what"), header.get("schema")) if isinstance(header, dict) else type(header).__name__
        what = f"expected a {expected} of schema {SCHEMA}, got {got}"
        raise _error(path, "schema", what, "read it with the version of seepage that wrote it")
    return header


def moved(capture: Capture, device: torch.device | str) -> Capture:
    """The same capture on another device."""

    def move(params: Params) -> Params:
        return {name: tensor.to(device) for name, tensor in params.items()}

    return replace(
        capture,
        exchanges=tuple(
            replace(
                e,
                before=move(e.before),
                answer=move(e.answer),
                buffers_before=move(e.buffers_before),
                buffers_after=None if e.buffers_after is None else move(e.buffers_after),
            )
            for e in capture.exchanges
        ),
    )
