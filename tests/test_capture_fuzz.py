"""Mutated, truncated and oversized files end in a named error or a correct read, within a minute.

`SEEPAGE_FUZZ` sets how many of each kind are tried; `make fuzz` tries a hundred thousand.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from seepage import untrusted
from seepage.audit.experiment import Experiment, read_experiment
from seepage.audit.gate import Policy, read_policy
from seepage.audit.summary import read_index
from seepage.audit.table import Pictures, Table
from seepage.audit.values import SpecError
from seepage.capture import (
    Capture,
    CaptureError,
    Exchange,
    Secret,
    read_capture,
    read_gradient,
    read_pair,
    read_secret,
    write_capture,
    write_secret,
)
from seepage.frameworks.arrange import find_captures
from seepage.inspect.command import _recipe
from seepage.recipe import Recipe
from seepage.spec import DataSpec, Examples
from seepage.task import Task

CASES = int(os.environ.get("SEEPAGE_FUZZ", "100"))
many = settings(  # each takes milliseconds; a busy machine may take a thousand times as long
    max_examples=CASES, deadline=timedelta(minutes=1), suppress_health_check=list(HealthCheck), database=None
)

STATE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)}
SOUND = Capture("a", (Exchange(1, STATE, {n: t + 1 for n, t in STATE.items()}, "weights", {"n": torch.ones(1)}),))
TASK = Task(nn.Linear(3, 2), DataSpec((3,), classes=2))
WEIGHTS = {name: tensor.detach().clone() + 1 for name, tensor in TASK.module.state_dict().items()}
RECIPE = '[recipe]\nepochs = 2\nbatch_size = 4\nsends = "weights"\noptimiser = { kind = "SGD", lr = 0.01 }\n'

POLICY = '[[limit]]\nmetric = "recovered"\nat_most = 0.0\nstatistic = "max"\nthreat = "honest-server"\n'
EXPERIMENT = """name = "e"
[data]
name = "fashion-mnist"
[clients]
count = 2
examples = 1
[model]
name = "lenet-zhu"
[[attack]]
name = "analytic"
"""

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["../../../../etc/passwd", "/etc/passwd", "..", "\0", "state-0000.safetensors/../capture.json"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8)
KEEP = st.just(1.0) | st.floats(0, 1)


@pytest.fixture(scope="module")
def home() -> Any:
    """Sound files, and beside them folders whose files the cases replace."""
    folder = Path(tempfile.mkdtemp())
    write_capture(folder / "c", [SOUND])
    write_capture(folder / "spoilt" / "c", [SOUND])
    write_secret(folder / "s.safetensors", Secret("a", Examples(torch.zeros(2, 3), torch.zeros(2))))
    torch.save(WEIGHTS, folder / "w.pt")
    np.savez(folder / "w.npz", **{name: tensor.numpy() for name, tensor in WEIGHTS.items()})
    save_file(WEIGHTS, folder / "w.safetensors")
    for results in (folder / "results", folder / "spoilt" / "results"):
        image = np.zeros((1, 2, 2, 1), np.uint8)
        Table(results).write("t", [], Pictures(["a"], ["0"], image, image, np.zeros(1)), {"seconds": 1.0})
        index = {"name": "e", "about": "", "threshold": 20.0, "expect": [], "trials": ["t"]}
        (results / "experiment.json").write_text(json.dumps(index))
    yield folder
    shutil.rmtree(folder)


def edited(content: bytes, edits: list[tuple[float, int]], keep: float) -> bytes:
    changed = bytearray(content)
    for place, value in edits:
        changed[int(place * len(changed))] = value
    return bytes(changed[: max(0, int(keep * len(changed)))])


def reads_or_says_why(read: Callable[[Path], Any], path: Path) -> Any:
    problems = ()
    try:
        return read(path)
    except CaptureError as error:
        problems = error.problems
    assert problems
    assert all(problem.where and problem.key and problem.fix for problem in problems)
    return None


def well_typed(captures: list[Capture] | None) -> bool:
    """A read is correct where everything in it is what its type says."""
    return all(
        isinstance(capture.client, str)
        and all(isinstance(member, str) for member in capture.members)
        and all(type(e.round) is int and (e.examples is None or type(e.examples) is int) for e in capture.exchanges)
        and all(
            isinstance(t, torch.Tensor) for e in capture.exchanges for t in (*e.before.values(), *e.answer.values())
        )
        for capture in captures or ()
    )


def spoilt(home: Path, tensors: dict[str, bytes], header: bytes | None = None) -> Path:
    """The sound capture with other content in some files, and checksums that fit unless the header is given too."""
    path = home / "spoilt" / "c"
    told = json.loads((home / "c" / "capture.json").read_text())
    for name in told["sha256"]:
        content = tensors.get(name, (home / "c" / name).read_bytes())
        (path / name).write_bytes(content)
        told["sha256"][name] = hashlib.sha256(content).hexdigest()
    (path / "capture.json").write_bytes(json.dumps(told).encode() if header is None else header)
    return path


@many
@given(name=st.sampled_from(["state-0000", "answer-0000-0000"]), edits=EDITS, keep=KEEP)
def test_damaged_tensors_with_a_matching_checksum(
    home: Path, name: str, edits: list[tuple[float, int]], keep: float
) -> None:
    """The checksum is of the file's own folder: whoever damages the one can mend the other."""
    file = f"{name}.safetensors"
    path = spoilt(home, {file: edited((home / "c" / file).read_bytes(), edits, keep)})
    found = reads_or_says_why(read_capture, path)
    assert well_typed(found)
    assert found is None or [capture.client for capture in found] == ["a"]


@many
@given(where=st.lists(st.integers(0, 9), min_size=1, max_size=4), value=JSON)
def test_tensors_with_other_headers(home: Path, where: list[int], value: Any) -> None:
    """Shapes, types, offsets and the order of names are the file's own words."""
    content = (home / "c" / "state-0000.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(replaced(json.loads(content[8 : 8 + length]), where, value)).encode()
    path = spoilt(home, {"state-0000.safetensors": struct.pack("<Q", len(header)) + header + content[8 + length :]})
    assert well_typed(reads_or_says_why(read_capture, path))


@many
@given(edits=EDITS, keep=KEEP)
def test_damaged_headers(home: Path, edits: list[tuple[float, int]], keep: float) -> None:
    path = spoilt(home, {}, edited((home / "c" / "capture.json").read_bytes(), edits, keep))
    assert well_typed(reads_or_says_why(read_capture, path))


@many
@given(where=st.lists(st.integers(0, 9), min_size=1, max_size=5), value=JSON)
def test_headers_with_other_values(home: Path, where: list[int], value: Any) -> None:
    header = replaced(json.loads((home / "c" / "capture.json").read_text()), where, value)
    path = spoilt(home, {}, json.dumps(header).encode())
    assert well_typed(reads_or_says_why(read_capture, path))


def replaced(tree: Any, where: list[int], value: Any) -> Any:
    """A tree of JSON with another value at the place that the steps lead to."""
    inside, parent, key = tree, None, None
    for step in where:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            break
        parent, key = inside, keys[step % len(keys)]
        inside = inside[key]
        if not isinstance(inside, dict | list):
            break
    parent[key] = value  # type: ignore[index]
    return tree


@many
@given(edits=EDITS, keep=KEEP)
def test_damaged_secrets(home: Path, edits: list[tuple[float, int]], keep: float) -> None:
    path = home / "spoilt" / "s.safetensors"
    path.write_bytes(edited((home / "s.safetensors").read_bytes(), edits, keep))
    found = reads_or_says_why(read_secret, path)
    assert found is None or (isinstance(found.client, str) and len(found.examples.x) == len(found.examples.y))


@many
@given(suffix=st.sampled_from([".pt", ".npz", ".safetensors"]), edits=EDITS, keep=KEEP)
def test_damaged_checkpoints(home: Path, suffix: str, edits: list[tuple[float, int]], keep: float) -> None:
    path = home / "spoilt" / f"w{suffix}"
    path.write_bytes(edited((home / f"w{suffix}").read_bytes(), edits, keep))
    fits(reads_or_says_why(lambda file: read_gradient(file, TASK), path))


@many
@given(suffix=st.sampled_from([".pt", ".npz"]), entry=st.integers(0, 9), edits=EDITS, keep=KEEP)
def test_archives_with_damaged_entries(
    home: Path, suffix: str, entry: int, edits: list[tuple[float, int]], keep: float
) -> None:
    """The archive itself is sound here, so that what reads its entries is reached."""
    path, made = home / "spoilt" / f"w{suffix}", io.BytesIO()
    with zipfile.ZipFile(home / f"w{suffix}") as sound, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as other:
        names = sound.namelist()
        for name in names:
            chosen = name == names[entry % len(names)]
            other.writestr(name, edited(sound.read(name), edits, keep) if chosen else sound.read(name))
    path.write_bytes(made.getvalue())
    fits(reads_or_says_why(lambda file: read_pair(home / "w.safetensors", file, TASK), path))


def fits(found: Capture | None) -> None:
    assert found is None or {n: t.shape for n, t in found.exchanges[0].answer.items()} == {
        name: tensor.shape for name, tensor in TASK.params.items()
    }


TABLES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "recipe": (RECIPE, lambda path: _recipe(path.parent, path)),
    "policy": (POLICY, read_policy),
    "experiment": (EXPERIMENT, read_experiment),
}


@many
@given(kind=st.sampled_from(list(TABLES)), edits=EDITS, keep=KEEP)
def test_damaged_recipes_policies_and_experiments(
    home: Path, kind: str, edits: list[tuple[float, int]], keep: float
) -> None:
    sound, read = TABLES[kind]
    path = home / "spoilt" / f"{kind}.toml"
    path.write_bytes(edited(sound.encode(), edits, keep))
    said = str(path)
    try:
        assert isinstance(read(path), Recipe | Policy | Experiment)
    except SpecError as error:
        said = str(error)
    assert str(path) in said


RESULTS = ["experiment.json", "notes/t.json", "pictures/t.npz", "rows/t.parquet"]


@many
@given(file=st.sampled_from(RESULTS), edits=EDITS, keep=KEEP)
def test_damaged_results(home: Path, file: str, edits: list[tuple[float, int]], keep: float) -> None:
    sound, folder = home / "results", home / "spoilt" / "results"
    (folder / file).write_bytes(edited((sound / file).read_bytes(), edits, keep))
    said = str(folder / file)
    try:
        if file == "experiment.json":
            assert isinstance(read_index(folder).trials, tuple)
        elif file == "notes/t.json":
            assert isinstance(Table(folder).note("t"), dict)
        elif file == "rows/t.parquet":
            assert set(Table(folder).read(["t"])) >= {"metric", "value"}
        else:
            assert Table(folder).pictures("t") is not None
    except SpecError as error:
        said = str(error)
    assert str(folder / file) in said


# What no random change would find.


def refused(read: Callable[[], object], *words: str) -> None:
    """Refused by a message with these words, before Python and NumPy made room for what the file asks for."""
    tracemalloc.start()
    try:
        with pytest.raises((CaptureError, SpecError)) as refusal:
            read()
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_files_over_the_limit_are_named_with_the_limit_and_the_fix(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spoilt(home, {})
    monkeypatch.setenv("SEEPAGE_MAX_GIB", "1e-7")  # 107 bytes
    for suffix in (".pt", ".npz", ".safetensors"):
        refused(lambda s=suffix: read_gradient(home / f"w{s}", TASK), f"w{suffix}: file", "107", "SEEPAGE_MAX_GIB")
    refused(lambda: read_capture(path), "state-0000.safetensors: file", "107", "SEEPAGE_MAX_GIB")
    refused(lambda: read_secret(home / "s.safetensors"), "s.safetensors: file", "107", "SEEPAGE_MAX_GIB")
    monkeypatch.setenv("SEEPAGE_MAX_GIB", "much")
    refused(lambda: read_secret(home / "s.safetensors"), "SEEPAGE_MAX_GIB", "'much'")


def test_the_files_of_a_capture_share_the_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spoilt(home, {})
    sizes = [file.stat().st_size for file in path.glob("*.safetensors")]
    monkeypatch.setattr(untrusted, "largest", lambda: sum(sizes) - 1)
    monkeypatch.setattr("seepage.capture.largest", lambda: sum(sizes) - 1)
    refused(lambda: read_capture(path), "all files together", str(sum(sizes) - 1))


def test_long_texts_and_headers_are_refused_unread(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = home / "spoilt" / "long.toml"
    with long.open("wb") as file:
        file.truncate(2**30)
    for _, read in TABLES.values():
        refused(lambda read=read: read(long), "long.toml: file", "16777216", "1073741824")
    results = Path(shutil.copytree(home / "results", home / "spoilt" / "long"))
    for name in ("experiment.json", "notes/t.json"):
        os.truncate(results / name, 2**30)
    refused(lambda: read_index(results), "experiment.json", "at most 16777216")
    refused(lambda: Table(results).note("t"), "t.json: file", "16777216")
    path = spoilt(home, {"state-0000.safetensors": struct.pack("<Q", 2**40) + b"{}"})
    refused(lambda: read_capture(path), "state-0000.safetensors: header", str(2**40), "16777216")
    path = spoilt(home, {})
    os.truncate(path / "capture.json", 2**30)
    refused(lambda: read_capture(path), "capture.json: file", "16777216")


def test_shapes_that_the_file_has_no_numbers_for_are_refused(home: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)})
    path = home / "spoilt" / "w.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weight.npy", header.getvalue())
    refused(lambda: read_gradient(path, TASK), "weight.npy", str(2**42))


def test_archives_that_unpack_to_more_than_the_limit_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEPAGE_MAX_GIB", "0.01")
    for suffix in (".npz", ".pt"):
        path = home / "spoilt" / f"bomb{suffix}"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("weight.npy", bytes(20 * 2**20))
        assert path.stat().st_size < 2**20
        refused(lambda p=path: read_gradient(p, TASK), "unpacked", str(20 * 2**20))


def test_checkpoints_whose_tensors_outgrow_their_storage_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would make the storage larger to fit a shape, however little of it was sent."""
    monkeypatch.setenv("SEEPAGE_MAX_GIB", "0.1")
    path = home / "spoilt" / "outgrown.pt"
    torch.save({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, home / "spoilt" / "small.pt")
    with zipfile.ZipFile(home / "spoilt" / "small.pt") as sound, zipfile.ZipFile(path, "w") as other:
        for name in sound.namelist():
            size = b"J" + struct.pack("<i", 2**26) + b"K\x03\x86"  # BININT 2**26, BININT1 3, TUPLE2
            content = sound.read(name)
            other.writestr(name, content.replace(b"K\x02K\x03\x86", size) if name.endswith("data.pkl") else content)
    refused(lambda: read_gradient(path, TASK), "outgrown.pt: tensors", "SEEPAGE_MAX_GIB")


@pytest.mark.parametrize("alignment", [b"0", b"00", b"-64", b"", b"a", b"0" * 5000])
def test_checkpoints_that_would_have_torch_divide_by_zero_are_refused(home: Path, alignment: bytes) -> None:
    path = home / "spoilt" / "aligned.pt"
    with zipfile.ZipFile(home / "w.pt") as sound, zipfile.ZipFile(path, "w") as other:
        for name in sound.namelist():
            other.writestr(name, alignment if name.endswith(".storage_alignment") else sound.read(name))
    refused(lambda: read_gradient(path, TASK), "aligned.pt", ".storage_alignment", "above 0")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, '{"schema": 1, "what": ' + "[" * 50_000])
def test_json_and_toml_that_python_gives_up_on_are_named(home: Path, text: str) -> None:
    refused(lambda: read_capture(spoilt(home, {}, text.encode())), "capture.json: json", "copy the file again")
    path = home / "spoilt" / "given-up.toml"
    path.write_text(f"a = {text}\n")
    for _, read in TABLES.values():
        refused(lambda read=read: read(path), "given-up.toml: expected TOML")


def test_an_endless_recipe_is_refused(home: Path) -> None:
    path = home / "spoilt" / "recipe.toml"
    path.write_text(RECIPE.replace("epochs = 2", "epochs = 1000000000"))
    refused(lambda: _recipe(home, path), "recipe.epochs", "at most 10000")


def test_orders_that_are_no_names_are_passed_over(home: Path) -> None:
    whole = {f"params/{name}": tensor for name, tensor in STATE.items()}
    for order in ("3", "[[1]]", '{"a": 1}', '["params/w"]'):
        save_file(whole, home / "spoilt" / "order.safetensors", metadata={"order": order})
        content = (home / "spoilt" / "order.safetensors").read_bytes()
        (found,) = read_capture(spoilt(home, {"state-0000.safetensors": content}))
        assert set(found.exchanges[0].before) == set(STATE)


@pytest.mark.parametrize("name", ["../s.safetensors", "/etc/passwd", "c/../s.safetensors", "..", "", ".", "a\0b"])
def test_names_lead_nowhere_else(home: Path, name: str) -> None:
    header = json.loads((home / "c" / "capture.json").read_text())
    header["clients"][0]["exchanges"][0]["before"] = name
    path = spoilt(home, {}, json.dumps(header).encode())
    refused(lambda: read_capture(path), "capture.json: before or answer", "same folder")


def test_links_and_pipes_are_refused(home: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(home / "c", tmp_path / "c"))
    (folder / "state-0000.safetensors").unlink()
    (folder / "state-0000.safetensors").symlink_to(home / "c" / "state-0000.safetensors")
    refused(lambda: find_captures(folder), "state-0000.safetensors: file", "got a link")
    os.mkfifo(tmp_path / "s.safetensors")
    refused(lambda: read_secret(tmp_path / "s.safetensors"), "s.safetensors: file")


@pytest.mark.parametrize("trial", ["../../s", "/etc/passwd", "a/b"])
def test_trials_of_a_folder_of_results_lead_nowhere_else(tmp_path: Path, trial: str) -> None:
    index = {"name": "e", "about": "", "threshold": 20.0, "expect": [], "trials": [trial]}
    (tmp_path / "experiment.json").write_text(json.dumps(index))
    refused(lambda: read_index(tmp_path), "experiment.json: trials", trial)


def test_secrets_of_different_lengths_or_none_are_named(tmp_path: Path) -> None:
    header = {"seepage": json.dumps({"schema": 1, "what": "seepage secret", "client": "a"})}
    for x, y in ((torch.zeros(2, 3), torch.zeros(3)), (torch.zeros(()), torch.zeros(()))):
        save_file({"x": x, "y": y}, tmp_path / "s.safetensors", metadata=header)
        with pytest.raises(CaptureError, match="as many targets"):
            read_secret(tmp_path / "s.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "s.safetensors", metadata={"seepage": "[]"})
    with pytest.raises(CaptureError, match="expected a secret"):
        read_secret(tmp_path / "s.safetensors")
