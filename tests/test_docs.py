"""The pages about attacks, defences and threat models name all that there is, and what pages show is run.

On every page, blocks with a `title` are files, other Python is run in the order of the page, and so are lines that
begin with `$ seepage`; what a page shows below them must be printed by them, up to its numbers. A comment
`<!-- not run: why -->` before a block leaves it out.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.pages import ROOT, blocks, commands, shown
from seepage.attacks import ATTACKS
from seepage.cli import app
from seepage.defences import DEFENCES
from seepage.threat import THREATS, Fact

DOCS = ROOT / "docs"
EVERY = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/*/*.md")
    for page in ROOT.glob(pattern)
)
ELSEWHERE = {
    "README.md": "tests/test_examples_run.py",
    "docs/flower.md": "tests/frameworks/test_flower_run.py",
    "examples/nvflare/README.md": "tests/frameworks/test_nvflare_run.py",
}
"""Pages whose blocks another test runs, because they need more than a folder."""

RUN = [page for page in EVERY if page not in ELSEWHERE and any(block.to_run for block in blocks(page))]
MOST_LEFT_OUT = 20


def missing(page: str, names: list[str]) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [name for name in names if f"`{name}`" not in text]


@pytest.mark.parametrize(("page", "kinds"), [("attacks.md", ATTACKS), ("defences.md", DEFENCES)])
def test_every_attack_and_defence_is_named_with_its_presets(page: str, kinds: dict[str, type]) -> None:
    presets = [preset for kind in kinds.values() for preset in kind.presets]  # type: ignore[attr-defined]
    assert missing(page, [*kinds, *presets]) == []


def test_every_threat_model_and_fact_is_named() -> None:
    assert missing("threats.md", [*THREATS, *(fact.value for fact in Fact)]) == []


@pytest.mark.parametrize("page", RUN)
def test_every_snippet_and_command_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    names, code, printed = {"__name__": "page"}, 0, io.StringIO()
    known = [(registry, dict(registry)) for registry in (ATTACKS, DEFENCES)]  # a page may add its own
    try:
        for block in blocks(page):
            if block.left_out:
                continue
            if block.file:
                Path(block.file).write_text(block.text, encoding="utf-8")
                sys.modules.pop(Path(block.file).stem, None)  # of another page
            elif block.kind == "python":
                printed = io.StringIO()
                with redirect_stdout(printed):
                    exec(compile(block.text, f"{page}:{block.line}", "exec"), names)
            elif block.kind == "text":
                shown(block.text.splitlines(), printed.getvalue(), f"{page}:{block.line}")
            elif block.kind == "console":
                code = converse(block.text, f"{page}:{block.line}", code)
    finally:
        for registry, entries in known:
            registry.clear()
            registry.update(entries)


def converse(text: str, where: str, code: int) -> int:
    """Run the commands of a block; `echo $?` shows the code of the one before, which is 0 where it is not shown."""
    asked = [command == "echo $?" for command, _ in commands(text)] + [False]
    for number, (command, lines) in enumerate(commands(text)):
        if command == "echo $?":
            assert lines == [str(code)], f"{where}: {command}"
            continue
        words = shlex.split(command)
        assert words[0] == "seepage", f"{where}: expected a command of seepage, got {command!r}"
        done = CliRunner().invoke(app, words[1:])
        code = done.exit_code
        assert code == 0 or asked[number + 1], f"{where}: {command}: {done.output}"
        shown(lines, done.output, f"{where}: {command}")
    return code


@pytest.mark.parametrize("page", EVERY)
def test_what_is_not_run_says_why(page: str) -> None:
    """And nothing escapes the pattern by which blocks are found."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(blocks(page))
    assert len(re.findall(r"<!-- not run", text)) == sum(block.left_out is not None for block in found)
    fences = re.findall(r"^ *```(?:python|console|sh|bash|shell)", text, re.MULTILINE)
    assert len(fences) == sum(block.kind in ("python", "console", "sh") for block in found)
    if page not in ELSEWHERE:
        for block in found:
            assert block.kind != "sh" or block.left_out, f"{page}:{block.line}: make it a console, or say why not"


def test_little_is_left_out() -> None:
    left_out = [(page, block.left_out) for page in EVERY for block in blocks(page) if block.left_out]
    assert len(left_out) <= MOST_LEFT_OUT, left_out
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {page}"


def test_the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the dependency group docs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^\"'> ]+")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    assert [found for page in pages for found in loads.findall(page.read_text(encoding="utf-8"))] == []
    styles = [sheet.read_text(encoding="utf-8") for sheet in tmp_path.rglob("*.css")]
    assert not any(re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style) for style in styles)
