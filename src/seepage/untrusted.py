"""Files that come from elsewhere: how large they may be, known before anything of them is in memory.

Text and headers may have 16 MiB, tensors 8 GiB together. For honest files that are larger, `SEEPAGE_MAX_GIB` sets the
latter.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "HEADER",
    "Refused",
    "check_checkpoint",
    "check_npz",
    "check_safetensors",
    "check_size",
    "largest",
    "parse_json",
    "read_text",
]

HEADER = 16 * 2**20
"""Bytes that a text file or the header of a file of tensors may have; a thousand layers need a hundredth of it."""

VARIABLE = "SEEPAGE_MAX_GIB"


class Refused(ValueError):
    """What is wrong with a file, for its reader to name the file.

    Args:
        key: the entry.
        what: expected and got.
        fix: what to do.
    """

    def __init__(self, key: str, what: str, fix: str) -> None:
        self.key, self.what, self.fix = key, what, fix
        super().__init__(f"{key}: {what}; {fix}")


def largest() -> int:
    """Bytes that the tensors of one capture, secret or checkpoint may have.

    Example:
        >>> largest() == 8 * 2**30
        True
    """
    said = os.environ.get(VARIABLE, "8")
    try:
        gib = float(said)
    except ValueError:
        gib = math.nan
    if not 0 < gib < math.inf:
        raise Refused(VARIABLE, f"expected a number of GiB above 0, got {said!r}", "set it to a number such as 8")
    return int(gib * 2**30)


def check_size(size: int, most: int, key: str) -> None:
    """Refuse what is larger than its limit.

    Example:
        >>> check_size(17 * 2**20, HEADER, "header")
        Traceback (most recent call last):
        ...
        seepage.untrusted.Refused: header: expected at most 16777216 bytes, got 17825792; write the file again
    """
    if size > most:
        fix = "write the file again" if most == HEADER else f"if you trust the file, set {VARIABLE} to a larger number"
        raise Refused(key, f"expected at most {most} bytes, got {size}", fix)


def read_text(path: Path) -> str:
    """The text of a regular file that is not too long."""
    check_size(_size(path), HEADER, "file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refused("text", f"expected UTF-8, got: {error}", "copy the file again") from error


def parse_json(text: str, key: str) -> Any:
    """What JSON says, or `Refused`: Python's reader has three ways to fail, depending on what it was given."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(key, f"expected JSON, got: {error}", "copy the file again") from error


def check_safetensors(path: Path) -> None:
    """Refuse a file that is too large, or says that its header is.

    That tensors lie inside of the file is seen to by safetensors itself.
    """
    size = _size(path)
    check_size(size, largest(), "file")
    with path.open("rb") as file:
        said = int.from_bytes(file.read(8), "little")
    for most, why in ((HEADER, "are allowed"), (max(0, size - 8), "the file has left for it")):
        if said > most:
            what = f"expected a readable file, got one whose header has {said} bytes, more than the {most} that {why}"
            raise Refused("header", what, "copy the file again")


def check_npz(path: Path) -> None:
    """Refuse an archive whose arrays would be too large, or larger than what it holds of them.

    Each array says its shape, and NumPy makes room for it before it reads the first number.
    """
    with zipfile.ZipFile(path) as archive:
        _check_archive(archive, path)
        for entry in archive.infolist():
            with archive.open(entry) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(member)
                said = math.prod(shape) * dtype.itemsize
                if said != entry.file_size - member.tell():
                    got = f"{entry.file_size - member.tell()} for shape {shape}"
                    raise Refused(entry.filename, f"expected {said} bytes of numbers, got {got}", "save it again")


def check_checkpoint(path: Path) -> None:
    """Refuse a PyTorch checkpoint whose tensors would be too large; they are made without memory to find out."""
    if not zipfile.is_zipfile(path):
        what = "expected a file of tensors alone, as torch 1.6 and later write them, got another format"
        raise Refused("format", what, "load it where you trust it and save `module.state_dict()` again")
    with zipfile.ZipFile(path) as archive:
        _check_archive(archive, path)
        for entry in archive.infolist():
            if entry.filename.endswith("data.pkl"):
                check_size(entry.file_size, HEADER, entry.filename)
            if entry.filename.endswith(".storage_alignment"):
                _check_alignment(archive, entry)
    content: Any = torch.load(path, map_location="meta", weights_only=True)
    total, left, seen = 0, [content], {}
    while left:
        content = left.pop()
        if id(content) in seen:
            continue
        seen[id(content)] = content  # and so kept, that no other takes its number
        if isinstance(content, Tensor):
            total += max(content.numel() * content.element_size(), content.untyped_storage().nbytes())
        elif isinstance(content, Mapping):
            left += content.values()
        elif isinstance(content, list | tuple | set):
            left += content
    check_size(total, largest(), "tensors")


def _check_alignment(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """PyTorch divides by this number before it looks at it, and 0 ends the process."""
    with archive.open(entry) as member:
        said = member.read(8)
    if not said.isdigit() or int(said) == 0:
        raise Refused(entry.filename, f"expected a number of bytes above 0, got {said!r}", "save it again")


def _size(path: Path) -> int:
    """Of a regular file: a pipe has none, and waits."""
    if not path.is_file():
        raise Refused("file", "expected a file, got none or something else", "check the path")
    return path.stat().st_size


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    check_size(_size(path), largest(), "file")
    check_size(sum(entry.file_size for entry in archive.infolist()), largest(), "unpacked")
