"""A real browser: Debian's Chromium, driven by Playwright; tests that need it are skipped where either is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from seepage.audit.values import SpecError
from seepage.report.pdf import find_browser

PATIENCE = 180_000
"""Milliseconds until something that a busy machine does late is taken for something that does not happen."""


@contextmanager
def launched() -> Iterator[Any]:
    """A browser for a whole module of tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra package playwright drives the browser")
    try:
        program = find_browser()
    except SpecError as error:
        pytest.skip(f"no browser: {error}")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=sandbox, timeout=PATIENCE)
        yield browser
        browser.close()


class Watched:
    """A page, with everything it complained about and asked of the network."""

    def __init__(self, browser: Any, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def close(self) -> None:
        self.page.context.close()
