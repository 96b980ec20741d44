"""The Trainer of transformers on tiny networks with weights as drawn: nothing is fetched."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from seepage.cli import app
from seepage.data import load
from seepage.frameworks.arrange import find_captures, find_secrets
from seepage.recipe import SGD, Recipe

transformers = pytest.importorskip("transformers", reason="needs seepage[huggingface]")
pytest.importorskip("accelerate", reason="needs seepage[huggingface]")

from seepage.frameworks.huggingface import CaptureCallback, recipe_of, text_task  # noqa: E402

MODEL = """
import torch, transformers
from seepage.frameworks.huggingface import text_task

def network():
    torch.manual_seed(0)
    return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(
        vocab_size=156, n_embd=64, n_layer=2, n_head=4, n_positions=16, num_labels=3, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    ))

def task():
    return text_task(network(), 16)
"""
PLAIN = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "learning_rate": 0.05}
HELD = load("sentences").train[:2]


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "hugged.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import hugged  # type: ignore[import-not-found]

    yield hugged.network
    sys.modules.pop("hugged", None)


def arguments(folder: Path, **given: Any) -> Any:
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    once = {"per_device_train_batch_size": 2, "num_train_epochs": 1}
    return transformers.TrainingArguments(output_dir=str(folder / "trainer"), **{**quiet, **once, **given})


def train(model: Any, folder: Path, *callbacks: Any, **given: Any) -> None:
    held = zip(HELD.x, HELD.y, strict=True)
    data = [{"input_ids": x, "attention_mask": (x != 0).long(), "labels": y} for x, y in held]
    trainer = transformers.Trainer(model, arguments(folder, **given), train_dataset=data, callbacks=list(callbacks))
    trainer.train()


def test_texts_come_back_from_what_a_trainer_makes_of_gpt2(network: Any, tmp_path: Path) -> None:
    callback = CaptureCallback("capture", client="ward", number=3, secret="secret.safetensors")
    train(network(), tmp_path, callback, **PLAIN)
    words = load("sentences").vocabulary
    assert words is not None
    Path("words.txt").write_text("\n".join(words))
    done = CliRunner().invoke(app, [
        "attack", "capture", "--model", "hugged:task", "--secret", "secret.safetensors", "--words", "words.txt",
        "--device", "cpu", "--out", "out",
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "100 % of the tokens of 2 texts came back in their places" in said
    for text in HELD.x:
        readable = " ".join(words[int(token)] for token in text if token)
        assert readable in said
        assert escape(readable) in Path("out/index.html").read_text(encoding="utf-8")


def test_the_capture_says_round_count_and_recipe_and_training_is_as_without_it(network: Any, tmp_path: Path) -> None:
    watched, alone = network(), network()
    given = {**PLAIN, "num_train_epochs": 2, "per_device_train_batch_size": 1}
    callback = CaptureCallback("capture", client="ward", number=3, secret="secret.safetensors")
    train(watched, tmp_path, callback, **given)
    train(alone, tmp_path, **given)
    (capture,) = find_captures(Path("capture"))
    (exchange,) = capture.exchanges
    assert (capture.client, exchange.round, exchange.examples, exchange.kind) == ("ward", 3, 2, "weights")
    for name, parameter in alone.named_parameters():
        assert exchange.answer[name].equal(parameter), name
        assert exchange.before[name].equal(network().get_parameter(name)), name
    assert find_secrets(Path("secret.safetensors"))["ward"].examples.x.equal(HELD.x)
    done = CliRunner().invoke(app, ["doctor", "capture", "--model", "hugged:task", "--json"])
    (said,) = json.loads(done.stdout)
    assert "recipe" not in {check["name"] for check in said["checks"]}, "it was told"


def test_arguments_that_no_recipe_says_are_named_and_leave_it_out(
    network: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert recipe_of(arguments(tmp_path, **PLAIN)) == Recipe(SGD(0.05), batch_size=2, sends="weights")
    with caplog.at_level(logging.WARNING):
        train(network(), tmp_path, CaptureCallback("capture"))
    for reason in ("optim = 'adamw", "max_grad_norm = 1.0", "lr_scheduler_type = 'linear'"):
        assert reason in caplog.text
    assert not Path("capture/recipe.toml").exists()
    assert Path("capture/capture.json").exists()


def test_texts_must_be_filled_up_with_zeros(network: Any) -> None:
    model = network()
    model.config.pad_token_id = 2
    with pytest.raises(ValueError, match="pad_token_id"):
        text_task(model, 16)


def test_scores_are_those_of_the_model(network: Any) -> None:
    model, task = network().eval(), text_task(network(), 16)
    theirs = model(input_ids=HELD.x, attention_mask=(HELD.x != 0).long()).logits
    ours, _ = task.forward(task.params, HELD.x)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert list(task.params) == [name for name, _ in model.named_parameters()]
