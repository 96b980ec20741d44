"""The report as a PDF, for files that outlive browsers: printed by a browser that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from seepage.audit.values import SpecError

__all__ = ["find_browser", "write_pdf"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
SECONDS = 180


def find_browser() -> str:
    """The browser that prints: $SEEPAGE_BROWSER, or the first of those that are known.

    Raises:
        SpecError: when there is none.
    """
    named = os.environ.get("SEEPAGE_BROWSER")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sought = (
            f"$SEEPAGE_BROWSER to be a program, got {named!r}" if named else f"a browser, one of {', '.join(BROWSERS)}"
        )
        raise SpecError(f"--pdf: expected {sought}; install Chromium, or print the page by hand")
    return found


def write_pdf(page: Path, file: Path) -> None:
    """Print a page that needs nothing beside it.

    Args:
        page: the HTML file.
        file: the PDF to write; what was there is replaced.

    Raises:
        SpecError: when there is no browser, or it does not print.
    """
    browser = find_browser()
    # Parts of a browser write to its profile for a moment after it has ended.
    with tempfile.TemporaryDirectory(prefix="seepage-pdf-", ignore_cleanup_errors=True) as scratch:
        printed = Path(scratch) / "report.pdf"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--disable-extensions",
            "--disable-background-networking",
            "--no-first-run",
            f"--user-data-dir={scratch}/profile",
            "--no-pdf-header-footer",
            "--virtual-time-budget=10000",  # the page draws its charts before it is printed
            f"--print-to-pdf={printed}",
            *(["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),  # which root cannot have
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise SpecError(f"--pdf: expected {browser} to print within {SECONDS} s; print the page by hand") from None
        if not printed.exists():
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise SpecError(f"--pdf: expected {browser} to print {page}, got exit code {done.returncode}: {last}")
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(printed, file)
