"""The command line: what it prints where, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from click.testing import Result
from pandas.testing import assert_frame_equal
from typer.testing import CliRunner

from common.audits import TINY, Broken, Grey
from seepage import cli, commands
from seepage.attacks import ATTACKS
from seepage.audit.summary import read_rows
from seepage.data import DATASETS
from seepage.defences import DEFENCES
from seepage.home import version
from seepage.metrics import METRICS
from seepage.models import MODELS
from seepage.report.origin import recall
from seepage.threat import THREATS

GREY = TINY.replace('"inverting-gradients"\nsteps = 5', '"grey"')
SOURCE = Path(__file__).parents[1] / "src"


def seepage(*arguments: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@dataclass(frozen=True)
class Ended:
    """How the real command ended."""

    code: int
    stdout: str
    stderr: str


def processes(*commands: list[object], cwd: Path) -> list[Ended]:
    """The real command, several at once: most of its time is the import of torch."""
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "seepage", *map(str, command)],
            env=variables,
            cwd=cwd,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for command in commands
    ]
    said = [process.communicate(timeout=600) for process in started]
    return [Ended(process.returncode, *streams) for process, streams in zip(started, said, strict=True)]


def strictly(text: str) -> Any:
    """JSON as the standard has it: one value, without NaN or Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def own_attacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ATTACKS, "grey", Grey)
    monkeypatch.setitem(ATTACKS, "broken", Broken)
    yield
    Grey.seen.clear()
    Broken.calls.clear()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write(tmp_path / "spec.toml", GREY)


@pytest.fixture
def results(spec: Path, tmp_path: Path) -> Path:
    """A finished audit."""
    assert seepage("audit", spec, "--out", tmp_path / "out").exit_code == 0
    return tmp_path / "out"


# --- the door --------------------------------------------------------------------------------------------------------


def test_help_shows_the_first_command_to_try() -> None:
    for arguments in ([], ["--help"]):
        text = seepage(*arguments).output
        assert "seepage audit" in text
        for command in ("audit", "reproduce", "report", "gate", "list", "fetch"):
            assert command in text


def test_help_says_of_each_command_what_the_command_says() -> None:
    real = typer.main.get_group(commands.app).commands
    assert {name: (command.help or "").splitlines()[0] for name, command in real.items()} == cli.COMMANDS


def test_the_first_page_names_every_command() -> None:
    page = (SOURCE.parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in cli.COMMANDS if f"| `seepage {name}" not in page] == []


def test_help_and_the_version_do_not_wait_for_torch(tmp_path: Path) -> None:
    program = """
import sys
from seepage.cli import app
try:
    app(sys.argv[1:])
except SystemExit:
    assert not {"torch", "pandas", "scipy"} & set(sys.modules), "imported"
"""
    for option in ("--help", "--version"):
        variables = {**os.environ, "PYTHONPATH": str(SOURCE)}
        subprocess.run([sys.executable, "-c", program, option], env=variables, check=True, stdout=subprocess.DEVNULL)


def test_a_command_that_is_not_there_is_answered_with_one_that_is() -> None:
    result = seepage("adit")
    assert result.exit_code == 2
    assert result.output.count("audit") == 1


def test_the_version_is_one_line() -> None:
    result = seepage("--version")
    assert (result.exit_code, result.stdout) == (0, f"seepage {version()}\n")


# --- audit -----------------------------------------------------------------------------------------------------------


def test_an_audit_prints_a_table_and_leaves_rows_and_one_page(spec: Path, tmp_path: Path) -> None:
    result = seepage("audit", spec, "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 0
    assert "came back recognisably" in result.stdout
    assert "grey" in result.stdout
    assert str(tmp_path / "out" / "index.html") in result.stderr
    assert "<html" in (tmp_path / "out" / "index.html").read_text()
    assert len(pd.read_parquet(tmp_path / "out" / "rows"))


def test_results_go_to_a_folder_of_their_own_unless_told_otherwise(spec: Path, tmp_path: Path) -> None:
    assert seepage("audit", spec).exit_code == 0
    assert (tmp_path / "seepage-report" / "index.html").exists()


def test_json_is_one_list_of_the_rows_and_nothing_else(spec: Path, tmp_path: Path) -> None:
    result = seepage("audit", spec, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0
    rows = strictly(result.stdout)
    assert result.stdout.count("\n") == 1
    assert isinstance(rows, list)
    expected = read_rows(tmp_path / "out")[1]
    assert_frame_equal(pd.DataFrame(rows)[list(expected)], expected, check_dtype=False, rtol=1e-12)


def test_what_is_not_a_number_is_null_in_json(tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.toml", GREY.replace('"grey"', '"broken"'))
    result = seepage("audit", spec, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 2  # nothing was measured
    (row,) = strictly(result.stdout)
    assert (row["metric"], row["value"]) == ("none", None)
    assert row["outcome"] == "error: RuntimeError: a bug in the attack"
    assert "error: RuntimeError: a bug in the attack" in result.stderr


def test_the_seed_option_goes_before_the_files(spec: Path, tmp_path: Path) -> None:
    for seed in (3, 4):
        rows = strictly(seepage("audit", spec, "--out", tmp_path / "out", "--seed", seed, "--json").stdout)
        assert {row["seed"] for row in rows} == {seed}
    assert len(Grey.seen) == 2


def test_an_audit_that_is_done_is_not_done_again(spec: Path, tmp_path: Path) -> None:
    first, second = (seepage("audit", spec, "--out", tmp_path / "out", "--json") for _ in range(2))
    assert first.stdout == second.stdout
    assert len(Grey.seen) == 1


def test_an_own_model_is_found_from_the_current_folder_by_the_real_command(tmp_path: Path) -> None:
    write(
        tmp_path / "brought.py",
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n",
    )
    own = TINY.replace('"mlp"\noptions = { hidden = [8] }', '"brought:net"')
    write(tmp_path / "spec.toml", own)
    (ended,) = processes(["audit", "spec.toml", "--out", "out", "--json", "--device", "cpu"], cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    rows = strictly(ended.stdout)
    assert {row["model"] for row in rows} == {"brought:net"}
    assert "Traceback" not in ended.stderr


def test_names_with_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    text = GREY + '\n[[case]]\nname = "a [bold] case"\n\n[[case]]\nname = "[/odd]"\n'
    result = seepage("audit", write(tmp_path / "spec.toml", text), "--out", tmp_path / "out [1]")
    assert result.exit_code == 0
    assert "[/odd]" in result.stdout
    assert str(tmp_path / "out [1]" / "index.html") in result.stderr


def test_an_interrupt_says_how_to_go_on(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Grey, view: Any, rng: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Grey, "__call__", interrupted)
    result = seepage("audit", spec, "--out", tmp_path / "out", "--json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert f"Finished trials are kept in {tmp_path / 'out'}; run the same command again to go on." in result.stderr


# --- what a person did wrong -----------------------------------------------------------------------------------------


def complaint(result: Result) -> str:
    """The sentence of a command that refused, on stderr and without a traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_missing_file_is_said_with_its_path(tmp_path: Path) -> None:
    said = complaint(seepage("audit", tmp_path / "absent.toml", "--json"))
    assert f"{tmp_path / 'absent.toml'}: expected a TOML file, got none; check the path" in said


def test_a_wrong_specification_is_said_with_file_key_and_choices(tmp_path: Path) -> None:
    path = write(tmp_path / "spec.toml", "[clients]\ncuont = 3")
    said = complaint(seepage("audit", path, "--json"))
    assert f"{path}: clients: unknown key 'cuont'; expected some of" in said
    assert "['alpha', 'count', 'examples', 'fewer', 'partition', 'skip']" in said


def test_a_wrong_policy_is_said_before_any_work(spec: Path, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.toml", '[[limit]]\nmetric = "psnr"')
    said = complaint(seepage("audit", spec, "--policy", policy, "--out", tmp_path / "out"))
    assert f"{policy}: limit[0]: expected `at_most` or `at_least`, got neither" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["nowhere", "a-file"])
def test_a_missing_data_set_is_said_with_file_folder_and_the_way_out(folder: str, tmp_path: Path) -> None:
    write(tmp_path / "a-file", "not a folder")
    path = write(tmp_path / "spec.toml", GREY + '\n[data]\nname = "fashion-mnist-full"\n')
    said = complaint(seepage("audit", path, "--data", tmp_path / folder, "--out", tmp_path / "out"))
    assert "data set 'fashion-mnist-full' expects the file 'fashion_mnist_train.npz'" in said
    assert f"looked in {tmp_path / folder} and did not find it" in said
    assert "--data DIR" in said
    assert "SEEPAGE_DATA" in said
    assert "seepage fetch fashion-mnist-full" in said


def test_a_broken_data_file_is_said_with_its_path(tmp_path: Path) -> None:
    broken = write(tmp_path / "data" / "fashion_mnist_train.npz", "not an archive")
    path = write(tmp_path / "spec.toml", GREY + '\n[data]\nname = "fashion-mnist-full"\n')
    said = complaint(seepage("audit", path, "--data", tmp_path / "data", "--out", tmp_path / "out"))
    assert f"remove {broken} and then:" in said


def test_a_gpu_that_is_not_there_is_said(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = complaint(seepage("audit", spec, "--device", "cuda"))
    assert "--device: expected a CUDA device, got none that torch can see; use --device cpu" in said


def test_a_file_in_the_place_of_the_folder_of_results_is_said(spec: Path, tmp_path: Path) -> None:
    said = complaint(seepage("audit", spec, "--out", write(tmp_path / "out", "mine")))
    assert f"--out: expected a folder, or none yet, got the file {tmp_path / 'out'}" in said
    assert (tmp_path / "out").read_text() == "mine"


def test_a_module_that_does_not_fit_is_said(tmp_path: Path) -> None:
    write(tmp_path / "unfitting.py", "from torch import nn\n\n\ndef net():\n    return nn.Linear(3, 10)\n")
    path = write(tmp_path / "spec.toml", GREY.replace('"mlp"\noptions = { hidden = [8] }', '"unfitting:net"'))
    assert "expected" in complaint(seepage("audit", path, "--out", tmp_path / "out"))


@pytest.mark.parametrize("command", [["report"], ["gate", "policy.toml"]])
def test_a_folder_without_results_is_said(command: list[str], tmp_path: Path) -> None:
    write(tmp_path / "policy.toml", '[[limit]]\nmetric = "psnr"\nat_most = 3')
    said = complaint(seepage(command[0], tmp_path / "nowhere", *command[1:]))
    assert f"{tmp_path / 'nowhere'}: expected a folder of results, got nothing there; check the path" in said


@pytest.mark.parametrize("arguments", [["audit", "--device", "tpu"], ["audit", "--seed", "x"], ["list", "spoons"]])
def test_a_wrong_option_ends_with_two(arguments: list[str]) -> None:
    assert seepage(*arguments).exit_code == 2


# --- gate and policy -------------------------------------------------------------------------------------------------


LIMITS = {
    0: '[[limit]]\nmetric = "psnr"\nat_most = 60\nstatistic = "max"\n',
    1: '[[limit]]\nmetric = "psnr"\nat_least = 60\n\n[[limit]]\nmetric = "vmaf"\nat_most = 1\n',
    2: '[[limit]]\nmetric = "vmaf"\nat_most = 1\n',
}
WORDS = {0: ["within"], 1: ["BROKEN", "UNMEASURED"], 2: ["UNMEASURED"]}


@pytest.mark.parametrize("code", LIMITS)
def test_an_audit_ends_with_the_verdict_of_its_policy(code: int, spec: Path, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.toml", LIMITS[code])
    result = seepage("audit", spec, "--out", tmp_path / "out", "--policy", policy)
    assert result.exit_code == code
    for word in WORDS[code]:
        assert word in result.stdout


@pytest.mark.parametrize("code", LIMITS)
def test_verdicts_do_not_mix_with_json(code: int, spec: Path, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.toml", LIMITS[code])
    result = seepage("audit", spec, "--out", tmp_path / "out", "--policy", policy, "--json")
    assert result.exit_code == code
    assert isinstance(strictly(result.stdout), list)
    for word in WORDS[code]:
        assert word in result.stderr


def test_the_real_gate_ends_with_zero_one_or_two(results: Path, tmp_path: Path) -> None:
    policies = {code: write(tmp_path / f"{code}.toml", text) for code, text in LIMITS.items()}
    ended = processes(*(["gate", results, path] for path in policies.values()), cwd=tmp_path)
    for code, one in zip(policies, ended, strict=True):
        assert one.code == code
        assert [line.split()[0] for line in one.stdout.splitlines()] == WORDS[code]
        assert one.stderr == ""


def test_a_failed_trial_leaves_the_gate_unmeasured(tmp_path: Path) -> None:
    spec = write(tmp_path / "spec.toml", GREY + '\n[[attack]]\nname = "broken"\n')
    policy = write(tmp_path / "policy.toml", LIMITS[0])
    assert seepage("audit", spec, "--out", tmp_path / "out").exit_code == 0
    result = seepage("gate", tmp_path / "out", policy)
    assert result.exit_code == 2
    assert "1 trials gave no number, the first because: error: RuntimeError: a bug in the attack" in result.stdout


def test_an_audit_that_was_not_finished_is_not_within_limits(results: Path, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.toml", LIMITS[0])
    more = write(tmp_path / "more.toml", GREY + '\n[[defence]]\nname = "none"\n\n[[defence]]\nname = "clip"\n')
    assert seepage("audit", more, "--out", results).exit_code == 0
    for path in (results / "rows").iterdir():
        if pd.read_parquet(path)["defence"].eq("clip").all():
            path.unlink()
    said = complaint(seepage("gate", results, policy))
    assert "expected all 2 trials of 'tiny' to be finished, got 1 that are not; run the same `seepage audit`" in said


# --- report, list, reproduce -----------------------------------------------------------------------------------------


def test_two_runs_are_compared(results: Path, spec: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert seepage("audit", spec, "--out", again, "--seed", 5).exit_code == 0
    itself = seepage("compare", results, results)
    assert itself.exit_code == 0
    assert "the same" in itself.stdout
    assert "0 of" in itself.stdout
    other = seepage("compare", results, again, "--json")
    found = json.loads(other.stdout)
    assert {d["metric"] for d in found} >= {"psnr", "recovered"}
    assert all(d["verdict"] != "the same" and not d["paired"] for d in found if d["metric"] == "psnr")


def test_a_metric_that_was_not_measured_is_said_with_those_that_were(results: Path) -> None:
    done = seepage("compare", results, results, "--metric", "psrn")
    assert done.exit_code == 2
    assert "psnr" in done.stderr
    assert "'psrn'" in done.stderr


def test_means_are_written_for_spreadsheets(results: Path, tmp_path: Path) -> None:
    assert seepage("report", results, "--csv", tmp_path / "means.csv").exit_code == 0
    found = pd.read_csv(tmp_path / "means.csv")
    rows = read_rows(results)[1]
    psnr = found[found["metric"] == "psnr"].iloc[0]
    assert psnr["mean"] == pytest.approx(rows[rows["metric"] == "psnr"]["value"].mean())
    assert psnr["low"] <= psnr["mean"] <= psnr["high"]
    assert set(found["metric"]) == set(rows[rows["attack"] != "none"]["metric"])


def test_clients_of_two_seeds_are_pooled_into_one_mean(spec: Path, results: Path, tmp_path: Path) -> None:
    other, table = tmp_path / "other", tmp_path / "means.csv"
    assert seepage("audit", spec, "--out", other, "--seed", 1).exit_code == 0
    done = seepage("report", results, "--with", other, "--csv", table)
    assert done.exit_code == 0
    assert "seed 0, 1" in done.stdout
    per_client = pd.concat(
        rows[rows["metric"] == "psnr"].groupby("client")["value"].mean()
        for rows in (read_rows(folder)[1] for folder in (results, other))
    )
    psnr = pd.read_csv(table).query("metric == 'psnr'").iloc[0]
    assert (psnr["n"], psnr["mean"]) == (len(per_client), pytest.approx(per_client.mean()))


def test_what_cannot_be_pooled_is_refused(spec: Path, results: Path, tmp_path: Path) -> None:
    twice = seepage("report", results, "--with", results)
    assert twice.exit_code == 2
    assert "another seed in each" in " ".join(twice.stderr.split())
    another = write(tmp_path / "another.toml", GREY.replace('name = "', 'name = "not ', 1))
    assert seepage("audit", another, "--out", tmp_path / "another", "--seed", 1).exit_code == 0
    mixed = seepage("report", results, "--with", tmp_path / "another")
    assert mixed.exit_code == 2
    assert "leave it out" in " ".join(mixed.stderr.split())
    assert seepage("report", results, "--with", results, "--policy", spec).exit_code == 2


def test_a_report_without_the_limits_of_its_audit_says_so(spec: Path, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.toml", '[[limit]]\nmetric = "psnr"\nat_most = 300')
    assert seepage("audit", spec, "--out", tmp_path / "out", "--policy", policy).exit_code == 0
    assert f"add --policy={policy} for them" in " ".join(seepage("report", tmp_path / "out").stderr.split())
    assert "Without limits" not in seepage("report", tmp_path / "out", "--policy", policy).stderr


def test_a_report_is_printed_and_written_again_from_the_results(results: Path) -> None:
    page = results / "index.html"
    before = page.read_text()
    page.unlink()
    result = seepage("report", results)
    assert result.exit_code == 0
    assert "Likeness, dB" in result.stdout
    assert str(page) in result.stderr
    assert page.read_text() == before


KINDS = {
    "attacks": ATTACKS,
    "defences": DEFENCES,
    "models": MODELS,
    "data": DATASETS,
    "metrics": METRICS,
    "threats": THREATS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_there_is_can_be_listed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plain, as_json = seepage("list", kind), seepage("list", kind, "--json")
    assert plain.exit_code == as_json.exit_code == 0
    entries = strictly(as_json.stdout)
    assert [entry["name"] for entry in entries] == list(KINDS[kind])
    assert all(entry.get("about", "about") for entry in entries)
    for name in KINDS[kind]:
        assert name in plain.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_lists_fit_eighty_columns_with_whole_names(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = seepage("list", kind).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert set(KINDS[kind]) <= {line.split()[0] for line in lines if line.strip()}


def test_one_of_a_list_tells_all_about_itself() -> None:
    said = seepage("list", "attacks", "inverting-gradients").stdout
    assert "  steps = 4800\n" in said
    assert "weight of total variation" in said
    assert 'euclidean = { boxed = false, decay = "none"' in said
    for kind, registry in (("attacks", ATTACKS), ("defences", DEFENCES)):
        for name, thing in registry.items():
            (entry,) = strictly(seepage("list", kind, name, "--json").stdout)
            assert set(entry["knobs"]) == {one.name for one in fields(thing)}
    assert seepage("list", "threats", "honest-server").stdout.startswith("name: honest-server")
    assert "did you mean 'sme'?" in complaint(seepage("list", "attacks", "smee"))


def test_a_shell_can_complete_commands_without_waiting_for_torch(tmp_path: Path) -> None:
    variables = {"_SEEPAGE_COMPLETE": "complete_bash", "COMP_WORDS": "seepage re", "COMP_CWORD": "1"}
    program = (
        "import sys; from seepage.cli import app\n"
        "try:\n    app(prog_name='seepage')\nfinally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **variables},
        text=True,
        capture_output=True,
    )
    assert done.stdout.split() == ["report", "reproduce", "False"]


@pytest.mark.parametrize(("kind", "name"), [("attacks", "dlm-plus"), ("defences", "weight-noise")])
def test_lists_name_the_presets(kind: str, name: str) -> None:
    (entry,) = [entry for entry in strictly(seepage("list", kind, "--json").stdout) if entry["name"] == name]
    assert entry["presets"].startswith("as_paper, as_code")
    assert "presets: as_paper, as_code" in seepage("list", kind).stdout


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with one experiment, in the place of the installed one."""
    monkeypatch.setattr(commands, "__file__", str(tmp_path / "tree" / "src" / "seepage" / "commands.py"))
    expectation = '\n[[expect]]\ncase = "all"\nmetric = "psnr"\nreported = 99.0\nsource = "Table [1]"\n'
    write(tmp_path / "tree" / "experiments" / "someone2020" / "table1.toml", GREY + expectation)
    return tmp_path / "tree" / "experiments"


def test_the_experiments_of_papers_are_listed_with_a_sentence(papers: Path) -> None:
    result = seepage("reproduce")
    assert result.exit_code == 0
    line, about = result.stdout.splitlines()
    assert line == "someone2020/table1  on fashion-mnist"
    assert about.strip() == "Three clients with one image each."


def test_an_experiment_is_reproduced_beside_the_papers_number(
    papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # where there is room for the source
    result = seepage("reproduce", "someone2020/table1", "--device", "cpu")
    assert result.exit_code == 0
    assert "Beside the paper" in result.stdout
    assert "Table [1]" in result.stdout
    assert "99" in result.stdout
    assert (tmp_path / "seepage-results" / "someone2020" / "table1" / "index.html").exists()


def test_a_limited_reproduction_attacks_that_many_clients(papers: Path, tmp_path: Path) -> None:
    result = seepage("reproduce", "someone2020/table1", "--limit", 2, "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert {row["client"] for row in strictly(result.stdout)} == {"0", "1"}


def test_a_reproduction_grows_by_trials_of_so_many_clients(papers: Path, tmp_path: Path) -> None:
    command = ("reproduce", "someone2020/table1", "--together", 1, "--json", "--out", tmp_path / "out")
    few = strictly(seepage(*command, "--limit", 1).stdout)
    result = seepage(*command, "--limit", 3)
    trials = {(row["client"], row["trial"]) for row in strictly(result.stdout)}
    assert len(trials) == len({trial for _, trial in trials}) == 3
    assert {(row["client"], row["trial"]) for row in few} < trials
    assert "--together=1" in (tmp_path / "out" / "index.html").read_text()


def test_a_reproduction_that_has_no_time_left_says_what_is_left(papers: Path, tmp_path: Path) -> None:
    result = seepage("reproduce", "someone2020/table1", "--minutes", 0, "--out", tmp_path / "out")
    assert "1 of the trials are left for another run of the same command." in " ".join(result.stderr.split())
    again = seepage("reproduce", "someone2020/table1", "--minutes", 60, "--out", tmp_path / "out")
    assert (again.exit_code, "are left" in again.stderr) == (0, False)


def test_a_case_of_which_some_trials_ran_is_said_not_to_be_complete(papers: Path, tmp_path: Path) -> None:
    path = papers / "someone2020" / "table1.toml"
    path.write_text(path.read_text() + '\n[[attack]]\nname = "count-labels"\n')
    command = ("reproduce", "someone2020/table1", "--out", tmp_path / "out", "--attack", "grey")
    said = " ".join(seepage(*command).stdout.split())
    assert "Not complete: case all, 1 of 2 trials." in said
    assert "so far" in said
    assert {(row["case_finished"], row["case_planned"]) for row in strictly(seepage(*command, "--json").stdout)} == {
        (1, 2)
    }


def test_a_specification_is_shown_to_be_copied_and_run_from_anywhere(papers: Path, tmp_path: Path) -> None:
    shown = seepage("reproduce", "someone2020/table1", "--show")
    assert shown.stdout == (papers / "someone2020" / "table1.toml").read_text()
    mine = write(tmp_path / "mine.toml", shown.stdout.replace("99.0", "12.5"))
    for command in ("reproduce", "audit"):
        result = seepage(command, mine, "--out", tmp_path / command)
        assert result.exit_code == 0
        assert "Beside the paper" in result.stdout
        assert "12.5" in result.stdout
    line = recall(tmp_path / "audit")
    assert line is not None
    assert line.line == f"seepage audit {mine} --out={tmp_path / 'audit'}"


def test_an_unknown_experiment_is_said_with_those_that_look_like_it(papers: Path) -> None:
    said = complaint(seepage("reproduce", "someone2021/table1"))
    assert "got 'someone2021/table1'; did you mean 'someone2020/table1'?" in said


def test_the_experiments_of_this_tree_are_listed() -> None:
    names = [line.split()[0] for line in seepage("reproduce").stdout.splitlines()[::2]]
    assert "geiping2020/smoke" in names
