"""The fenced blocks of a page of documentation, and how what they show is held against what was printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n\n)?"
    r"^```(?P<kind>python|console|sh|text|toml|yaml)(?: title=\"(?P<file>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One of them.

    Args:
        line: of the page.
        kind: of what is in it.
        file: that it is, where it has a title.
        text: of it.
        left_out: why it is not run, where it is not.
    """

    line: int
    kind: str
    file: str | None
    text: str
    left_out: str | None

    @property
    def to_run(self) -> bool:
        return self.kind in ("python", "console", "sh") and self.file is None


def blocks(page: str) -> Iterator[Block]:
    """Of a page, named from the root of the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text"))
        yield Block(line, found["kind"], found["file"], found["text"], found["why"])


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with what is shown below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, [line for line in lines if line.strip()]


def shown(lines: list[str], printed: str, where: str) -> None:
    """What a page shows must have been printed."""
    for line in lines:
        assert plain(line) in plain(printed), f"{where}: {line!r} is not in\n{printed}"


def plain(text: str) -> str:
    """Without what differs between machines: numbers, and the width of columns."""
    return re.sub(r"\s+", " ", re.sub(r"[\d.,]+", "#", text)).strip()
