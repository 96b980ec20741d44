"""Downloading public data: fetch, check, convert, and only then put into place."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

from seepage.data.convert import Unreadable
from seepage.data.folder import data_folder
from seepage.data.sources import BY_HAND, SOURCES, Part, Source
from seepage.spelling import meant

__all__ = ["FetchFailed", "Progress", "fetch"]

Progress = Callable[[str, int, int | None], None]
CHUNK = 1 << 20
SECONDS = 30.0


class FetchFailed(OSError):
    """A download did not work out; the message says which address, why, and how to place the files by hand."""


def fetch(name: str, folder: str | Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Downloads a public data set (or the weights that a metric needs) into the data folder.

    Files that are there already are left alone. Nothing appears in the folder before everything has been downloaded,
    checked and converted.

    Args:
        name: a data set, or `"lpips"` for the weights of the perceptual metric.
        folder: see `seepage.data.data_folder`.
        progress: called with the address, the bytes so far, and the bytes in all where the server says so.

    Returns:
        The files that the loaders read.

    Raises:
        FetchFailed: when the name is unknown, the set cannot be downloaded, or what came is not what was expected.
    """
    if name == "fashion-mnist":
        return []  # its 1000 images are part of the package
    if name in BY_HAND:
        raise FetchFailed(f"{name!r} cannot be fetched automatically; {BY_HAND[name]}")
    if name not in SOURCES:
        known = sorted([*SOURCES, *BY_HAND, "fashion-mnist"])
        raise FetchFailed(f"expected one of {known} to fetch, got {name!r}{meant(name, known)}")
    source, target = SOURCES[name], data_folder(folder)
    wanted = [target / file for file in source.files]
    if all(path.is_file() for path in wanted):
        return wanted
    try:
        target.mkdir(parents=True, exist_ok=True)
        # Inside the target, so that the last step is a rename on one file system and hence atomic.
        with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as scratch:
            _fetch_into(Path(scratch), name, source, target, progress)
    except FetchFailed:
        raise
    except OSError as error:
        raise FetchFailed(
            f"could not write to the data folder {target} ({error}); choose another with `--data DIR` or SEEPAGE_DATA"
        ) from error
    return wanted


def _fetch_into(scratch: Path, name: str, source: Source, target: Path, progress: Progress | None) -> None:
    downloads, results = scratch / "downloads", scratch / "results"
    downloads.mkdir()
    results.mkdir()
    by_hand = f"or make {list(source.files)} on another machine with `seepage fetch {name}` and copy them to {target}"
    for part in source.parts:
        _download(part, downloads / part.file, by_hand, progress)
    try:
        source.convert({part.file: downloads / part.file for part in source.parts}, results)
    except Unreadable as error:
        raise FetchFailed(
            f"downloaded {name!r} but could not convert it: {error}; try again later, {by_hand}"
        ) from error
    for file in source.files:
        os.replace(results / file, target / file)


def _download(part: Part, path: Path, by_hand: str, progress: Progress | None) -> None:
    failures = []
    for address in part.addresses:
        try:
            _copy(address, path, part.digest, progress)
            return
        except (OSError, http.client.HTTPException, _Different) as error:
            failures.append(f"{address}: {error}")
    raise FetchFailed(f"could not fetch {'; '.join(failures)}; check the network and try again, {by_hand}")


class _Different(Exception):
    """What came is not what was asked for."""


def _copy(address: str, path: Path, digest: str | None, progress: Progress | None) -> None:
    algorithm, _, expected = (digest or "sha256:").partition(":")
    # A checksum against damage and mix-ups; MD5 is what the authors of these sets publish.
    checksum = hashlib.new(algorithm, usedforsecurity=False)
    request = Request(address, headers={"User-Agent": "seepage"})
    with urlopen(request, timeout=SECONDS) as answer, path.open("wb") as file:
        length = answer.headers.get("Content-Length")
        total = int(length) if length is not None else None
        done = 0
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            checksum.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(address, done, total)
    if total is not None and done != total:
        raise _Different(f"the connection ended early, expected {total} bytes, got {done}")
    got = checksum.hexdigest()
    if not got.startswith(expected):
        raise _Different(f"expected the {algorithm} checksum {expected}, got {got}")
