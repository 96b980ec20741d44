"""Captures on disk, files of others, and every inconsistency by name."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from common.nets import CLASSES, batch_resnet, cnn, image_task, images, made_of, numbers, seeded
from seepage.capture import (
    Capture,
    CaptureError,
    Exchange,
    Problem,
    Secret,
    examine,
    moved,
    read_capture,
    read_gradient,
    read_pair,
    read_secret,
    write_capture,
    write_secret,
)
from seepage.recipe import SGD, Recipe
from seepage.rounds import Federation, join_rounds, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Params, Task

Files = dict[str, Tensor]


def same_tensors(one: Params | None, other: Params | None) -> bool:
    if one is None or other is None:
        return one is other
    return list(one) == list(other) and all(
        one[n].dtype == other[n].dtype and one[n].shape == other[n].shape and one[n].equal(other[n]) for n in one
    )


def assert_same_captures(got: list[Capture], expected: list[Capture]) -> None:
    assert [(c.client, c.members, len(c.exchanges)) for c in got] == [
        (c.client, c.members, len(c.exchanges)) for c in expected
    ]
    for one, other in zip(got, expected, strict=True):
        for g, e in zip(one.exchanges, other.exchanges, strict=True):
            assert (g.round, g.kind, g.examples) == (e.round, e.kind, e.examples)
            for field in ("before", "answer", "buffers_before", "buffers_after"):
                assert same_tensors(getattr(g, field), getattr(e, field)), field


def federation(sends: str = "update", visible: str = "each", buffers: bool = True) -> list[Capture]:
    task = image_task(batch_resnet)
    recipe = Recipe(SGD(0.1), sends=sends, sends_buffers=buffers)  # type: ignore[arg-type]
    rounds = play(
        task,
        [images(3, s) for s in range(3)],
        recipe,
        Federation(2, visible=visible),
        Stream.from_seed(0),  # type: ignore[arg-type]
    )
    return join_rounds([c for r in rounds for c in r.captures])


# Files of Seepage's own.


@pytest.mark.parametrize("sends", ["gradient", "update", "weights"])
@pytest.mark.parametrize("buffers", [True, False])
def test_a_capture_is_read_back_bit_by_bit_in_the_order_it_had(tmp_path: Path, sends: str, buffers: bool) -> None:
    captures = federation(sends, buffers=buffers)
    assert len(captures) == 3
    assert all(len(c.exchanges) == 2 for c in captures)
    write_capture(tmp_path / "wire", captures)
    assert_same_captures(read_capture(tmp_path / "wire"), captures)


def test_an_aggregate_is_read_back_with_its_members(tmp_path: Path) -> None:
    captures = federation(visible="aggregate")
    write_capture(tmp_path / "deeper" / "wire", captures)
    back = read_capture(tmp_path / "deeper" / "wire")
    assert back[0].members == ("0", "1", "2")
    assert_same_captures(back, captures)


def test_every_kind_of_tensor_is_read_back(tmp_path: Path) -> None:
    odd = {
        "z.bfloat16": numbers(3).bfloat16(),
        "a.half": numbers(2, 2).half(),
        "scalar": torch.tensor(float("-0.0")),
        "empty": torch.zeros(0, 3),
        "transposed": numbers(3, 4).T,
        "bool": torch.tensor([True, False]),
        "params/count": torch.tensor(7),
    }
    exchange = Exchange(5, odd, dict(reversed(odd.items())), "update", {}, None, None)
    write_capture(tmp_path / "wire", [Capture("ü/..", (exchange,))])
    (back,) = read_capture(tmp_path / "wire")
    assert_same_captures([back], [Capture("ü/..", (exchange,))])


def test_a_global_state_that_several_clients_received_is_stored_once(tmp_path: Path) -> None:
    write_capture(tmp_path / "wire", federation())
    names = sorted(path.name for path in (tmp_path / "wire").iterdir())
    assert sum(name.startswith("state") for name in names) == 2  # one per round
    assert sum(name.startswith("answer") for name in names) == 6
    assert names[-1].startswith("state")
    assert "capture.json" in names


def test_nothing_of_the_secret_is_written_with_the_capture(tmp_path: Path) -> None:
    task, examples = image_task(cnn), images(3)
    (only,) = play(task, [examples], Recipe(SGD(0.1)), Federation(), Stream.from_seed(0))
    write_capture(tmp_path / "wire", list(only.captures))
    written = b"".join(path.read_bytes() for path in (tmp_path / "wire").iterdir())
    assert examples.x[0].numpy().tobytes()[:64] not in written


def test_a_secret_is_read_back_from_a_file_of_its_own(tmp_path: Path) -> None:
    secret = Secret("ada", Examples(numbers(3, 2, 2).transpose(1, 2), images(3).y))
    write_secret(tmp_path / "deeper" / "ada.safetensors", secret)
    back = read_secret(tmp_path / "deeper" / "ada.safetensors")
    assert back.client == "ada"
    assert back.examples.x.equal(secret.examples.x)
    assert back.examples.y.equal(secret.examples.y)
    assert [path.name for path in (tmp_path / "deeper").iterdir()] == ["ada.safetensors"]  # no scratch file is left


def test_a_folder_is_never_written_over_and_failure_leaves_no_trace(tmp_path: Path) -> None:
    write_capture(tmp_path / "wire", federation())
    with pytest.raises(FileExistsError, match=r"wire.*expected no such folder.*choose another name"):
        write_capture(tmp_path / "wire", federation())
    broken = [replace(federation()[0], exchanges=(object(),))]  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        write_capture(tmp_path / "other", broken)
    assert [path.name for path in tmp_path.iterdir()] == ["wire"]


def wire(tmp_path: Path) -> Path:
    write_capture(tmp_path / "wire", federation())
    return tmp_path / "wire"


def change_header(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    header = json.loads((folder / "capture.json").read_text())
    change(header)
    (folder / "capture.json").write_text(json.dumps(header))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def reseal(folder: Path, name: str) -> None:
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    change_header(folder, lambda header: header["sha256"].update({name: digest}))


def cut(folder: Path) -> None:
    path = folder / "state-0000.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    reseal(folder, path.name)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "capture.json").unlink(), ["capture.json", "expected a header", "write_capture"]),
        (lambda f: (f / "capture.json").write_text("{"), ["capture.json", "expected JSON", "copy the file again"]),
        (lambda f: (f / "capture.json").write_bytes(b"\xff\xfe"), ["capture.json", "expected UTF-8"]),
        (lambda f: (f / "capture.json").write_text("[]"), ["capture.json", "schema 1", "list"]),
        (
            lambda f: change_header(f, lambda h: h.update(schema=2)),
            ["capture.json", "schema 1", "2", "version of seepage"],
        ),
        (lambda f: change_header(f, lambda h: h.update(what="x")), ["capture.json", "seepage capture", "'x'"]),
        (
            lambda f: change_header(f, lambda h: h.pop("clients")),
            ["capture.json", "clients", "write the capture again"],
        ),
        (lambda f: change_header(f, lambda h: h.pop("sha256")), ["capture.json", "sha256", "write the capture again"]),
        (
            lambda f: change_header(f, lambda h: h["clients"][0]["exchanges"][0].pop("answer")),
            ["capture.json", "answer", "write the capture again"],
        ),
        (
            lambda f: change_header(f, lambda h: h["clients"][0]["exchanges"][0].update(kind="model")),
            ["capture.json", "kind", "gradient", "'model'"],
        ),
        (lambda f: (f / "answer-0001-0000.safetensors").unlink(), ["answer-0001-0000", "got none", "copy it beside"]),
        (lambda f: damage(f / "state-0001.safetensors"), ["state-0001", "sha256", "checksum", "copy the file again"]),
        (
            lambda f: change_header(f, lambda h: h["sha256"].pop("state-0001.safetensors")),
            ["state-0001", "sha256", "checksum"],
        ),
        (cut, ["state-0000", "expected a readable file", "copy the file again"]),
    ],
)
def test_a_spoilt_capture_is_refused_by_file_key_and_fix(
    tmp_path: Path, spoil: Callable[[Path], None], words: list[str]
) -> None:
    folder = wire(tmp_path)
    spoil(folder)
    with pytest.raises(CaptureError) as refusal:
        read_capture(folder)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_header_cannot_point_outside_of_its_folder(tmp_path: Path) -> None:
    folder = wire(tmp_path)
    (tmp_path / "elsewhere.safetensors").write_bytes((folder / "state-0000.safetensors").read_bytes())
    change_header(folder, lambda h: h["clients"][0]["exchanges"][0].update(before="../elsewhere.safetensors"))
    with pytest.raises(CaptureError, match=r"capture.json: before or answer: .*in the same folder, got '../elsewhere"):
        read_capture(folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p.unlink(), ["got none"]),
        (lambda p: p.write_bytes(b"no safetensors"), ["expected a readable file", "copy the file again"]),
        (lambda p: save_file({"x": torch.zeros(1), "y": torch.zeros(1)}, p), ["expected a secret", "write_secret"]),
        (lambda p: save_file({"x": torch.zeros(1)}, p, {"seepage": "{"}), ["expected a secret", "write_secret"]),
        (
            lambda p: save_file(
                {"x": torch.zeros(1)}, p, {"seepage": '{"what": "seepage secret", "schema": 1, "client": "a"}'}
            ),
            ["'y'", "write_secret"],
        ),
        (
            lambda p: save_file({"x": torch.zeros(1)}, p, {"seepage": '{"what": "seepage secret", "schema": 7}'}),
            ["schema 1", "schema 7"],
        ),
    ],
)
def test_a_spoilt_secret_is_refused(tmp_path: Path, spoil: Callable[[Path], None], words: list[str]) -> None:
    path = tmp_path / "ada.safetensors"
    write_secret(path, Secret("ada", images(2)))
    spoil(path)
    with pytest.raises(CaptureError) as refusal:
        read_secret(path)
    assert all(word in str(refusal.value) for word in ["ada.safetensors", *words]), str(refusal.value)


# Inconsistencies between a capture and the module.


def honest(task: Task, kind: str = "update") -> Exchange:
    answer = {name: 0.01 * numbers(*p.shape, seed=1) for name, p in task.params.items()}
    return Exchange(4, task.params, answer, kind, task.buffers, dict(task.buffers), 3)  # type: ignore[arg-type]


def changed(tensors: Params, name: str, tensor: Tensor) -> Params:
    return {**tensors, name: tensor}


def without(tensors: Params, name: str) -> Params:
    return {key: tensor for key, tensor in tensors.items() if key != name}


WEIGHT, MEAN = "0.first.weight", "0.first_norm.running_mean"


def test_a_sound_capture_has_no_problems() -> None:
    task = image_task(batch_resnet)
    for kind in ("gradient", "update"):
        assert examine(Capture("ada", (honest(task, kind),)), task) == []
    for capture in federation(buffers=False):
        assert examine(capture, image_task(batch_resnet)) == []


@pytest.mark.parametrize(
    ("spoil", "where", "key", "words"),
    [
        (lambda e: replace(e, before=without(e.before, WEIGHT)), "before", WEIGHT, ["parameter", "got none", "add it"]),
        (lambda e: replace(e, answer=without(e.answer, WEIGHT)), "update", WEIGHT, ["parameter", "got none", "add it"]),
        (
            lambda e: replace(e, answer=changed(e.answer, "extra", torch.zeros(1))),
            "update",
            "extra",
            ["one more", "remove it"],
        ),
        (
            lambda e: replace(e, answer=changed(e.answer, WEIGHT, torch.zeros(2, 2))),
            "update",
            WEIGHT,
            ["expected shape (2, 1, 3, 3), got (2, 2)", "sizes that were trained"],
        ),
        (
            lambda e: replace(e, answer=changed(e.answer, WEIGHT, e.answer[WEIGHT].float())),
            "update",
            WEIGHT,
            ["expected torch.float64, got torch.float32", "convert it"],
        ),
        (
            lambda e: replace(e, answer=changed(e.answer, WEIGHT, e.answer[WEIGHT] / 0)),
            "update",
            WEIGHT,
            ["18 of 18 NaN or infinite", "drop this round"],
        ),
        (
            lambda e: replace(e, before=changed(e.before, WEIGHT, e.before[WEIGHT] * float("nan"))),
            "before",
            WEIGHT,
            ["NaN", "drop this round"],
        ),
        (
            lambda e: replace(e, buffers_before=without(e.buffers_before, MEAN)),
            "buffers before",
            MEAN,
            ["buffer", "got none"],
        ),
        (
            lambda e: replace(e, buffers_after=changed(e.buffers_after, MEAN, torch.zeros(9).double())),
            "buffers after",
            MEAN,
            ["expected shape (2,), got (9,)"],
        ),
        (
            lambda e: replace(e, answer={name: torch.zeros_like(u) for name, u in e.answer.items()}),
            "client ada, round 4",
            "all",
            ["expected a non-zero update, got zeros", "check that the client trained"],
        ),
        (
            lambda e: replace(e, answer=e.before, kind="weights"),
            "client ada, round 4",
            "all",
            ["differ from the global model, got the same numbers", "the two files are not one"],
        ),
    ],
)
def test_each_inconsistency_is_named_with_place_key_and_fix(
    spoil: Callable[[Exchange], Exchange], where: str, key: str, words: list[str]
) -> None:
    task = image_task(batch_resnet)
    problems = [p for p in examine(Capture("ada", (spoil(honest(task)),)), task) if p.fatal]
    assert len(problems) == 1
    (problem,) = problems
    assert "client ada, round 4" in problem.where
    assert where in problem.where
    assert problem.key == key
    assert all(word in str(problem) for word in words), str(problem)


def test_buffers_that_differ_are_worth_a_word_and_do_no_harm() -> None:
    task = image_task(batch_resnet)
    exchange = honest(task)
    other = changed(exchange.buffers_before, MEAN, torch.ones(2).double())
    (problem,) = examine(Capture("ada", (replace(exchange, buffers_after=other),)), task)
    assert not problem.fatal
    assert problem.key == MEAN
    assert "train mode" in problem.what
    assert "batch_norm = 'train'" in problem.fix


def test_a_tensor_that_did_not_change_is_worth_a_word() -> None:
    task = image_task(cnn)
    exchange = honest(task)
    still = replace(
        exchange, answer=changed(exchange.answer, "0.weight", torch.zeros_like(exchange.answer["0.weight"]))
    )
    (problem,) = examine(Capture("ada", (still,)), task)
    assert not problem.fatal
    assert problem.key == "0.weight"
    assert "requires_grad=False" in problem.fix


def test_a_word_about_one_round_does_not_hide_what_is_wrong_with_the_next() -> None:
    task = image_task(batch_resnet)
    first = honest(task)
    first = replace(first, buffers_after=changed(first.buffers_before, MEAN, torch.ones(2).double()))
    same = replace(first, round=5, answer=task.params, kind="weights")
    problems = examine(Capture("ada", (first, same)), task)
    assert [(p.fatal, "round 5" in p.where) for p in problems] == [(False, False), (False, True), (True, True)]


def test_all_problems_are_listed_at_once() -> None:
    task = image_task(batch_resnet)
    exchange = honest(task)
    bad = replace(exchange, before=without(exchange.before, WEIGHT), answer=without(exchange.answer, WEIGHT))
    problems = examine(Capture("ada", (bad,)), task)
    assert len(problems) == 2
    error = CaptureError(problems)
    assert error.problems == tuple(problems)
    assert str(error).count("\n") == 1


def test_a_problem_prints_place_key_what_and_fix() -> None:
    assert str(Problem("a.pt", "w", "expected 1, got 2", "do it")) == "a.pt: w: expected 1, got 2; do it"


def test_updates_are_before_minus_after_whatever_was_sent() -> None:
    before, after = {"w": numbers(3)}, {"w": numbers(3, seed=1)}
    assert Exchange(0, before, after, "weights", {}).update["w"].equal(before["w"] - after["w"])
    assert Exchange(0, before, after, "update", {}).update is after
    assert Exchange(0, before, after, "gradient", {}).update is after


def test_moving_keeps_everything_but_the_device() -> None:
    captures = [*federation(), *federation(buffers=False)]
    assert_same_captures([moved(c, "cpu") for c in captures], captures)
    meta = moved(captures[0], "meta")
    assert meta.exchanges[0].answer[WEIGHT].is_meta


# Files of others.


@pytest.fixture
def task() -> Task:
    return image_task(batch_resnet)


def trained(task: Task) -> Files:
    return {name: t + 1 if "num" in name else t + 0.1 for name, t in made_of(task.module).items()}


def save(path: Path, tensors: Files) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".npz", ".safetensors"])
def test_a_pair_of_weights_is_read(tmp_path: Path, task: Task, suffix: str) -> None:
    before, after = made_of(task.module), trained(task)
    paths = save(tmp_path / f"before{suffix}", before), save(tmp_path / f"after{suffix}", after)
    capture = read_pair(*paths, task, client="ada", examples=8)
    (exchange,) = capture.exchanges
    assert (capture.client, exchange.kind, exchange.examples) == ("ada", "weights", 8)
    assert list(exchange.before) == list(exchange.answer) == list(task.params)
    assert all(exchange.before[name].equal(before[name]) for name in task.params)
    assert all(exchange.answer[name].equal(after[name]) for name in task.params)
    assert exchange.buffers_after is not None
    assert all(exchange.buffers_before[name].equal(before[name]) for name in task.buffers)
    assert all(exchange.buffers_after[name].equal(after[name]) for name in task.buffers)
    for name, u in exchange.update.items():
        torch.testing.assert_close(u, before[name] - after[name])


def test_a_checkpoint_with_a_state_dict_inside_is_read(tmp_path: Path, task: Task) -> None:
    torch.save({"epoch": 3, "state_dict": made_of(task.module)}, tmp_path / "before.pt")
    torch.save({"epoch": 4, "state_dict": trained(task)}, tmp_path / "after.pt")
    assert read_pair(tmp_path / "before.pt", tmp_path / "after.pt", task).exchanges[0].update


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: without(t, WEIGHT), [WEIGHT, "got none", "add it"]),
        (lambda t: changed(t, "extra", torch.zeros(1)), ["extra", "one more", "remove it"]),
        (lambda t: changed(t, WEIGHT, torch.zeros(3, 3).double()), [WEIGHT, "(2, 1, 3, 3), got (3, 3)", "sizes"]),
        (lambda t: changed(t, WEIGHT, t[WEIGHT].float()), [WEIGHT, "float64, got torch.float32", "convert it"]),
        (lambda t: changed(t, WEIGHT, t[WEIGHT] * float("nan")), [WEIGHT, "NaN", "drop this round"]),
        (lambda t: changed(t, WEIGHT, t[WEIGHT] / 0), [WEIGHT, "infinite", "drop this round"]),
        (lambda t: without(t, MEAN), [MEAN, "got none", "add it"]),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_by_file_key_and_fix(
    tmp_path: Path, task: Task, suffix: str, spoil: Callable[[Files], Files], words: list[str]
) -> None:
    good = save(tmp_path / f"good{suffix}", made_of(task.module))
    bad = save(tmp_path / f"bad{suffix}", spoil(trained(task)))
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(CaptureError) as refusal:
            read_pair(*pair, task)
        assert all(word in str(refusal.value) for word in [str(bad), *words]), str(refusal.value)
        assert str(good) not in str(refusal.value)


def test_two_files_with_the_same_weights_are_refused_by_name(tmp_path: Path, task: Task) -> None:
    before = save(tmp_path / "before.pt", made_of(task.module))
    after = save(tmp_path / "after.pt", made_of(task.module))
    with pytest.raises(CaptureError) as refusal:
        read_pair(before, after, task)
    words = [str(before), str(after), "got the same numbers", "the two files are not one"]
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def gradient_of(task: Task) -> Files:
    return {name: 0.01 * numbers(*p.shape, seed=2) for name, p in task.params.items()}


def as_list(task: Task, path: Path) -> Path:
    torch.save(list(gradient_of(task).values()), path)
    return path


def as_tuple(task: Task, path: Path) -> Path:
    torch.save(tuple(gradient_of(task).values()), path)
    return path


def as_arrays(task: Task, path: Path) -> Path:
    np.savez(path.with_suffix(".npz"), *[g.numpy() for g in gradient_of(task).values()])
    return path.with_suffix(".npz")


def by_name(suffix: str) -> Callable[[Task, Path], Path]:
    def write(task: Task, path: Path) -> Path:
        return save(path.with_suffix(suffix), dict(reversed(gradient_of(task).items())))

    return write


@pytest.mark.parametrize(
    "write", [as_list, as_tuple, as_arrays, by_name(".pt"), by_name(".npz"), by_name(".safetensors")]
)
@pytest.mark.parametrize("stated", [True, False])
def test_a_gradient_is_read_as_a_list_and_by_name(
    tmp_path: Path, task: Task, write: Callable[[Task, Path], Path], stated: bool
) -> None:
    assert len(task.params) > 10  # so that arr_10 comes after arr_9 and not after arr_1
    path = write(task, tmp_path / "gradient.pt")
    before = save(tmp_path / "global.npz", trained(task)) if stated else None
    (exchange,) = read_gradient(path, task, before=before, examples=4).exchanges
    assert (exchange.kind, exchange.examples, exchange.buffers_after) == ("gradient", 4, None)
    assert list(exchange.answer) == list(task.params)
    assert all(exchange.answer[name].equal(g) for name, g in gradient_of(task).items())
    expected = trained(task) if stated else made_of(task.module)
    assert all(exchange.before[name].equal(expected[name]) for name in task.params)
    assert all(exchange.buffers_before[name].equal(expected[name]) for name in task.buffers)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda g: list(g.values())[1:], ["tensors, one per parameter", "in the module's order"]),
        (lambda g: [], ["one per parameter, got 0"]),
        (lambda g: [torch.zeros(1).double() for _ in g], [WEIGHT, "expected shape"]),
        (lambda g: [torch.zeros_like(t) for t in g.values()], ["expected a non-zero gradient, got zeros"]),
        (lambda g: [t / 0 for t in g.values()], [WEIGHT, "NaN or infinite"]),
        (lambda g: changed(g, "extra", torch.zeros(1)), ["extra", "remove it"]),
        (lambda g: torch.zeros(3), ["expected a state dict or a list of tensors, got Tensor", "state_dict()"]),
        (lambda g: {"lr": 0.1}, ["expected a state dict or a list of tensors, got dict"]),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_by_file_and_fix(
    tmp_path: Path, task: Task, content: Callable[[Files], Any], words: list[str]
) -> None:
    path = tmp_path / "gradient.pt"
    torch.save(content(gradient_of(task)), path)
    with pytest.raises(CaptureError) as refusal:
        read_gradient(path, task)
    assert all(word in str(refusal.value) for word in [str(path), *words]), str(refusal.value)


def test_global_weights_that_do_not_fit_are_refused_by_their_own_name(tmp_path: Path, task: Task) -> None:
    before = save(tmp_path / "global.pt", without(made_of(task.module), WEIGHT))
    with pytest.raises(CaptureError) as refusal:
        read_gradient(as_list(task, tmp_path / "gradient.pt"), task, before=before)
    assert str(before) in str(refusal.value)
    assert "gradient.pt" not in str(refusal.value)


@pytest.mark.parametrize("name", ["none.pt", "none.npz", "none.safetensors"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, task: Task, name: str) -> None:
    with pytest.raises(CaptureError, match=rf"{name}: file: expected a file, got none; check the path"):
        read_gradient(tmp_path / name, task)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".npz", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\x80\x04garbage", None])
def test_a_damaged_file_is_named(tmp_path: Path, task: Task, suffix: str, content: bytes | None) -> None:
    path = tmp_path / f"damaged{suffix}"
    if content is None:
        whole = save(tmp_path / f"whole{suffix}", gradient_of(task)).read_bytes()
        content = whole[: len(whole) // 2]
    path.write_bytes(content)
    with pytest.raises(CaptureError) as refusal:
        read_gradient(path, task)
    assert str(path) in str(refusal.value)


def test_an_unknown_kind_of_file_is_refused_with_the_known_ones(tmp_path: Path, task: Task) -> None:
    (tmp_path / "gradient.csv").write_text("1,2")
    with pytest.raises(
        CaptureError, match=r"gradient.csv: suffix: expected .pt, .pth, .npz or .safetensors, got '.csv'"
    ):
        read_gradient(tmp_path / "gradient.csv", task)


# Files are data, never code.


class Bomb:
    """Unpickling makes a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def zipped_pickle(bomb: Bomb, path: Path) -> None:
    torch.save({"weight": torch.zeros(1), "bomb": bomb}, path)


def legacy_pickle(bomb: Bomb, path: Path) -> None:
    torch.save([bomb], path, _use_new_zipfile_serialization=False)


def bare_pickle(bomb: Bomb, path: Path) -> None:
    path.write_bytes(pickle.dumps(bomb))


def object_array(bomb: Bomb, path: Path) -> None:
    array = np.empty(1, dtype=object)
    array[0] = bomb
    with path.open("wb") as file:
        np.savez(file, weight=array)


def pickled_member(bomb: Bomb, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weight.npy", pickle.dumps(bomb))


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".npz", ".safetensors"])
@pytest.mark.parametrize("write", [zipped_pickle, legacy_pickle, bare_pickle, object_array, pickled_member])
def test_code_in_a_file_is_refused_and_never_run(
    tmp_path: Path, task: Task, suffix: str, write: Callable[[Bomb, Path], None]
) -> None:
    trace, path = tmp_path / "it-ran", tmp_path / f"bomb{suffix}"
    write(Bomb(trace), path)
    good = save(tmp_path / "good.pt", made_of(task.module))
    for read in (lambda: read_gradient(path, task), lambda: read_pair(good, path, task)):
        with pytest.raises(CaptureError) as refusal:
            read()
        assert str(path) in str(refusal.value)
    assert not trace.exists()


def test_the_bomb_of_these_tests_goes_off_where_files_are_unpickled(tmp_path: Path) -> None:
    pickle.load(io.BytesIO(pickle.dumps(Bomb(tmp_path / "it-ran"))))
    assert (tmp_path / "it-ran").exists()


def test_a_whole_module_is_refused_with_the_way_to_save_it(tmp_path: Path) -> None:
    task = Task(seeded(lambda: nn.Linear(36, CLASSES)), DataSpec((36,), classes=CLASSES))
    torch.save(task.module, tmp_path / "module.pt")
    with pytest.raises(CaptureError, match=r"module.pt.*file of tensors alone.*module.state_dict\(\)"):
        read_gradient(tmp_path / "module.pt", task)
