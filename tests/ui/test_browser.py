"""`seepage ui` as a person meets it, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from common.browser import Watched, launched
from seepage.audit.summary import read_rows


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as one:
        yield one


@pytest.fixture
def page(browser: Any, served: Any) -> Iterator[Watched]:
    watched = Watched(browser)
    watched.page.goto(served.home)
    yield watched
    refused = "the server responded with a status of 400"  # as a form that is not filled in right is
    assert [words for words in watched.complaints if refused not in words] == []
    assert {url.split("/")[2] for url in watched.requests if url.startswith("http")} == {served.address.split("/")[2]}
    watched.close()


def test_runs_are_listed_with_how_far_they_are_and_lead_to_their_reports(page: Watched) -> None:
    listed = page.page.inner_text("tbody")
    for words in ("first", "finished", "1 of 1", "below/second", "unfinished", "1 of 3"):
        assert words in listed, words
    page.page.click("a:text-is('below/second')")
    assert page.page.inner_text("h1") == "<b>second</b>"
    assert "8 of 8 images came back" in page.page.inner_text("#verdict")
    page.page.click("text=Open the report")
    page.page.wait_for_selector("html[data-ready]", state="attached")
    assert "8 of 8 images came back" in page.page.inner_text(".sentence")
    assert page.page.locator("#table .tabulator-row").count() > 0


def test_two_runs_are_compared(page: Watched) -> None:
    page.page.click("nav >> text=Compare")
    page.page.select_option("select[name=before]", "first")
    page.page.select_option("select[name=after]", "below/second")
    page.page.click("button:text('Compare')")
    told = page.page.inner_text("main")
    for words in ("1 of 1 differences beyond chance", "[5, 5]", "paired"):
        assert words in told, words


def test_an_audit_is_started_from_the_form_and_watched_to_its_end(page: Watched, served: Any) -> None:
    sheet = page.page
    sheet.click("nav >> text=New audit")
    sheet.fill("input[name=count]", "0")
    sheet.click("text=Write the TOML")
    assert "count: expected a whole number of at least 1" in sheet.inner_text("[role=alert]")
    for name, value in {
        "name": "tiny",
        "count": "2",
        "watched": "1",
        "examples": "1",
        "steps": "3",
        "lr": "0.1",
    }.items():
        sheet.fill(f"#form input[name={name}]", value)
    sheet.select_option("select[name=model]", "mlp")
    sheet.click("text=Write the TOML")
    assert "[[attack]]" in sheet.input_value("textarea")
    sheet.click("text=Start the audit")
    sheet.wait_for_selector("#progress:not([data-state=running])", timeout=600_000)
    assert sheet.get_attribute("#progress", "data-state") == "finished", sheet.inner_text("#log")
    assert sheet.inner_text("#count") == "1 of 1 trials"
    assert "0 of 1 image came back" in sheet.inner_text("#verdict")
    assert "Without a defence" in sheet.inner_text("#log")
    index, rows, _ = read_rows(served.root / "tiny")
    assert index.name == "tiny"
    assert set(rows["model"]) == {"mlp"}


def test_a_running_audit_can_be_stopped(page: Watched, served: Any) -> None:
    sheet = page.page
    sheet.goto(f"{served.home}new")
    for name, value in {"name": "long", "count": "2", "watched": "2", "examples": "4", "steps": "1000000"}.items():
        sheet.fill(f"#form input[name={name}]", value)
    sheet.click("text=Write the TOML")
    sheet.click("text=Start the audit")
    assert sheet.get_attribute("#progress", "data-state") == "running"
    sheet.click("text=Stop")
    sheet.wait_for_selector("#progress[data-state=stopped]")
