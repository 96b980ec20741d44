"""Every experiment of the project, and every TOML block of its documentation, can be read as it stands."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from common import pages
from seepage.audit.experiment import parse, read_experiment
from seepage.audit.gate import read_policy

ROOT = Path(__file__).parents[1]
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.toml"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```toml[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def blocks() -> Iterator[object]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            name = page.relative_to(ROOT).as_posix()
            yield pytest.param(name, found[2], id=f"{name}:{line}")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_experiment_resolves_to_trials_with_names_of_their_own(path: Path) -> None:
    experiment = read_experiment(path)
    digests = [trial.digest for trial in experiment.trials()]
    assert digests
    assert len(set(digests)) == len(digests)
    assert experiment.about, "a sentence for `seepage reproduce`"
    assert experiment.name == path.relative_to(ROOT / "experiments").with_suffix("").as_posix()


def test_there_are_experiments() -> None:
    assert EXPERIMENTS


@pytest.mark.parametrize(("page", "block"), list(blocks()))
def test_every_block_of_toml_in_the_documentation_can_be_read(
    page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for other in pages.blocks(page):  # which may hold an attack or a defence that the block names
        if other.kind == "python" and other.file:
            (tmp_path / other.file).write_text(other.text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, Path(other.file).stem, raising=False)
    table = tomllib.loads(block)
    if "limit" in table:
        path = tmp_path / "policy.toml"
        path.write_text(block, encoding="utf-8")
        assert read_policy(path).limit
    elif "project" in table or "tool" in table:
        pytest.skip("a piece of pyproject.toml")
    else:
        parse(table, "block.toml")


def test_the_ten_lines_of_the_readme_run() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed: list[object] = []
    names = {
        "MyModule": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
        "print": printed.append,
    }
    exec(code.replace("steps=300", "steps=3"), names)
    assert "psnr" in str(printed)
