"""One look for all pages: colours that everybody can tell apart, said once, and a frontier that reads on any screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from skimage.color import rgb2lab

from common.browser import Watched, launched
from seepage.audit.frontier import Bound, Point
from seepage.audit.gate import Limit, Verdict
from seepage.metrics.intervals import METHOD_OF_SHARES, Interval
from seepage.report.frontier import write_frontier
from seepage.report.pages import packaged

LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in packaged("palette.css").split("@media screen")
)

# Machado, Oliveira and Fernandes, 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# https://doi.org/10.1109/TVCG.2009.113: what is left of linear red, green and blue without one kind of cone.
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> NDArray[np.float64]:
    part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    low, high = sorted(float(linear(colour) @ (0.2126, 0.7152, 0.0722)) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def seen(colour: str, sight: str) -> NDArray[np.float64]:
    """The place in CIELAB, in which 2.3 is a difference that can just be noticed."""
    left = np.clip(SIGHT[sight] @ linear(colour), 0, 1)
    shown = np.where(left <= 0.0031308, 12.92 * left, 1.055 * left ** (1 / 2.4) - 0.055)
    place: NDArray[np.float64] = rgb2lab(shown)
    return place


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_series_are_told_apart_whatever_the_colour_vision(palette: dict[str, str], sight: str) -> None:
    places = {f"s{i}": seen(palette[f"s{i}"], sight) for i in range(7)}
    near = {pair: float(np.linalg.norm(places[pair[0]] - places[pair[1]])) for pair in combinations(places, 2)}
    assert min(near.values()) > 18, min(near, key=lambda pair: near[pair])
    assert all(contrast(palette[name], palette["card"]) > 3 for name in places)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_words_are_read_on_every_ground(palette: dict[str, str]) -> None:
    grounds = {"leak": "leak-soft", "calm": "calm-soft", "warn": "warn-soft", "ink": "head", "accent": "head"}
    for word in ("ink", "soft", "accent", "leak", "calm", "warn"):
        for ground in ("page", "card", grounds.get(word, "head")):
            assert contrast(palette[word], palette[ground]) >= 4.5, (word, ground)


def test_colours_are_said_once() -> None:
    folders = [resources.files("seepage.report"), resources.files("seepage.ui") / "pages"]
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith((".css", ".html"))]
    assert [file.name for file in files if "--accent:" in file.read_text(encoding="utf-8")] == ["palette.css"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as one:
        yield one


def point(defence: str, settings: str, leak: float, accuracy: float, outcome: Any, bound: Bound | None = None) -> Point:
    verdict = Verdict(Limit("recovered", at_most=0.1), leak, outcome, f"{leak}")
    learnt = Interval(accuracy, accuracy - 0.6, accuracy + 0.1, 2)
    found = Interval(leak, max(leak - 0.1, 0.0), leak + 0.2, 12)
    return Point("all", defence, settings, found, "a", "t", learnt, 1000.0, 3.0, bound, (verdict,))


@pytest.mark.parametrize(("media", "width"), [("screen", 360), ("screen", 1280), ("print", 702)])  # A4 has 702
def test_the_frontier_reads_on_a_phone_and_on_paper(browser: Any, tmp_path: Path, media: str, width: int) -> None:
    found = [
        point("none", "", 0.8, 0.7, "broken"),
        point("<img src=x onerror=alert(1)>", "std=0.1", 0.0, 0.65, "within"),
        point("dp-sgd", "noise=1.0", 0.0, 0.3, "within", Bound(0.1, 0.5)),
    ]
    page = write_frontier(tmp_path, "wards", "about", found, "recovered", 2, 12)
    watched = Watched(browser, viewport={"width": width, "height": 800})
    watched.page.emulate_media(media=media)
    watched.page.goto(page.as_uri())
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    told = watched.page.inner_text("body")
    for words in ("The cheapest setting within the policy", METHOD_OF_SHARES, "n = 12", "mean recovered at most 0.1"):
        assert words in told, words
    # Two seeds have an interval of seventy points: the axis is about the means all the same.
    ticks = [float(text) for text in watched.page.locator(".chart text[text-anchor=end]").all_text_contents()]
    assert (min(ticks), max(ticks)) == (20.0, 80.0)
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith("file:")] == []
    watched.close()
