"""What to do now follows from what was measured, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from seepage.audit.diagnosis import Cause
from seepage.audit.gate import Limit, Verdict
from seepage.report.advice import advice
from seepage.report.headline import every_tally
from seepage.threat import THREATS

NOISE = {"defence": "gaussian-noise", "defence_settings": "std=0.01"}
CLIP = {"defence": "clip", "defence_settings": "norm=1.0"}
HELD = [Verdict(Limit("psnr", at_most=1.0), 0.0, "within", "")]


def said(book: Any, causes: dict[Cause, int] | None = None, verdicts: list[Verdict] | None = None) -> str:
    rows = book.frame
    return " ".join(advice(rows, every_tally(rows, 20.0, THREATS), THREATS, causes or {}, verdicts or []))


def test_the_cheapest_defence_that_held_is_named(book: Any) -> None:
    book.images([30.0, 25.0])
    book.images([9.0, 8.0], **NOISE)
    book.images([9.0, 8.0], **CLIP)
    book.learning([0.8])
    book.learning([0.5], **NOISE)
    book.learning([0.79], **CLIP)
    words = said(book)
    assert (
        "Against the loss of images, clip (norm=1.0) is the cheapest defence that held here: none came back." in words
    )
    assert "`informed-server`" in words


def test_a_defence_that_let_data_through_is_not_to_be_relied_on(book: Any) -> None:
    book.images([30.0, 25.0])
    book.images([28.0, 8.0], **NOISE)
    words = said(book)
    assert "None of the defences measured here keeps images in" in words
    assert "held here" not in words


def test_who_measured_no_defence_is_told_to(book: Any) -> None:
    book.images([30.0])
    book.labels(1.0, wrong=0.0)
    assert "No defence was measured against the loss of images and labels" in said(book)
    assert "informed-server" not in said(book)


def test_an_attacker_who_knew_the_defence_is_not_asked_for_again(book: Any) -> None:
    book.images([9.0], **NOISE, threat="informed-server")
    assert "informed-server" not in said(book)


def test_silence_is_not_safety(book: Any) -> None:
    book.images([9.0])
    assert "That is true of these attacks alone" in said(book)
    book = type(book)()
    book.failure("error: oops")
    assert said(book).startswith("Nothing was scored")


@pytest.mark.parametrize("clients", [3, 20])
def test_few_clients_short_searches_and_no_policy_are_said(book: Any, clients: int) -> None:
    for client in range(clients):
        book.images([30.0], client=str(client))
    assert ("these are 3 clients" in said(book)) == (clients == 3)
    assert "in 2 updates the search stopped short" in said(book, {Cause.STUCK: 2})
    assert "short" not in said(book)
    assert "seepage gate" in said(book)
    assert "seepage gate" not in said(book, verdicts=HELD)
