"""From a captured federation to a report, by the commands alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

import seepage
from seepage.audit.summary import read_rows
from seepage.capture import read_capture, read_secret, write_capture, write_secret
from seepage.cli import app
from seepage.frameworks.record import record, write_recipe
from seepage.recipe import SGD, Recipe
from seepage.spec import Examples

MODEL = """
import torch, seepage
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Sigmoid(), nn.Linear(24, 3))

def task():
    return seepage.Task(network(), seepage.DataSpec((1, 6, 6), classes=3, low=-2.0, high=2.0))

def sized(width, classes=3):
    return seepage.Task(nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.Sigmoid(), nn.Linear(width, classes)),
                        seepage.DataSpec((1, 6, 6), classes=3))

def broken():
    raise RuntimeError("no licence")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model, two captured clients and their secrets."""
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("mine", None)
    namespace: dict[str, object] = {}
    exec(MODEL, namespace)
    for client in range(2):
        model: nn.Module = namespace["network"]()  # type: ignore[operator]
        rng = torch.Generator().manual_seed(client)
        x, y = torch.rand(1, 1, 6, 6, generator=rng), torch.tensor([client])
        secret = tmp_path / "secrets" / f"{client}.safetensors"
        with record(model, tmp_path / "captures" / f"{client}", client=f"ward {client}", secret=secret) as rec:
            rec.seal(x, y)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    write_recipe(tmp_path / "recipe.toml", Recipe(SGD(0.1), sends="weights"))
    yield tmp_path
    sys.modules.pop("mine", None)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def _filmed(folder: Path, attack: str) -> None:
    """Every client's image has its way beside it, which ends at what was answered; the page has its slider."""
    _, rows, table = read_rows(folder)
    pictures = table.pictures(rows.loc[rows["attack"] == attack, "trial"].iloc[0])
    assert pictures is not None
    film = pictures.footage
    assert film is not None
    assert film.of.tolist() == [0, 1]
    assert (np.abs(film.way[:, -1].astype(int) - pictures.guess) <= 1).all()
    assert (film.way[:, 0] != film.way[:, -1]).any()
    assert 'data-film="' in (folder / "index.html").read_text()


def test_with_a_secret_what_came_back_is_scored(home: Path) -> None:
    done = call(
        "attack", "captures", "--model", "mine:task", "--recipe", "recipe.toml", "--secret", "secrets", "--out", "out",
        "--effort", "quick", "--device", "cpu",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "2 of 2 images came back" in " ".join(done.output.split())
    _, rows, _ = read_rows(home / "out")
    exact = rows[(rows["attack"] == "analytic") & (rows["metric"] == "psnr")]
    assert (exact["value"] > 40).all(), "a linear first layer with a bias gives a single example away"
    assert set(rows["client"]) == {"ward 0", "ward 1"}
    assert set(rows["threat"]) == {"honest-server"}
    _filmed(home / "out", "inverting-gradients")
    page = (home / "out" / "index.html").read_text()
    assert "What was captured" in page
    assert "parameters per input value" in page


def test_without_a_secret_images_are_unscored_and_labels_believed(home: Path) -> None:
    done = call("attack", "captures", "--model", "mine:task", "--out", "out", "--effort", "quick", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "nothing can be scored" in " ".join(done.output.split())
    _, rows, table = read_rows(home / "out")
    assert not rows["metric"].isin(["psnr", "recovered", "label_accuracy"]).any()
    assert set(rows["threat"]) == {"guessing-eavesdropper"}
    _filmed(home / "out", "inverting-gradients")
    search = rows[rows["attack"] == "inverting-gradients"].set_index(["client", "metric"])["value"]
    assert search["ward 0", "update_explained"] > 0.99
    assert ("ward 0", "restart_psnr") in search.index
    labels = table.note(rows["trial"].iloc[0])["labels"]
    assert labels == {"ward 0": {"0": 1}, "ward 1": {"1": 1}}
    page = (home / "out" / "index.html").read_text()
    assert "unscored: no truth was given" in page
    assert "holds the clients’ true images" not in page


def test_clients_of_adam_are_followed_where_nobody_tells_of_it(home: Path) -> None:
    namespace: dict[str, object] = {}
    exec(MODEL, namespace)
    torch.manual_seed(0)
    task = namespace["sized"](40)  # type: ignore[operator]
    x, y = torch.rand(1, 1, 6, 6), torch.tensor([2])
    with record(task.module, home / "adams" / "0", client="ward 0", secret=home / "adam.safetensors") as rec:
        rec.seal(x, y)
        optimiser = torch.optim.Adam(task.module.parameters(), lr=0.002)
        nn.functional.cross_entropy(task.module(x), y).backward()
        optimiser.step()
    done = call("attack", "adams", "--model", "mine:sized(40)", "--out", "out", "--effort", "quick", "--device", "cpu")
    assert done.exit_code == 0, done.output
    _, rows, table = read_rows(home / "out")
    note = table.note(rows["trial"].iloc[0])
    assert "one step of Adam with learning rate 0.002" in note["trial"]["threat"]["about"]
    assert note["labels"] == {"ward 0": {"2": 1}}
    search = rows[rows["attack"] == "inverting-gradients"].set_index("metric")["value"]
    assert search["update_explained"] > 0.9


def test_a_finished_attack_is_not_run_again(home: Path) -> None:
    command = ("attack", "captures", "--model", "mine:task", "--out", "out", "--effort", "quick", "--device", "cpu")
    call(*command)
    before = {path: path.stat().st_mtime_ns for path in (home / "out" / "rows").iterdir()}
    call(*command)
    assert {path: path.stat().st_mtime_ns for path in (home / "out" / "rows").iterdir()} == before


def test_a_policy_decides_the_exit_code(home: Path) -> None:
    (home / "policy.toml").write_text('[[limit]]\nmetric = "recovered"\nat_most = 0.5\nattack = "analytic"\n')
    done = call(
        "attack", "captures", "--model", "mine:task", "--recipe", "recipe.toml", "--secret", "secrets", "--out", "out",
        "--effort", "quick", "--policy", "policy.toml", "--device", "cpu",
    )  # fmt: skip
    assert done.exit_code == 1, done.output


def test_the_doctor_prints_its_checks_and_gives_them_to_machines(home: Path) -> None:
    done = call("doctor", "captures", "--model", "mine:task", "--recipe", "recipe.toml", "--secret", "secrets")
    assert done.exit_code == 0, done.output
    assert "leakage to expect" in done.output
    done = call("doctor", "captures", "--model", "mine:task", "--client", "ward 1", "--json")
    (only,) = json.loads(done.output)
    assert (only["client"], only["sound"], only["nature"]["fewest_examples"]) == ("ward 1", True, 1)
    assert {check["name"] for check in only["checks"]} >= {"names and shapes", "recipe"}


def test_the_doctor_sums_up_and_finds_the_learning_rate(home: Path) -> None:
    command = ("doctor", "captures", "--model", "mine:task", "--secret", "secrets", "--recipe", "recipe.toml")
    done = call(*command)
    assert "In short: a sound capture." in done.output
    write_recipe(home / "recipe.toml", Recipe(SGD(0.4), sends="weights"))
    done = call(*command)
    assert done.exit_code == 1
    assert "one that is 0.25 times as long" in done.output
    assert "lr = 0.1 would fit" in done.output
    assert "In short: 1 problem (learning rate) would mislead every attack" in done.output


def test_the_doctor_says_when_the_module_is_another(home: Path) -> None:
    (home / "other.py").write_text(MODEL.replace("24", "25"))
    for command in ("doctor", "attack"):
        done = call(command, "captures", "--model", "other:task")
        assert done.exit_code == (1 if command == "doctor" else 2)
        assert "expected shape (25, 36), got (24, 36)" in done.output
    sys.modules.pop("other", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere", "--model", "mine:task"), "expected a folder with a capture.json"),
        (("captures", "--model", "mine:missing"), "expected `package.module:factory`"),
        (("captures", "--model", "mine:network"), "as in --shape 3,32,32"),
        (("captures", "--model", "mine:network", "--shape", "a,b"), "expected whole numbers"),
        (("captures", "--model", "mine:MODEL"), "expected `package.module:factory`"),
        (("captures", "--model", "mine:sized"), "--model 'mine:sized(8, norm=\"batch\")'"),
        (("captures", "--model", "mine:sized(24, 3, 5)"), "too many positional arguments"),
        (("captures", "--model", "mine:sized(24, 2)"), "--model: mine:sized: expected at least 3 outputs"),
        (("captures", "--model", "mine:sized(exit())"), "expected numbers, strings, lists"),
        (("captures", "--model", "mine:sized(24"), "expected numbers, strings, lists"),
        (("captures", "--model", "mine:broken"), "mine:broken raised RuntimeError: no licence (mine.py, line"),
        (("captures", "--model", "mine:task", "--client", "x"), "expected one of ['ward 0', 'ward 1']"),
        (("captures", "--model", "mine:task", "--round", "9"), "in round 9"),
        (("captures", "--model", "mine:task", "--recipe", "mine.py"), "expected TOML"),
        (("captures", "--model", "mine:task", "--recipe", "none.toml"), "check the path"),
    ],
)
def test_what_a_person_did_wrong_is_said_in_a_sentence(home: Path, words: tuple[str, ...], said: str) -> None:
    for command in ("doctor", "attack"):
        done = call(command, *words)
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())


def test_sealed_labels_that_have_no_output_are_refused(home: Path) -> None:
    held = read_secret(home / "secrets" / "1.safetensors")
    write_secret(home / "wider.safetensors", replace(held, examples=Examples(held.examples.x, torch.tensor([7]))))
    for command in ("doctor", "attack"):
        done = call(command, "captures", "--model", "mine:task", "--secret", "wider.safetensors")
        assert done.exit_code == 2
        said = " ".join(done.output.split())
        assert "expected at least 8 outputs, as the sealed examples of client 'ward 1' have labels up to 7" in said


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (torch.zeros(1, 1, 6, 6, dtype=torch.uint8), torch.tensor([1]), "in floating point, got torch.uint8"),
        (torch.zeros(1, 6, 6, 1), torch.tensor([1]), "of shape (1, 6, 6), got (6, 6, 1); seal what"),
        (torch.zeros(1, 1, 6, 6), torch.tensor([1.0]), "got torch.float32 of shape (1,); seal `y.long()`"),
        (torch.zeros(1, 1, 6, 6), torch.eye(3)[:1], "got torch.float32 of shape (1, 3); seal `y.long()`"),
    ],
    ids=["bytes", "channels last", "labels as floats", "labels one-hot"],
)
def test_sealed_examples_that_the_module_does_not_eat_are_refused(
    home: Path, x: torch.Tensor, y: torch.Tensor, said: str
) -> None:
    held = read_secret(home / "secrets" / "1.safetensors")
    write_secret(home / "odd.safetensors", replace(held, examples=Examples(x, y)))
    for command in ("doctor", "attack"):
        done = call(command, "captures", "--model", "mine:task", "--secret", "odd.safetensors")
        assert done.exit_code == 2
        assert "--secret: client 'ward 1': expected" in " ".join(done.output.split())
        assert said in " ".join(done.output.split())


def test_without_a_word_on_pixels_likeness_goes_by_the_range_of_the_sealed_ones(home: Path) -> None:
    """A guess of one grey for numbers drawn evenly from 0 to 1 has 10.8 dB; by a range of 6 it would have 26."""
    done = call(
        "attack", "captures", "--model", "mine:network", "--shape", "1,6,6", "--secret", "secrets", "--out", "out",
        "--effort", "quick", "--device", "cpu",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "what pixels are worth is not known" in " ".join(done.output.split())
    rows = read_rows(home / "out")[1]
    guess = rows[rows["metric"] == "psnr_of_constant"]["value"]
    held = [read_secret(home / "secrets" / f"{client}.safetensors").examples.x for client in range(2)]
    width = float(torch.cat(held).max() - torch.cat(held).min())
    by_hand = [10 * np.log10(width**2 / float((x - x.mean()).square().mean())) for x in held]
    assert sorted(set(guess.round(3))) == pytest.approx(sorted(by_hand), abs=1e-2)


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(home: Path) -> None:
    command = ("attack", "captures", "--model", "mine:task", "--effort", "quick", "--out")
    done = call(*command, "mine.py")
    assert done.exit_code == 2
    assert "error: mine.py: File exists; name a folder, or none yet" in done.output
    done = call(*command, "mine.py/results")
    assert done.exit_code == 2
    assert "Not a directory; name a folder, or none yet" in " ".join(done.output.split())


def test_a_factory_is_called_with_what_stands_behind_its_name(home: Path) -> None:
    for model in ("mine:sized(24)", "mine:sized(width=24, classes=3)"):
        assert call("doctor", "captures", "--model", model).exit_code == 0
    done = call("doctor", "captures", "--model", "mine:sized(25)")
    assert done.exit_code == 1
    assert "In short: the capture cannot be attacked as it is" in done.output


def test_one_client_that_diverged_is_named_beside_those_that_did_not(home: Path) -> None:
    (good,), (bad,) = (read_capture(home / "captures" / name) for name in "01")
    (last,) = bad.exchanges
    lost = {name: torch.full_like(t, float("nan")) for name, t in last.answer.items()}
    write_capture(home / "both", [good, seepage.Capture(bad.client, (replace(last, answer=lost),))])
    done = call("attack", "both", "--model", "mine:task")
    assert done.exit_code == 2
    assert "The others can be attacked alone: --client ward 0" in " ".join(done.output.split())


def test_a_module_alone_will_do_where_the_shape_is_given(home: Path) -> None:
    done = call("doctor", "captures", "--model", "mine:network", "--shape", "1,6,6")
    assert done.exit_code == 0, done.output
    done = call("doctor", "captures", "--model", "mine:network", "--secret", "secrets")
    assert done.exit_code == 0, done.output


def test_threats_that_know_more_than_there_is_are_refused(home: Path) -> None:
    done = call("attack", "captures", "--model", "mine:task", "--threat", "honest-server")
    assert done.exit_code == 2
    assert "give --recipe" in " ".join(done.output.split())
    done = call("attack", "captures", "--model", "mine:task", "--threat", "nobody")
    assert "expected one of" in done.output


def test_names_from_outside_are_escaped_in_the_report(home: Path) -> None:
    (capture,) = read_capture(home / "captures" / "0")
    evil = seepage.Capture("<script>alert(1)</script>", capture.exchanges)
    write_capture(home / "evil", [evil])
    done = call("attack", "evil", "--model", "mine:task", "--out", "out", "--effort", "quick", "--device", "cpu")
    assert done.exit_code == 0, done.output
    page = (home / "out" / "index.html").read_text()
    assert "<script>alert" not in page
    assert "alert(1)</script>" not in page, "a name inside of a script does not end it"
    assert "&lt;script&gt;alert" in page


TEXT = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(24, 3))
"""


@pytest.fixture
def text_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module that reads four tokens, and one captured client."""
    (tmp_path / "reader.py").write_text(TEXT)
    (tmp_path / "words.txt").write_text("-\na\n[bold]b\nc\nd\ne\nf\ng\nh\n")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(TEXT, namespace)
    model: nn.Module = namespace["network"]()  # type: ignore[operator]
    x, y = torch.tensor([[2, 5, 7, 0], [5, 3, 0, 0]]), torch.tensor([0, 1])
    with record(model, tmp_path / "captures", client="ward", secret=tmp_path / "s.safetensors") as rec:
        rec.seal(x, y)
        nn.functional.cross_entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    yield tmp_path
    sys.modules.pop("reader", None)


def test_tokens_of_text_are_named_and_shown_as_words(text_home: Path) -> None:
    command = ("attack", "captures", "--model", "reader:network", "--shape", "4", "--device", "cpu")
    done = call(*command, "--words", "words.txt", "--out", "out")
    assert done.exit_code == 0, done.output
    assert "text: [bold]b" in done.output, "as they are, without being taken for markup"
    done = call(*command, "--secret", "s.safetensors", "--out", "scored")
    assert "100 % of the different tokens of 1 client were named" in " ".join(done.output.split())
    assert "text: 2" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [("reader.py", "expected 9 lines, one per token id, got 7"), ("none.txt", "none.txt: file: expected a file")],
)
def test_words_that_do_not_fit_are_refused(text_home: Path, words: str, said: str) -> None:
    done = call("attack", "captures", "--model", "reader:network", "--shape", "4", "--words", words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_the_doctor_counts_the_rows_that_moved(text_home: Path) -> None:
    done = call("doctor", "captures", "--model", "reader:network", "--shape", "4")
    assert "embedding: 5 of 9 rows moved" in done.output
    assert "2 × 4 tokens" in done.output
