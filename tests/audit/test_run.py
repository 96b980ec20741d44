"""A run: each trial once, every failure a row, everything that was attacked on disk."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from common.audits import Broken, Grey, perform, tiny
from seepage.attacks import ATTACKS
from seepage.audit import scene as scenes
from seepage.audit.experiment import Experiment
from seepage.audit.run import run
from seepage.audit.scene import captured, set_scene
from seepage.audit.summary import read_rows
from seepage.audit.table import COLUMNS, Table
from seepage.audit.values import SpecError
from seepage.capture import read_capture, read_secret
from seepage.data import DataMissing, load
from seepage.defences import DpSgd
from seepage.engine import bookmarks
from seepage.engine.minimise import Status, minimise
from seepage.engine.progress import watching
from seepage.local import Answer, answer
from seepage.metrics.pixels import psnr
from seepage.recipe import Recipe
from seepage.spec import Examples
from seepage.task import ModuleError, Params, Task, TooFewOutputs

CPU = torch.device("cpu")
PROMISED = ["trial", "attack", "defence", "threat", "client", "item", "metric", "value", "seed", "outcome"]


@pytest.fixture(autouse=True)
def own_attacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ATTACKS, "grey", Grey)
    monkeypatch.setitem(ATTACKS, "broken", Broken)
    monkeypatch.setattr(Broken, "broken", True)
    for kind in (Grey.seen, Broken.calls):
        kind.clear()
    yield
    for kind in (Grey.seen, Broken.calls):
        kind.clear()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An own folder to be in; modules that are imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    scenes._dataset.cache_clear()


class Heard(list[tuple[int, int, str]]):
    """What a listener heard of trials, and the notes before them."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, number: int, count: int, trial: Any, event: str) -> None:
        if event.startswith("note: "):
            assert not self, "a note after work has begun"
            self.notes.append(event)
        else:
            self.append((number, count, event))


def values(table: pd.DataFrame, metric: str) -> list[float]:
    return table.loc[table["metric"] == metric, "value"].tolist()


def test_every_row_has_what_was_promised_and_a_known_outcome(tmp_path: Path) -> None:
    experiment = tiny(accuracy=True, federation={"rounds": 2}, seed=11)
    rows = perform(experiment, tmp_path).read()
    assert set(PROMISED) <= set(rows)
    assert list(rows) == COLUMNS.names
    assert not rows[[c for c in PROMISED if c != "value"]].isna().any(axis=None)
    assert set(rows["seed"]) == {11}
    attack, learning = rows[rows["attack"] != "none"], rows[rows["attack"] == "none"]
    assert set(attack["client"]) == {"0", "1", "2"}
    assert set(attack["threat"]) == {"honest-server"}
    assert {"psnr", "mse", "ssim", "recovered", "psnr_of_constant", "label_accuracy", "objective"} <= set(
        attack["metric"]
    )
    assert attack["outcome"].isin({status.name.lower().replace("_", " ") for status in Status}).all()
    assert learning[["item", "metric", "outcome", "threat"]].values.tolist() == [
        [str(rounds), "accuracy", "measured", "none"] for rounds in range(3)
    ]
    assert learning["value"].between(0, 1).all()


def test_finished_trials_are_skipped(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], defence=["none", "clip"])
    first, second = Heard(), Heard()
    before = perform(experiment, tmp_path, listener=first).read()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
    after = perform(experiment, tmp_path, listener=second).read()
    assert [event for *_, event in first] == ["start", "answered", "start", "answered"]
    assert second == [(0, 2, "skip"), (1, 2, "skip")]
    assert len(Grey.seen) == 2
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
    assert_frame_equal(before, after)


def test_a_changed_value_runs_again_and_keeps_what_was_there(tmp_path: Path) -> None:
    perform(tiny(attack=[{"name": "grey", "level": 0.0}]), tmp_path)
    changed = tiny(attack=[{"name": "grey", "level": 0.5}])
    perform(changed, tmp_path)
    assert len(Grey.seen) == len(Table(tmp_path).finished()) == 2
    assert read_rows(tmp_path)[1]["trial"].unique().tolist() == [t.digest for t in changed.trials()]


def test_a_hidden_fact_makes_an_attack_not_applicable_once_and_for_all(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], threat=[{"name": "blind", "facts": []}, "honest-server"])
    rows = perform(experiment, tmp_path).read([t.digest for t in experiment.trials()])
    blind, seeing = rows[rows["threat"] == "blind"], rows[rows["threat"] == "honest-server"]
    assert blind["outcome"].tolist() == [
        "not applicable: the threat model 'blind' does not grant 'count'; it grants []"
    ]
    assert blind["metric"].tolist() == ["none"]
    assert blind["value"].isna().all()
    assert len(values(seeing, "psnr")) == 3
    again = Heard()
    perform(experiment, tmp_path, listener=again)
    assert [event for *_, event in again] == ["skip", "skip"]


def test_an_attack_that_raises_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    experiment = tiny(attack=["broken", "grey"])
    heard = Heard()
    rows = perform(experiment, tmp_path, listener=heard).read([t.digest for t in experiment.trials()])
    broken, grey = rows[rows["attack"] == "broken"], rows[rows["attack"] == "grey"]
    assert broken["outcome"].tolist() == ["error: RuntimeError: a bug in the attack"]
    assert broken["metric"].tolist() == ["none"]
    assert broken["value"].isna().all()
    assert len(values(grey, "psnr")) == 3
    assert [event for *_, event in heard] == ["start", "error: RuntimeError: a bug in the attack", "start", "answered"]


def test_an_error_is_tried_again_on_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(attack=["broken", "grey"])
    perform(experiment, tmp_path)
    perform(experiment, tmp_path)
    assert (len(Broken.calls), len(Grey.seen)) == (2, 1)
    monkeypatch.setattr(Broken, "broken", False)
    mended = Heard()
    rows = perform(experiment, tmp_path, listener=mended).read()
    assert [event for *_, event in mended] == ["start", "answered", "skip"]
    assert not rows["outcome"].str.startswith("error").any()
    perform(experiment, tmp_path)
    assert (len(Broken.calls), len(Grey.seen)) == (3, 1)


def test_memory_that_ran_out_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Broken, view: Any, rng: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Broken, "__call__", full)
    rows = perform(tiny(attack=["broken"]), tmp_path).read()
    assert rows["outcome"].tolist() == ["error: out of memory: no room"]


def test_two_runs_of_one_seed_give_the_same_table_and_another_seed_another(tmp_path: Path) -> None:
    def rows(name: str, seed: int) -> pd.DataFrame:
        experiment = tiny(seed=seed, accuracy=True, clients={"count": 3, "examples": 2, "partition": "iid"})
        return perform(experiment, tmp_path / name).read([t.digest for t in experiment.trials()])

    assert_frame_equal(rows("a", 0), rows("b", 0), check_exact=True)
    assert values(rows("a", 0), "psnr") != values(rows("a", 1), "psnr")


def test_the_folder_of_rows_is_one_table_for_pandas(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey", "broken"], accuracy=True)
    table = perform(experiment, tmp_path)
    assert len(list((tmp_path / "rows").iterdir())) == 3
    order = ["trial", "client", "metric", "item"]
    whole = pd.read_parquet(tmp_path / "rows").sort_values(order, ignore_index=True)
    assert_frame_equal(whole, table.read().sort_values(order, ignore_index=True))


def test_what_was_attacked_is_on_disk_with_the_secrets_behind_it(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], recipe={"sends": "weights"}, clients={"count": 3, "examples": 2})
    (trial,) = experiment.trials()
    perform(experiment, tmp_path)
    home = tmp_path / "captures" / trial.scene
    captures = read_capture(home / "capture")
    secrets = [read_secret(path) for path in sorted((home / "secrets").iterdir())]
    (view,) = Grey.seen
    assert view.clients == tuple(c.client for c in captures) == tuple(s.client for s in secrets) == ("0", "1", "2")
    for i, capture in enumerate(captures):
        (exchange,) = capture.exchanges
        assert (exchange.kind, exchange.examples) == ("weights", 2)
        torch.testing.assert_close({n: p[i] for n, p in view.params.items()}, exchange.before, rtol=0, atol=0)
        torch.testing.assert_close({n: p[i] for n, p in view.update.items()}, exchange.update, rtol=0, atol=0)
    held = load("fashion-mnist", split="train")
    for i, secret in enumerate(secrets):
        torch.testing.assert_close(secret.examples.x, held.x[2 * i : 2 * i + 2], rtol=0, atol=0)
        assert secret.examples.y.equal(held.y[2 * i : 2 * i + 2])


def test_what_is_on_disk_is_what_a_new_play_would_give(tmp_path: Path) -> None:
    experiment = tiny(
        attack=["grey"], defence=["gaussian-noise"], federation={"rounds": 3, "per_round": 2}, watch={"round": 2}
    )
    (trial,) = experiment.trials()
    perform(experiment, tmp_path)
    scene = set_scene(trial, CPU, None)
    *_, last = scene.rounds()
    read = captured(scene, tmp_path / "captures")
    assert [c.client for c, _ in read] == [c.client for c in last.captures] == [str(i) for i in last.sampled]
    for (capture, secret), new, known in zip(read, last.captures, last.secrets, strict=True):
        torch.testing.assert_close(capture.exchanges[0].answer, new.exchanges[0].answer, rtol=0, atol=0)
        torch.testing.assert_close(secret.examples.x, known.examples.x, rtol=0, atol=0)


def test_of_several_watched_rounds_the_attacker_sees_what_each_client_answered_in_them(tmp_path: Path) -> None:
    experiment = tiny(
        attack=["grey"], federation={"rounds": 5, "per_round": 2}, watch={"round": 3, "since": 1, "together": 3}
    )
    rows = perform(experiment, tmp_path).read()
    (trial,) = experiment.trials()
    _, *watched, _ = set_scene(trial, CPU, None).rounds()
    answered = {str(i): [r.number for r in watched if i in r.sampled] for i in watched[-1].sampled}
    assert len(set(map(tuple, answered.values()))) > 1  # clients that do not stack
    assert set(rows["client"]) == set(answered)
    assert {client: [seen.round for seen in view.rounds] for view in Grey.seen for client in view.clients} == answered
    for view in Grey.seen:
        for seen in view.rounds:
            (played,) = [r for r in watched if r.number == seen.round]
            (exchange,) = next(c for c in played.captures if c.client == view.clients[0]).exchanges
            torch.testing.assert_close({n: u[0] for n, u in seen.update.items()}, exchange.update, rtol=0, atol=0)
            torch.testing.assert_close({n: p[0] for n, p in seen.params.items()}, exchange.before, rtol=0, atol=0)


def test_attacks_on_one_federation_share_one_play_and_defences_do_not(tmp_path: Path) -> None:
    experiment = tiny(
        attack=["grey", "broken"], threat=["honest-server", "eavesdropper"], defence=["none", "clip"], accuracy=True
    )
    perform(experiment, tmp_path)
    assert len(list((tmp_path / "captures").iterdir())) == 2


def test_only_those_who_are_watched_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def counted(task: Task, params: Params, examples: Examples, *rest: Any, **options: Any) -> Answer:
        trained.append(int(examples.y[0]))
        return answer(task, params, examples, *rest, **options)

    monkeypatch.setattr("seepage.rounds.answer", counted)
    experiment = tiny(attack=["grey", "broken"], clients={"count": 5, "examples": 2}, watch={"together": 5})
    run(experiment, tmp_path, device=CPU, limit=2)
    assert len(trained) == 2
    run(experiment, tmp_path, device=CPU)
    assert len(trained) == 2 + 5
    run(experiment, tmp_path, device=CPU, limit=3)
    assert len(trained) == 2 + 5  # three of the five are at hand
    few, all_five, three = (view for view in Grey.seen if view.clients[0] == "0")
    assert [few.clients, three.clients] == [("0", "1"), ("0", "1", "2")]
    for view in (few, three):
        same = {name: update[: len(view.clients)] for name, update in all_five.update.items()}
        torch.testing.assert_close(dict(view.update), same, rtol=0, atol=0)


def test_each_group_of_clients_sees_its_own_and_together_they_see_all(tmp_path: Path) -> None:
    rows = perform(tiny(attack=["grey"], watch={"together": 2}), tmp_path).read()
    assert [view.clients for view in Grey.seen] == [("0", "1"), ("2",)]
    assert sorted(rows.loc[rows["metric"] == "psnr", "client"]) == ["0", "1", "2"]


def test_clients_dealt_to_more_trials_are_gone_on_with(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], clients={"count": 5, "examples": 2}, watch={"together": 5})
    run(experiment, tmp_path, device=CPU, limit=2)
    run(experiment.dealt(2), tmp_path, device=CPU)
    assert [view.clients for view in Grey.seen] == [("0", "1"), ("2", "3"), ("4",)]
    rows = Table(tmp_path).read([trial.digest for trial in experiment.dealt(2).trials()])
    assert sorted(set(rows["client"])) == ["0", "1", "2", "3", "4"]


def test_a_limit_attacks_the_first_clients(tmp_path: Path) -> None:
    rows = perform(tiny(attack=["grey"]), tmp_path, limit=2).read()
    assert set(rows["client"]) == {"0", "1"}


def test_clients_of_different_sizes_are_attacked_in_one_run(tmp_path: Path) -> None:
    experiment = tiny(
        data={"split": "test"},
        clients={"count": 6, "partition": "dirichlet", "alpha": 0.3},
        attack=["grey", {"name": "inverting-gradients", "steps": 1}],
    )
    rows = perform(experiment, tmp_path).read([t.digest for t in experiment.trials()])
    for _, part in rows.groupby("attack"):
        sizes = part[part["metric"] == "psnr"].groupby("client").size()
        assert len(sizes) == 6
        assert sizes.nunique() > 1
        assert sizes.sum() == 200
    assert not rows["outcome"].str.startswith("error").any()
    assert {view.count for view in Grey.seen} == set(sizes)


WRITERS = """
import torch
from seepage.data import Dataset
from seepage.spec import DataSpec, Examples

def table():
    def half(n):
        return Examples(torch.arange(4.0 * n).reshape(n, 4) / (4 * n), torch.arange(n) % 2)
    owner = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3])
    return Dataset('mine', DataSpec((4,), classes=2), half(11), half(4), owner, ('a', 'b'), 'mine', 'here')
"""


def of_writers(**changed: Any) -> Experiment:
    clients = {"count": 4, "examples": 3, "partition": "owner", "fewer": True}
    return tiny(**{"data": {"name": "writers:table"}, "clients": clients, "attack": ["grey"], **changed})


def test_owners_with_fewer_examples_are_attacked_beside_the_others_and_alike_in_any_company(here: Path) -> None:
    (here / "writers.py").write_text(WRITERS)
    attack = {"name": "fedavg-leakage", "steps": 3, "lr": 0.05}
    recipe = {"epochs": 2, "batch_size": 2}
    alike = {"recipe": recipe, "attack": [attack, "grey"], "threat": ["label-aware-server"]}
    rows = perform(of_writers(**alike), here / "together").read()
    assert not rows["outcome"].str.startswith(("error", "not")).any()
    found = rows[(rows["metric"] == "mae") & (rows["attack"] == "fedavg-leakage")]
    assert found.groupby("client").size().to_dict() == {"0": 1, "1": 2, "2": 3, "3": 3}
    assert [(view.clients, view.count) for view in Grey.seen] == [(("0",), 1), (("1",), 2), (("2", "3"), 3)]
    alone = perform(of_writers(**alike, watch={"together": 1}), here / "alone").read()
    kept = ["attack", "client", "item", "metric", "value"]
    one, other = (part[kept].sort_values(kept[:-1]).reset_index(drop=True) for part in (rows, alone))
    pd.testing.assert_frame_equal(one, other, rtol=1e-4)


def test_without_leave_owners_with_fewer_examples_are_passed_over(here: Path) -> None:
    (here / "writers.py").write_text(WRITERS)
    clients = {"count": 4, "examples": 3, "partition": "owner"}
    with pytest.raises(SpecError, match="clients: expected 4 owners with at least 3 examples, got 2 of 4"):
        perform(of_writers(clients=clients), here / "out")


def test_a_size_that_an_attack_has_nothing_to_say_about_leaves_the_others_measured(here: Path) -> None:
    (here / "writers.py").write_text(WRITERS)
    # A linear model: no unit sees some examples of a batch and not others, while a single example is read off.
    experiment = of_writers(model={"name": "linear"}, attack=["analytic"], recipe={"sends": "gradient"})
    table = perform(experiment, here / "out")
    rows = table.read()
    assert set(rows.loc[rows["metric"] == "mae", "client"]) == {"0"}
    refused = rows.loc[rows["metric"] == "none", "outcome"]
    assert len(refused) == 2  # two examples, and three
    assert refused.str.startswith("not applicable: expected single examples").all()
    events: list[str] = []
    perform(experiment, here / "out", listener=lambda *event: events.append(event[-1]))
    assert events[-1] == "skip"


def test_of_an_aggregate_the_attacker_sees_one_message_with_the_data_of_all(tmp_path: Path) -> None:
    experiment = tiny(
        federation={"visible": "aggregate"},
        clients={"count": 3, "examples": 2},
        attack=["grey", {"name": "inverting-gradients", "steps": 2}],
    )
    rows = perform(experiment, tmp_path).read()
    (view,) = Grey.seen
    assert (view.clients, view.count) == (("0+1+2",), 6)
    assert set(rows["client"]) == {"0+1+2"}
    for _, part in rows[rows["metric"] == "psnr"].groupby("attack"):
        assert sorted(part["item"], key=int) == [str(i) for i in range(6)]
    (trial, _) = experiment.trials()
    each = set_scene(replace(trial, federation=replace(trial.federation, visible="each")), CPU, None)
    (alone,) = each.rounds()
    mean = {
        name: torch.stack([c.exchanges[0].answer[name] for c in alone.captures]).mean(0) for name in view.task.params
    }
    torch.testing.assert_close({name: update[0] for name, update in view.update.items()}, mean)


def test_pictures_of_truth_and_guess_are_kept_with_their_likeness(tmp_path: Path) -> None:
    experiment = tiny(clients={"count": 2, "examples": 2})
    (trial,) = experiment.trials()
    table = perform(experiment, tmp_path)
    pictures = table.pictures(trial.digest)
    assert pictures is not None
    assert (pictures.client, pictures.item) == (["0", "0", "1", "1"], ["0", "1", "0", "1"])
    assert pictures.truth.shape == pictures.guess.shape == (4, 28, 28, 1)
    assert pictures.truth.dtype == pictures.guess.dtype == np.uint8
    held = load("fashion-mnist").normalised_by().train.x[:4]
    np.testing.assert_array_equal(pictures.truth, (255 * held).round().byte().movedim(1, -1).numpy())
    rows = table.read()
    np.testing.assert_array_equal(pictures.psnr, values(rows, "psnr"))
    guess, truth = (torch.from_numpy(p).movedim(-1, 1).double() / 255 for p in (pictures.guess, pictures.truth))
    np.testing.assert_allclose(psnr(guess, truth, 0.0, 1.0).numpy(), pictures.psnr, atol=0.1)


def test_the_note_of_a_trial_keeps_its_values_and_its_seconds(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], defence=[{"chain": ["clip", "top-k"]}])
    (trial,) = experiment.trials()
    note = perform(experiment, tmp_path).note(trial.digest)
    assert note["seconds"] > note["attack_seconds"] > 0
    assert note["device"] == "cpu"
    assert note["trial"]["attack"] == {"kind": "Grey", "level": 0.0}
    assert [part["kind"] for part in note["trial"]["defence"]["parts"]] == ["Clip", "TopK"]


def test_a_chain_is_named_by_its_parts(tmp_path: Path) -> None:
    defence = [{"chain": [{"name": "clip", "norm": 0.5}, {"name": "gaussian-noise", "std": 0.25}]}]
    rows = perform(tiny(attack=["grey"], defence=defence), tmp_path).read()
    assert set(rows["defence"]) == {"clip+gaussian-noise"}
    assert set(rows["defence_settings"]) == {"norm=0.5; std=0.25"}


def test_public_data_are_held_out_ones_and_only_for_who_is_granted_them(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], data={"public": 10}, threat=["informed-server", "honest-server"])
    rows = perform(experiment, tmp_path).read()
    informed, honest = Grey.seen
    torch.testing.assert_close(informed.public.x, load("fashion-mnist", split="test").x[-10:], rtol=0, atol=0)
    with pytest.raises(PermissionError):
        _ = honest.public
    known = rows.groupby("threat")["metric"].agg(set)
    assert "psnr_of_public_mean" in known["informed-server"] - known["honest-server"]


def test_the_index_says_which_trials_belong_to_the_experiment(tmp_path: Path) -> None:
    expect = [{"case": "all", "metric": "psnr", "reported": 20.0}]
    experiment = tiny(attack=["grey"], about="few clients", threshold=15.0, expect=expect)
    perform(experiment, tmp_path)
    index, rows, _ = read_rows(tmp_path)
    assert (index.name, index.about, index.threshold) == ("tiny", "few clients", 15.0)
    assert index.expect == experiment.expect
    assert index.trials == tuple(t.digest for t in experiment.trials())
    assert len(rows)


def test_leftovers_of_a_killed_run_are_no_results(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"])
    (trial,) = experiment.trials()
    for name in ("rows", "pictures", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f".{trial.digest}.parquet.123").write_bytes(b"PAR1 half")
    (tmp_path / "captures" / ".half" / "scene" / "capture").mkdir(parents=True)
    (tmp_path / ".experiment.json.123").write_text('{"name"')
    table = perform(experiment, tmp_path)
    assert len(Grey.seen) == 1
    assert table.finished() == {trial.digest}
    assert_frame_equal(pd.read_parquet(tmp_path / "rows"), table.read())


# --- the user's own code ---------------------------------------------------------------------------------------------


def test_ones_own_model_is_found_in_the_current_folder(here: Path) -> None:
    (here / "ownnet").mkdir()
    (here / "ownnet" / "nets.py").write_text(
        "from torch import nn\n\n\ndef small(width):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Tanh(), nn.Linear(width, 10))\n"
    )
    state, paths = torch.get_rng_state(), list(sys.path)
    experiment = tiny(attack=["grey"], model={"name": "ownnet.nets:small", "options": {"width": 5}})
    rows = perform(experiment, here / "out").read()
    assert set(rows["model"]) == {"ownnet.nets:small"}
    assert Grey.seen[0].params["1.weight"].shape == (3, 5, 784)
    assert state.equal(torch.get_rng_state())
    assert sys.path == paths


def test_ones_own_attack_and_defence_are_named_as_models_are(here: Path) -> None:
    (here / "owncode.py").write_text(
        """
from dataclasses import dataclass
from typing import ClassVar

from seepage import Defence, Fact, Finding


@dataclass(frozen=True)
class Bright:
    name: ClassVar[str] = "bright"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    level: float = 0.5

    def __call__(self, view, rng):
        bias = view.update["linear1.bias"]
        return Finding(bias.new_full((len(bias), 1, *view.task.spec.shape), self.level))


@dataclass(frozen=True)
class Nothing(Defence):
    name: ClassVar[str] = "nothing"
    factor: float = 0.0

    def on_update(self, update, rng):
        return {name: self.factor * u for name, u in update.items()}
"""
    )
    table = tiny(
        attack=[{"name": "owncode:Bright", "level": [0.1, 0.2]}], defence=["owncode:Nothing"], model={"name": "mlp"}
    )
    rows = perform(table, here / "out").read()
    assert set(rows["attack"]) == {"bright"}
    assert set(rows["attack_settings"]) == {"level=0.1", "level=0.2"}
    assert set(rows["defence"]) == {"nothing"}
    assert set(rows["outcome"]) == {"answered"}


def test_the_first_weights_of_ones_own_model_depend_on_the_seed_alone(here: Path) -> None:
    (here / "seednet.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )

    def weight(seed: int) -> torch.Tensor:
        (trial,) = tiny(attack=["grey"], model={"name": "seednet:net"}, seed=seed).trials()
        return set_scene(trial, CPU, None).setting.task.params["1.weight"]

    first = weight(0)
    torch.manual_seed(123)
    assert first.equal(weight(0))
    assert not first.equal(weight(1))


def test_ones_own_data_are_dealt_like_any_other(here: Path) -> None:
    (here / "owndata.py").write_text(
        "import torch\n"
        "from seepage.data import Dataset\n"
        "from seepage.spec import DataSpec, Examples\n\n\n"
        "def table():\n"
        "    def half(n):\n"
        "        return Examples(torch.arange(4.0 * n).reshape(n, 4) / (4 * n), torch.arange(n) % 2)\n"
        "    return Dataset('mine', DataSpec((4,), classes=2), half(6), half(4), None, ('a', 'b'), 'mine', 'here')\n"
    )
    experiment = tiny(
        data={"name": "owndata:table"}, accuracy=True, attack=["grey", {"name": "inverting-gradients", "steps": 2}]
    )
    table = perform(experiment, here / "out")
    rows = table.read()
    assert set(rows["data"]) == {"owndata:table"}
    assert {"mae", "exact_match", "cell_accuracy", "accuracy"} <= set(rows["metric"])
    assert all(table.pictures(t.digest) is None for t in experiment.trials())


OWN = "def wrong():\n    return 3\n\n\ndef raises():\n    raise RuntimeError('a bug of the user')\n"
MORE_OF_IT = """
import torch
from seepage import DataSpec, Examples
from seepage.data import Dataset

made = torch.nn.Linear(2, 2)


def sized(width):
    return torch.nn.Linear(width, width)


def bytes_as_floats():
    spec = DataSpec((1, 2, 2), classes=2, mean=(0.5,), std=(0.25,))
    half = Examples(spec.normalise(torch.arange(16.0).reshape(4, 1, 2, 2) * 17), torch.arange(4) % 2)
    return Dataset("mine", spec, half, half)
"""


@pytest.mark.parametrize(
    ("section", "name", "message"),
    [
        ("model", "own_code:wrong", "model.name: expected own_code:wrong to return an nn.Module, got int"),
        ("data", "own_code:wrong", "data.name: expected own_code:wrong to return a seepage.data.Dataset, got int"),
        ("model", "own_code:absent", "model.name: expected `package.module:function`, got 'own_code:absent'"),
        ("data", "own_code:", "data.name: expected `package.module:function`, got 'own_code:'"),
        ("model", "no_such_module:net", "No module named 'no_such_module'"),
        ("model", ":net", "model.name: expected `package.module:function`, got ':net'"),
    ],
)
def test_ones_own_code_that_does_not_fit_stops_the_run_with_a_sentence(
    section: str, name: str, message: str, here: Path
) -> None:
    (here / "own_code.py").write_text(OWN)
    with pytest.raises(SpecError) as failed:
        perform(tiny(attack=["grey"], **{section: {"name": name}}), here / "out")
    assert message in str(failed.value)


@pytest.mark.parametrize(
    ("section", "entry", "message"),
    [
        ("model", {"name": "own_code:raises"}, "model.name: own_code:raises raised RuntimeError: a bug of the user"),
        ("data", {"name": "own_code:raises"}, "a bug of the user (own_code.py, line 6)"),
        ("data", {"name": "own_code:sized"}, "data.name: expected own_code:sized to take what it is given"),
        ("model", {"name": "own_code:sized"}, "missing a required argument: 'width'; give its arguments as options"),
        ("model", {"name": "own_code:sized", "options": {"widht": 3}}, "model.name: expected own_code:sized to take"),
        ("model", {"name": "own_code:made"}, "got a Linear that is made already; name what makes it"),
        ("model", {"name": "own_code.py:made"}, "which names a file; write 'own_code:made'"),
        ("model", {"name": "own_code:raisse"}, "did you mean 'raises'?"),
        ("model", {"name": "elsewhere:net"}, "run from the folder where elsewhere.py lies"),
        ("model", {"name": "needs_more:net"}, "which needs what is not installed: No module named 'not_installed'"),
        ("model", {"name": "half_written:net"}, "to import it raised NameError: name 'oops' is not defined"),
        ("data", {"name": "own_code:bytes_as_floats"}, "spec.low to spec.high, 0 to 1, got 0 to 255; divide"),
    ],
)  # fmt: skip
def test_a_bug_in_what_everything_rests_on_stops_the_run_with_its_line(
    section: str, entry: dict[str, Any], message: str, here: Path
) -> None:
    (here / "own_code.py").write_text(OWN + MORE_OF_IT)
    (here / "needs_more.py").write_text("import not_installed\n")
    (here / "half_written.py").write_text("oops\n")
    with pytest.raises(SpecError) as failed:
        perform(tiny(attack=["grey"], **{section: entry}), here / "out")
    assert message in str(failed.value)


# --- what stops a run ------------------------------------------------------------------------------------------------


STOPS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nothing to do": ({"attack": []}, SpecError, r"tiny: expected at least one \[\[attack\]\], or accuracy = true"),
    "more examples than there are": (
        {"clients": {"count": 500, "examples": 2}},
        SpecError,
        "clients: expected at most 800 examples in all, got 500 clients with 2 each",
    ),
    "more clients than examples": ({"clients": {"count": 801}}, SpecError, "clients: expected at most 800 examples"),
    "too many of a random partition": (
        {"clients": {"count": 500, "examples": 2, "partition": "iid"}},
        SpecError,
        "clients: expected at least 500 × 2",
    ),
    "no owners": ({"clients": {"count": 2, "partition": "owner"}}, SpecError, "clients: expected an owner per example"),
    "more public examples than held out": (
        {"data": {"public": 200}},
        SpecError,
        "data.public: expected less than the 200 held-out examples, got 200",
    ),
    "wrong option of a model": (
        {"model": {"name": "mlp", "options": {"hidden": 8}}},
        SpecError,
        "model: expected `hidden` to be a list",
    ),
    "data set that is not there": (
        {"data": {"name": "mnist-full"}},
        DataMissing,
        "mnist-full.*looked in .*--data DIR.*SEEPAGE_DATA",
    ),
}


@pytest.mark.parametrize("what", STOPS)
def test_a_specification_that_cannot_be_carried_out_stops_the_run(what: str, tmp_path: Path) -> None:
    changed, kind, message = STOPS[what]
    with pytest.raises(kind, match=message):
        perform(tiny(**changed), tmp_path / "out", data=tmp_path / "data")
    assert not (tmp_path / "out" / "rows").exists()


def test_a_module_that_does_not_fit_the_data_stops_the_run(here: Path) -> None:
    (here / "misfit.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(3, 10)\n")
    with pytest.raises(ModuleError):
        perform(tiny(attack=["grey"], model={"name": "misfit:net"}), here / "out")


def test_a_network_without_an_output_for_each_class_stops_the_run(here: Path) -> None:
    (here / "narrow.py").write_text(
        "from torch import nn\n\n\ndef net(classes=5):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
    )
    said = r"model\.options: expected at least 10 outputs .*, got 5; give its last layer 10 .*arguments of narrow:net"
    narrow, wide = ({"name": "narrow:net", "options": {"classes": count}} for count in (5, 10))
    with pytest.raises(TooFewOutputs, match=rf"^{tiny().where}: {said}"):
        perform(tiny(attack=["grey"], model=narrow), here / "out")
    both = tiny(attack=["grey"], case=[{"name": "good", "model": wide}, {"name": "bad", "model": narrow}])
    with pytest.raises(TooFewOutputs, match=rf": case\[1\]\.{said}"):
        perform(both, here / "out")
    assert not (here / "out" / "rows").exists()


def test_what_was_finished_before_a_stop_is_kept(tmp_path: Path) -> None:
    experiment = tiny(
        attack=["grey"], case=[{"name": "good"}, {"name": "bad", "clients": {"count": 500, "examples": 2}}]
    )
    with pytest.raises(SpecError, match="500 clients"):
        perform(experiment, tmp_path)
    assert set(read_rows(tmp_path)[1]["case"]) == {"good"}


def test_an_interrupt_leaves_finished_trials_and_no_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Broken, view: Any, rng: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Broken, "__call__", interrupted)
    experiment = tiny(attack=["grey", "broken"])
    with pytest.raises(KeyboardInterrupt):
        perform(experiment, tmp_path)
    assert Table(tmp_path).finished() == {next(experiment.trials()).digest}
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith(".")]


# --- the table -------------------------------------------------------------------------------------------------------


def test_rows_are_read_in_the_order_of_the_trials_and_not_of_finishing(tmp_path: Path) -> None:
    experiment = tiny(attack=["grey"], defence=["none", "clip", "top-k"])
    trials = list(experiment.trials())
    for part in reversed(experiment.cases[0].defences):
        one = replace(experiment, cases=(replace(experiment.cases[0], defences=(part,)),))
        perform(one, tmp_path)
    run(experiment, tmp_path, device=CPU)
    assert read_rows(tmp_path)[1]["trial"].unique().tolist() == [t.digest for t in trials]


def test_a_trial_whose_rows_were_removed_runs_again(tmp_path: Path) -> None:
    experiment: Experiment = tiny(attack=["grey"])
    table = perform(experiment, tmp_path)
    (tmp_path / "rows" / f"{next(experiment.trials()).digest}.parquet").unlink()
    assert table.finished() == set()
    perform(experiment, tmp_path)
    assert len(Grey.seen) == 2


def test_an_empty_folder_is_an_empty_table(tmp_path: Path) -> None:
    rows = Table(tmp_path).read()
    assert list(rows) == COLUMNS.names
    assert rows.empty
    assert Table(tmp_path).pictures("none") is None
    assert Table(tmp_path).note("none") == {}


def test_a_trial_whose_rows_cannot_be_written_is_not_finished(tmp_path: Path) -> None:
    table = Table(tmp_path)
    with pytest.raises((TypeError, ValueError)):
        table.write("abc", [{"value": "a word"}], None, {})
    assert table.finished() == set()
    assert list((tmp_path / "rows").iterdir() if (tmp_path / "rows").exists() else []) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a folder of results, got a folder without experiment.json; check the path, or make one with"),
        ("{", "expected what `seepage audit` writes"),
        ("[]", "expected what `seepage audit` writes"),
        (json.dumps({"name": "a"}), "expected what `seepage audit` writes"),
    ],
    ids=["absent", "broken", "list", "incomplete"],
)
def test_a_folder_that_is_none_of_results_fails_with_its_path(
    content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "experiment.json").write_text(content)
    with pytest.raises(SpecError, match=message) as failed:
        read_rows(tmp_path)
    assert str(tmp_path) in str(failed.value)


def test_a_part_of_a_folder_of_results_names_the_folder(tmp_path: Path) -> None:
    perform(tiny(attack=["grey"]), tmp_path / "out")
    (tmp_path / "out" / "index.html").touch()
    for part, what in (("index.html", "a file"), ("rows", "a folder without experiment.json")):
        with pytest.raises(SpecError) as failed:
            read_rows(tmp_path / "out" / part)
        assert f"expected a folder of results, got {what}; name {tmp_path / 'out'}" in str(failed.value)


def test_layers_that_are_not_plainly_fine_are_named_before_any_work(tmp_path: Path) -> None:
    heard = Heard()
    run(tiny(model={"name": "convnet", "options": {"width": 2}}), tmp_path, device=torch.device("cpu"), listener=heard)
    assert any("BatchNorm2d" in note and note.startswith("note: convnet: ") for note in heard.notes)


def test_a_metric_without_its_weights_is_said_to_be_left_out(tmp_path: Path) -> None:
    heard = Heard()
    run(tiny(), tmp_path / "out", device=torch.device("cpu"), data=tmp_path, listener=heard)
    assert any("LPIPS is left out" in note and "seepage fetch lpips" in note for note in heard.notes)


def test_a_metric_of_images_is_not_missed_where_there_are_none(tmp_path: Path) -> None:
    heard, data = Heard(), {"name": "sentences"}
    text = tiny(attack=["token-bag"], data=data, model={"name": "text-bag"})
    run(text, tmp_path / "out", device=torch.device("cpu"), data=tmp_path, listener=heard)
    assert not any("LPIPS" in note for note in heard.notes)


LABELS = {"label_accuracy", "label_count_error", "label_count", "label_accuracy_of_even"}


def metrics(table: pd.DataFrame, attack: str) -> set[str]:
    return set(table.loc[table["attack"] == attack, "metric"])


def test_an_attack_on_labels_alone_leaves_rows_about_labels_alone(tmp_path: Path) -> None:
    experiment = tiny(
        attack=["count-labels", {"name": "inverting-gradients", "steps": 2}],
        recipe={"sends": "gradient"},
        metrics=["zhao2023"],
    )
    table = perform(experiment, tmp_path)
    rows = table.read()
    assert metrics(rows, "count-labels") == {*LABELS, "label_confidence", "wire_bytes"}
    assert {"psnr", "recovered", "recovered_zhao2023", "psnr_of_constant", *LABELS} <= metrics(
        rows, "inverting-gradients"
    )
    shown = {trial.label: table.pictures(trial.digest) is not None for trial in experiment.trials()}
    assert shown == {"count-labels": False, "inverting-gradients": True}
    of_labels = rows[rows["attack"] == "count-labels"]
    assert set(of_labels["outcome"]) == {"answered"}
    assert set(of_labels["diagnosis"]) == {"recovered"}
    assert values(of_labels, "label_accuracy") == [1.0] * 3


def test_an_attack_on_what_enters_a_layer_leaves_rows_about_that(tmp_path: Path) -> None:
    experiment = tiny(attack=["analytic"], model={"name": "cnn-femnist"}, recipe={"sends": "gradient"})
    table = perform(experiment, tmp_path)
    rows = table.read()
    assert metrics(rows, "analytic") == {*LABELS, "feature_error", "objective", "wire_bytes"}
    assert values(rows, "feature_error") == pytest.approx([0.0] * 3, abs=1e-3)
    assert set(rows["diagnosis"]) == {"recovered"}
    assert not (tmp_path / "pictures").exists()


def test_the_size_of_the_message_is_a_row_and_an_aggregate_has_none(tmp_path: Path) -> None:
    attack = [{"name": "inverting-gradients", "steps": 1}]
    defences = ["none", {"name": "sign"}]
    rows = perform(tiny(attack=attack, defence=defences, recipe={"sends": "gradient"}), tmp_path / "each").read()
    sizes = rows[rows["metric"] == "wire_bytes"].groupby("defence")["value"].unique()
    assert 30 < sizes["none"].item() / sizes["sign"].item() <= 32
    together = tiny(attack=attack, federation={"visible": "aggregate"}, recipe={"sends": "gradient"})
    assert "wire_bytes" not in set(perform(together, tmp_path / "aggregate").read()["metric"])


@pytest.mark.filterwarnings("ignore")
def test_what_a_private_defence_promises_is_a_row(tmp_path: Path) -> None:
    pytest.importorskip("opacus.accountants")
    attack, recipe = [{"name": "inverting-gradients", "steps": 1}], {"sends": "gradient"}
    defences = ["none", {"chain": [{"name": "dp-sgd", "noise": 2.0}, {"name": "top-k"}]}]
    rows = perform(tiny(attack=attack, defence=defences, recipe=recipe), tmp_path).read()
    promised = rows[rows["metric"] == "epsilon"]
    assert promised["value"].unique().tolist() == [
        pytest.approx(DpSgd(1.0, 2.0).promised_epsilon(Recipe(sends="gradient"), 1))
    ]
    assert not promised["defence"].eq("none").any()


def test_a_case_can_be_run_alone_and_the_others_later(tmp_path: Path) -> None:
    experiment = tiny(case=[{"name": "one"}, {"name": "two", "recipe": {"epochs": 2}}])
    first = perform(experiment, tmp_path, cases=["two"]).read()
    assert set(first["case"]) == {"two"}
    heard = Heard()
    both = perform(experiment, tmp_path, listener=heard).read()
    assert set(both["case"]) == {"one", "two"}
    assert [event for _, _, event in heard if event in ("skip", "start")] == ["start", "skip"]
    with pytest.raises(SpecError, match=r"tiny: expected a case of \['one', 'two'\], got 'three'"):
        perform(experiment, tmp_path, cases=["three"])


def test_an_attack_can_be_run_alone_by_its_label_and_the_others_later(tmp_path: Path) -> None:
    short = {"name": "inverting-gradients", "steps": 1}
    experiment = tiny(attack=[{**short, "label": "one"}, {**short, "label": "other", "steps": 2}])
    first = perform(experiment, tmp_path, attacks=["other"]).read()
    assert set(first["attack"]) == {"other"}
    heard = Heard()
    both = perform(experiment, tmp_path, listener=heard).read()
    assert set(both["attack"]) == {"one", "other"}
    assert [event for _, _, event in heard if event in ("skip", "start")] == ["start", "skip"]
    with pytest.raises(SpecError, match=r"tiny: expected an attack of \['one', 'other'\], got 'inverting-gradients'"):
        perform(experiment, tmp_path, attacks=["inverting-gradients"])


def test_no_trial_begins_when_the_time_is_over_and_the_next_run_goes_on(tmp_path: Path) -> None:
    experiment = tiny(case=[{"name": "one"}, {"name": "two", "recipe": {"epochs": 2}}])
    heard = Heard()
    assert perform(experiment, tmp_path, minutes=0, listener=heard).finished() == frozenset()
    assert [event for _, _, event in heard if not event.startswith("note")] == ["late", "late"]
    assert set(perform(experiment, tmp_path, minutes=60).read()["case"]) == {"one", "two"}


def test_attacks_that_differ_in_what_they_make_of_a_search_search_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"name": "rog", "steps": 3}
    equalised = shared | {"label": "equalised", "equalise": True}
    longer = shared | {"label": "longer", "steps": 4}
    searched: list[int] = []

    def counted(*args: Any, steps: int, **named: Any) -> Any:
        searched.append(steps)
        return minimise(*args, steps=steps, **named)

    monkeypatch.setattr("seepage.attacks.rog.minimise", counted)
    together = run(tiny(attack=[shared, equalised, longer]), tmp_path / "together", device=CPU)
    assert sorted(searched) == [3, 4]
    alone = run(tiny(attack=[equalised]), tmp_path / "alone", device=CPU)
    expected = alone.read()
    assert_frame_equal(together.read(expected["trial"].unique()), expected)
    trial = expected["trial"].iloc[0]
    assert (together.pictures(trial).footage.way == alone.pictures(trial).footage.way).all()


def test_a_search_that_was_killed_goes_on_in_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmarks, "EVERY", 0.0)
    long = tiny(attack=[{"name": "inverting-gradients", "steps": 60}])
    perform(long, tmp_path / "whole")
    looks: list[int] = []

    def interrupt(step: int, steps: int, value: float) -> None:
        looks.append(step)
        if step == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watching(interrupt):
        perform(long, tmp_path / "killed")
    assert list((tmp_path / "killed" / "halfway").glob("*/*.safetensors"))
    with watching(lambda step, steps, value: looks.append(step)):
        perform(long, tmp_path / "killed")
    assert looks == [20, 40, 60]  # not from the beginning
    assert not (tmp_path / "killed" / "halfway").exists()
    assert_frame_equal(read_rows(tmp_path / "killed")[1], read_rows(tmp_path / "whole")[1])


def test_a_training_that_was_killed_goes_on_with_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookmarks, "EVERY", 0.0)
    long = tiny(accuracy=True, federation={"rounds": 4, "per_round": 1}, attack=[])
    perform(long, tmp_path / "whole")
    trained: list[int] = []
    most = 3

    def counted(*args: Any, **named: Any) -> Any:
        if len(trained) == most:
            raise KeyboardInterrupt
        trained.append(1)
        return answer(*args, **named)

    monkeypatch.setattr("seepage.rounds.answer", counted)
    with pytest.raises(KeyboardInterrupt):
        perform(long, tmp_path / "killed")
    assert list((tmp_path / "killed" / "halfway").glob("*/*.safetensors"))
    most = 100
    perform(long, tmp_path / "killed")
    assert len(trained) == 4  # three, then the one that was left
    assert not (tmp_path / "killed" / "halfway").exists()
    assert_frame_equal(read_rows(tmp_path / "killed")[1], read_rows(tmp_path / "whole")[1])
