"""The report as a reader meets it, in a real browser."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from common.browser import PATIENCE, Watched, launched
from seepage.audit.gate import Limit, Policy, gate
from seepage.audit.summary import Index
from seepage.audit.table import Footage
from seepage.report import render
from seepage.report.origin import Origin

NOISE = {"defence": "gaussian-noise", "defence_settings": "std=0.01", "trial": "n"}
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as one:
        yield one


def opened(browser: Any, path: Path, text: str, **context: Any) -> Watched:
    path.write_text(text, encoding="utf-8")
    watched = Watched(browser, **context)
    watched.page.goto(path.as_uri())
    watched.page.wait_for_selector("html[data-ready]", state="attached")
    return watched


def filmed(book: Any, trial: str, moments: int = 4, epochs: int = 2) -> None:
    """Shades of grey on the way to the answer."""
    pictures = book.pictures[trial]
    n, *shape = pictures.guess.shape
    shades = np.linspace(0, 200, moments).astype(np.uint8)
    way = np.broadcast_to(shades[None, :, None, None, None], (n, moments, *shape)).copy()
    film = Footage(np.arange(n), np.array([0, 1, 5, 10])[:moments], way, way[:, :epochs])
    book.pictures[trial] = replace(pictures, footage=film)


@pytest.fixture
def page(book: Any, browser: Any, tmp_path: Path) -> Iterator[Watched]:
    for client in ("ann", "bob"):
        book.images([31.25, 22.5, math.nan], client=client)
        book.images([11.0, 9.0, 8.0], client=client, **NOISE)
        book.labels(0.75, wrong=1.0, client=client, trial="l")
    book.learning([0.5, 0.8, 0.85], trial="a")
    book.show("t", [31.25, 22.5, math.nan], client="ann")
    book.show("n", [11.0, 9.0, 8.0], client="bob")
    filmed(book, "t")
    verdicts = gate(book.frame, Policy((Limit("recovered", at_most=0.1),)))
    index = Index("audit", "about", 20.0, (), ("t", "n", "l", "a"))
    notes = {"t": {"seconds": 1.5, "trial": {"seed": 7, "lr": math.inf}}}
    text = render(index, book.frame, book.pictures, verdicts, notes, Origin(("seepage", "audit", "x.toml"), "name = 1"))
    watched = opened(browser, tmp_path / "index.html", text)
    yield watched
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith(("file:", "data:"))] == []
    watched.close()


def until(sheet: Any, selector: str, words: str) -> None:
    """Wait for the first such element to say something."""
    began = time.perf_counter()
    while (found := sheet.locator(selector).first.text_content()) != words:
        assert time.perf_counter() - began < PATIENCE / 1000, f"{selector}: expected {words!r}, got {found!r}"
        sheet.wait_for_timeout(50)


def shown(watched: Watched) -> list[dict[str, str]]:
    """The rows that the table has drawn."""
    return watched.page.eval_on_selector_all(
        "#table .tabulator-row",
        """rows => rows.map(row => Object.fromEntries([...row.querySelectorAll('.tabulator-cell')].map(
            cell => [cell.getAttribute('tabulator-field'), cell.textContent])))""",
    )


def test_the_first_screen_has_verdict_worst_image_and_what_the_attacker_knew(page: Watched) -> None:
    first = page.page.inner_text(".verdict")
    for words in ("Policy broken", "4 of 6 images", "The worst case", "What the attacker knew", "Did not know"):
        assert words in first, words
    assert page.page.locator(".worst img").count() == 2
    for selector in (".policy", ".worst", ".knows"):
        assert page.page.locator(selector).bounding_box()["y"] < 800, selector


def test_rows_are_filtered_and_sorted_from_the_keyboard(page: Watched) -> None:
    sheet = page.page
    sheet.select_option("#explorer select[name=kind]", "values")
    sheet.select_option("#explorer select[name=metric]", "psnr")
    until(sheet, "#shown", "12 of 53 rows")
    assert {row["metric"] for row in shown(page)} == {"psnr"}
    sheet.select_option("#explorer select[name=sort]", "value")
    sheet.focus("#explorer button[name=order]")
    sheet.keyboard.press("Enter")
    until(sheet, "#table .tabulator-cell[tabulator-field=value]", "31.25")
    values = [float(row["value"]) for row in shown(page) if row["value"] != "–"]
    assert values == sorted(values, reverse=True)
    sheet.fill("#explorer input[name=search]", "bob")
    until(sheet, "#shown", "6 of 53 rows")
    assert {row["client"] for row in shown(page)} == {"bob"}
    sheet.fill("#explorer input[name=search]", "nobody is called that")
    sheet.wait_for_selector("text=No row is like that.")


def test_a_number_says_where_it_comes_from(page: Watched) -> None:
    sheet = page.page
    until(sheet, "#shown", "13 of 13 rows")
    sheet.focus("#table .tabulator-row")
    sheet.keyboard.press("ArrowDown")
    sheet.keyboard.press("Enter")
    told = sheet.inner_text("#explained")
    for words in (
        "by bootstrap over clients",
        "Student's t for fewer than six",
        "seed 7",
        "Seepage 0.1.0",
        "PyTorch 2.13.0",
        "as honest-server",
    ):
        assert words in told, words
    assert "seepage audit x.toml" in told
    assert sheet.evaluate("document.activeElement.id") == "explained"


def test_sliders_show_the_way_and_the_epochs(page: Watched) -> None:
    sheet = page.page
    guess = sheet.locator("article[data-film] img.guess").first
    answer = guess.get_attribute("src")
    sheet.focus("article[data-film] input[name=way]")
    sheet.keyboard.press("Home")
    assert "after 0 of 10 iterations" in sheet.inner_text("article[data-film] .slide")
    start = guess.get_attribute("src")
    sheet.keyboard.press("ArrowRight")
    assert "after 1 of 10 iterations" in sheet.inner_text("article[data-film] .slide")
    assert len({answer, start, guess.get_attribute("src")}) == 3
    sheet.focus("article[data-film] input[name=epoch]")
    sheet.keyboard.press("ArrowRight")
    assert "epoch 1 of 2 alone" in sheet.inner_text("article[data-film] .slide")
    assert "after 10 of 10" in sheet.inner_text("article[data-film] .slide")
    sheet.keyboard.press("Home")
    assert guess.get_attribute("src") == answer


def test_galleries_are_chosen_by_client_and_defence(page: Watched) -> None:
    sheet = page.page
    assert sheet.locator("article:visible").count() == 2
    sheet.select_option("#pictures select[name=client]", "bob")
    assert sheet.locator("article:visible").count() == 1
    assert {pair.get_attribute("data-client") for pair in sheet.locator(".pair:visible").all()} == {"bob"}
    sheet.select_option("#pictures select[name=defence]", "no defence")
    assert sheet.locator("article:visible").count() == 0
    assert sheet.is_visible("#none-shown")


def test_distributions_have_a_dot_for_each_client_and_the_guess_beside_them(page: Watched) -> None:
    sheet = page.page
    assert sheet.input_value("#spread select[name=metric]") == "psnr"
    titles = sheet.eval_on_selector_all("#spread-chart title", "all => all.map(one => one.textContent)")
    assert titles.count("client ann: 26.88") == 1
    assert titles.count("psnr_of_constant: 10") == 2
    sheet.select_option("#spread select[name=metric]", "label_accuracy")
    titles = sheet.eval_on_selector_all("#spread-chart title", "all => all.map(one => one.textContent)")
    assert titles.count("client ann: 0.75") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_hangs_over_the_edge_and_words_can_be_read(
    book: Any, browser: Any, tmp_path: Path, scheme: str, width: int
) -> None:
    book.images([31.25, 22.5], attack="an-attack-with-a-very-long-name" * 2, case="c" * 60)
    book.show("t", [31.25, 22.5])
    text = render(Index("x" * 80, "about", 20.0, (), ("t",)), book.frame, book.pictures)
    view = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    watched = opened(browser, tmp_path / "index.html", text, **view)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    dim, ground = (
        watched.page.evaluate(f"getComputedStyle(document.querySelector('#table .tabulator-row')).{name}")
        for name in ("color", "backgroundColor")
    )
    assert contrast(dim, ground) > 7
    assert watched.complaints == []
    watched.close()


def test_a_distribution_is_shown_for_cases_that_have_its_metric(book: Any, browser: Any, tmp_path: Path) -> None:
    book.attribute(0.875, case="columns")
    book.source(0.25, case="sources")
    watched = opened(browser, tmp_path / "index.html", render(Index("audit", "", 20.0, (), ("t",)), book.frame, {}))
    sheet = watched.page
    for metric, case, dot in (
        ("source_accuracy", "sources", "client 0: 0.25"),
        ("attribute_accuracy", "columns", "client 0: 0.875"),
    ):
        sheet.select_option("#spread select[name=metric]", metric)
        assert sheet.input_value("#spread select[name=case]") == case
        titles = sheet.eval_on_selector_all("#spread-chart title", "all => all.map(one => one.textContent)")
        assert dot in titles
    assert watched.complaints == []
    watched.close()


def contrast(first: str, second: str) -> float:
    """Of two colours, as WCAG 2 defines it."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


def test_it_prints_with_what_was_answered_and_without_tools(page: Watched) -> None:
    sheet = page.page
    sheet.focus("article[data-film] input[name=way]")
    sheet.keyboard.press("Home")
    assert sheet.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    sheet.emulate_media(media="print")
    for selector in ("#explorer", ".tools", ".slide", "nav"):
        assert not sheet.locator(selector).first.is_visible(), selector
    for selector in (".verdict", "#numbers table", "#spread-chart svg", "#gate table"):
        assert sheet.locator(selector).first.is_visible(), selector


def test_without_scripts_all_that_must_be_read_is_there(book: Any, browser: Any, tmp_path: Path) -> None:
    book.images([31.25, 22.5])
    book.show("t", [31.25, 22.5])
    (tmp_path / "index.html").write_text(render(Index("a", "", 20.0, (), ("t",)), book.frame, book.pictures))
    watched = Watched(browser, java_script_enabled=False)
    watched.page.goto((tmp_path / "index.html").as_uri())
    for selector in (".sentence", ".worst", "article", "#numbers table"):
        assert watched.page.locator(selector).first.is_visible(), selector
    for selector in ("#explorer", ".tools", ".slide"):
        assert watched.page.locator(f"{selector}:visible").count() == 0, selector
    watched.close()


def test_hostile_names_stay_words(book: Any, browser: Any, tmp_path: Path) -> None:
    columns = ["case", "attack", "attack_settings", "defence", "defence_settings", "threat", "client", "data", "trial"]
    named = {column: f"{HOSTILE}{column}" for column in columns}
    book.images([31.0, 12.0], **named, diagnosis="stuck")
    book.images([30.0], **{**named, "client": f"{HOSTILE}2", "defence": "none", "defence_settings": ""})
    book.show(named["trial"], [31.0, 12.0], client=named["client"])
    filmed(book, named["trial"])
    index = Index(HOSTILE, HOSTILE, 20.0, (), (named["trial"],))
    notes = {named["trial"]: {"seconds": 1.0, "trial": {HOSTILE: HOSTILE}}}
    text = render(index, book.frame, book.pictures, (), notes, Origin((HOSTILE,), HOSTILE))
    watched = opened(browser, tmp_path / "index.html", text)
    for kind in ("means", "values"):
        watched.page.select_option("#explorer select[name=kind]", kind)
        watched.page.wait_for_selector("#table .tabulator-row")
        watched.page.locator("#table .tabulator-row").first.click()
        assert HOSTILE in watched.page.inner_text("#explained")
        watched.page.locator("#table .tabulator-cell[tabulator-field=defence]").first.hover()
    assert watched.page.locator("img[src=x]").count() == 0
    assert watched.page.locator("script").count() == 5
    assert watched.complaints == []
    watched.close()


def test_a_foreign_script_is_not_run_even_where_it_gets_in(book: Any, browser: Any, tmp_path: Path) -> None:
    book.images([31.0])
    text = render(Index("a", "", 20.0, (), ("t",)), book.frame, {})
    watched = opened(browser, tmp_path / "index.html", text.replace("</footer>", "</footer><script>alert(1)</script>"))
    assert any("Content Security Policy" in words for words in watched.complaints)
    assert not any("dialog" in words for words in watched.complaints)
    watched.close()


def test_pictures_without_a_truth_slide_too(book: Any, browser: Any, tmp_path: Path) -> None:
    book.add("update_explained", 0.9, client="ann", item="all", defence="as captured")
    book.show("t", [math.nan, math.nan], client="ann")
    book.pictures["t"] = replace(book.pictures["t"], truth=np.zeros((2, 0, 0, 1), np.uint8))
    filmed(book, "t", epochs=0)
    text = render(Index("captured", "", 20.0, (), ("t",)), book.frame, book.pictures)
    watched = opened(browser, tmp_path / "index.html", text)
    guess = watched.page.locator("article[data-film] img.guess").first
    answer = guess.get_attribute("src")
    watched.page.focus("article[data-film] input[name=way]")
    watched.page.keyboard.press("Home")
    told = watched.page.inner_text("article[data-film] .slide")
    assert "after 0 of 10 iterations" in told
    assert "dB" not in told  # which nobody knows
    assert guess.get_attribute("src") != answer
    watched.page.keyboard.press("End")
    assert guess.get_attribute("src") == answer
    assert watched.complaints == []
    watched.close()


def seconds_of_work(sheet: Any) -> float:
    """That the page has had of the processor: how busy the machine is does not count."""
    session = sheet.context.new_cdp_session(sheet)
    session.send("Performance.enable")
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}["ProcessTime"]


def test_ten_thousand_rows_stay_quick(book: Any, browser: Any, tmp_path: Path) -> None:
    book.images([20.0])
    one = book.frame.iloc[:1]
    many = pd.concat([one] * 10_000, ignore_index=True)
    many["client"] = [str(i % 100) for i in range(10_000)]
    many["item"] = [str(i // 100) for i in range(10_000)]
    many["value"] = np.random.default_rng(0).uniform(5, 40, 10_000)
    text = render(Index("many", "", 20.0, (), ("t",)), many, {})
    assert len(text) < 2_500_000
    watched = opened(browser, tmp_path / "index.html", text)
    sheet = watched.page
    sheet.select_option("#explorer select[name=kind]", "values")
    until(sheet, "#shown", "10000 of 10000 rows")
    assert len(shown(watched)) < 200  # only what can be seen is drawn
    sheet.select_option("#explorer select[name=sort]", "value")
    until(sheet, "#table .tabulator-cell[tabulator-field=value]", f"{many['value'].min():.4g}")
    sheet.fill("#explorer input[name=search]", "nobody")
    until(sheet, "#shown", "0 of 10000 rows")
    assert 0 < seconds_of_work(sheet) < 10  # one is usual
    assert watched.complaints == []
    watched.close()
