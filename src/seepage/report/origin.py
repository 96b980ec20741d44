"""How a folder of results came about, so that its report can say how to get every number again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seepage.untrusted import Refused, parse_json, read_text

__all__ = ["Origin", "recall", "remember"]

FILE = "rerun.json"


@dataclass(frozen=True)
class Origin:
    """The command that was given, and the text of the specification that it read.

    Example:
        >>> Origin(("seepage", "audit", "my spec.toml"), "").line
        "seepage audit 'my spec.toml'"
    """

    command: tuple[str, ...]
    spec: str

    @property
    def line(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(self.command)


def remember(folder: Path, command: Sequence[str], spec: str) -> None:
    """Note in a folder of results how it came about."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps({"command": list(command), "spec": spec}, indent=1), encoding="utf-8")


def recall(folder: Path) -> Origin | None:
    """What `remember` noted; `None` where that is not there, or not as it was written."""
    try:
        noted = parse_json(read_text(folder / FILE), "json")
        return Origin(tuple(str(word) for word in noted["command"]), str(noted["spec"]))
    except (OSError, Refused, KeyError, TypeError):
        return None
