"""Fetch the libraries that the report carries again, and check that they are what they were.

`python -m seepage.report.vendor.fetch` needs npm and its registry. A library is raised to another version by changing
`version` and `integrity` (as `npm view PACKAGE@VERSION dist.integrity` prints it) in versions.json, and fetching.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["check", "fetch"]

HERE = Path(__file__).parent


def fetch(library: dict[str, Any], into: Path = HERE) -> None:
    """Write the files of one library.

    Args:
        library: an entry of versions.json.
        into: the folder to write to.

    Raises:
        ValueError: when what the registry gives is not what versions.json promises.
    """
    name = f"{library['package']}@{library['version']}"
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["npm", "pack", "--silent", name], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(scratch).glob("*.tgz")
        check(name, library["integrity"], archive.read_bytes())
        with tarfile.open(archive) as packed:
            for file, member in library["files"].items():
                content = packed.extractfile(f"package/{member}")
                assert content is not None  # a member that is no file would have raised KeyError
                (into / file).write_bytes(content.read())


def check(name: str, integrity: str, content: bytes) -> None:
    """Refuse an archive whose digest is not the promised one.

    Example:
        >>> check("x", "sha512-AAAA", b"something else")
        Traceback (most recent call last):
            ...
        ValueError: x: expected an archive of sha512-AAAA, got sha512-NFJP...; mend versions.json, or do not trust it
    """
    found = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    if found != integrity:
        raise ValueError(
            f"{name}: expected an archive of {integrity}, got {found[:11]}...; mend versions.json, or do not trust it"
        )


if __name__ == "__main__":
    for entry in json.loads((HERE / "versions.json").read_text(encoding="utf-8")):
        fetch(entry)
        sys.stdout.write(f"{entry['package']} {entry['version']}: {', '.join(entry['files'])}\n")
