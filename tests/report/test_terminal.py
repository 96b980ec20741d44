"""The table in a terminal: eighty columns, and no column without a number."""

from __future__ import annotations

import math
from typing import Any

import pytest

from seepage.audit.differences import differences
from seepage.audit.experiment import Expectation
from seepage.audit.summary import Index, Planned
from seepage.metrics.intervals import METHOD_OF_SHARES, share_interval
from seepage.report.terminal import print_comparison, print_differences, print_findings, print_unfinished

NOISE = {"defence": "gaussian-noise", "defence_settings": "std=0.01"}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(book: Any, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """The heads of the columns, and all that was printed on one line."""
    print_findings(book.frame, 20.0)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "nan" not in text
    heads = zip(*(line.strip("┃").split("┃") for line in text.splitlines() if line.startswith("┃")), strict=True)
    return [" ".join(" ".join(parts).split()) for parts in heads], " ".join(text.split())


def test_images_show_their_likeness(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([30.0, 10.0])
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Likeness, dB", "No leak", "Came back"]
    assert "50%" in text
    book.learning([0.5])
    assert printed(book, capsys)[0][-1] == "Accuracy"


def test_labels_alone_show_share_errors_and_confidence(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.labels(0.75, wrong=1.0, diagnosis="labels-wrong")
    book.labels(1.0, wrong=0.0, client="1", diagnosis="recovered")
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Labels", "No leak", "Wrong", "Confidence"]
    for words in ("88%", "25%", "0.5 of 4", "0.75", "Why labels were not all found, by attacked update: wrong labels"):
        assert words in text, words
    assert "PSNR" not in text


def test_features_alone_show_their_error(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.features([0.05, 0.15])
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Relative error"]
    assert "0.100" in text
    assert "0 is exact" in text


def test_models_alone_show_their_error_and_that_of_the_last_answer(
    book: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    book.model(1e-12)
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Relative error", "Last answer"]
    assert "1.0e-12" in text
    assert "trained alone" in text


def test_columns_and_sources_stand_beside_what_a_guess_finds(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.attribute(0.9)
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Values", "No leak"]
    assert "attribute-inversion │ 0.900 │ 0.625" in text
    assert "the most frequent value" in text


def test_numbers_of_another_sort_have_a_table_of_their_own(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.attribute(0.9, case="columns")
    book.source(0.25, case="sources")
    book.model(0.1, case="models")
    print_findings(book.frame, 20.0)
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("┏") == 3
    assert "columns, honest-server, no defence" in text  # the title says of what it is
    assert "attribute-inversion │ 0.900 │ 0.625" in text
    assert "source-inference │ 0.250 │ 0.125" in text
    assert "– │" not in text


def test_classes_stand_beside_the_better_guess(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.classes(0.25)
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Classes", "No leak"]
    assert "model-inversion │ 0.250 │ 0.375" in text


def test_images_and_labels_share_a_table(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([30.0])
    book.labels(0.75, wrong=1.0)
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Likeness, dB", "No leak", "Came back", "Labels"]
    assert "count-labels │ – │ – │ – │ 75%" in text


def test_rows_of_tables_show_their_cells_beside_a_guess(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.table_rows([0.8])
    heads, text = printed(book, capsys)
    assert heads[1:] == ["Cells", "No leak"]
    assert "│ 0.800 │ 0.2 │" in text


def test_a_wide_terminal_has_room_for_whole_rows(
    book: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    book.table_rows([0.8, 1.0])
    monkeypatch.setenv("COLUMNS", "130")
    print_findings(book.frame, 20.0)
    text = " ".join(capsys.readouterr().out.split())
    assert "┃ Cells ┃ No leak ┃ Whole rows ┃" in text
    assert "│ 0.2 │ 50% │" in text


def test_texts_stand_beside_a_guess(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.add("token_accuracy", 0.75)
    book.add("token_accuracy_of_public_texts", 0.125)
    book.add("rouge1", 0.875)
    heads, text = printed(book, capsys)
    assert heads[1:] == ["Tokens in place", "No leak", "ROUGE-1"]
    assert "│ 0.750 │ 0.125 │ 0.875" in text


def test_images_and_rows_share_a_table(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([30.0])
    book.table_rows([0.8], case="adult")
    heads, text = printed(book, capsys)
    assert heads[1:] == ["Likeness, dB", "Cells", "No leak", "Came back"]
    assert "│ 30.0 │ – │ 10 │ 100% │" in text
    assert "│ – │ 0.800 │ 0.2 │ – │" in text


def test_numbers_that_are_no_table_show_their_error(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.arrays([0.8])
    assert printed(book, capsys)[0][1:] == ["Error", "Came back"]


def test_the_reason_of_a_failure_stands_under_the_table(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "not applicable: the threat model 'eavesdropper' does not grant 'recipe'; it grants ['count']"
    book.failure(reason, threat="eavesdropper")
    heads, text = printed(book, capsys)
    assert heads == ["Attack", "Outcome"]
    assert f"1 trial without numbers, {reason}" in text
    book.labels(1.0, wrong=0.0)
    book.failure(reason, threat="eavesdropper", **NOISE)
    heads, text = printed(book, capsys)
    assert "Labels" in heads
    assert "2 trials without numbers, not applicable" in text


def test_an_attack_that_gave_no_image_has_no_likeness(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([math.nan])
    assert printed(book, capsys)[0] == ["Attack", "No leak", "Came back"]


def test_a_wide_terminal_has_the_interval_of_every_mean(
    book: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(8):
        book.images([30.0 + i], client=str(i))
    monkeypatch.setenv("COLUMNS", "130")
    print_findings(book.frame, 20.0)
    text = " ".join(capsys.readouterr().out.split())
    back = share_interval(8, 8)
    assert f"100% [{100 * back.low:.0f}, 100]" in text
    assert f"n = 8, seed 7; [95 % interval]: {METHOD_OF_SHARES}" in text


def test_cases_that_are_not_complete_are_named(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([30.0], case="half", trial="1")
    book.images([30.0], case="whole", trial="3")
    plan = tuple(Planned(case, "inverting-gradients", "none", n) for case, n in (("half", 2), ("whole", 1), ("new", 4)))
    expect = tuple(Expectation(case, "recovered", reported=1.0) for case in ("half", "whole", "new"))
    index = Index("e", "", 20.0, expect, tuple("1234567"), plan)
    print_unfinished(book.frame, index)
    print_comparison(book.frame, index)
    text = " ".join(capsys.readouterr().out.split())
    assert "Not complete: case half, 1 of 2 trials." in text
    assert "Not begun: 1 case of 3." in text
    assert "whole, " not in text
    assert text.count("as reported") == 2
    assert text.count("so far") == 1
    assert "not measured" in text


def test_a_complete_audit_says_nothing_of_it(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([30.0])
    for plan in ((), (Planned("small", "inverting-gradients", "none", 1),)):
        print_unfinished(book.frame, Index("e", "", 20.0, (), ("t",), plan))
    assert capsys.readouterr().out == ""


def test_accuracy_is_compared_without_attack_and_clients(book: Any, capsys: pytest.CaptureFixture[str]) -> None:
    book.images([30.0])
    book.learning([0.5, 0.8])
    print_differences(differences(book.frame, book.frame.assign(value=book.frame["value"] * 0.9)))
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "none" not in said
    assert "one training" in said
    assert "too few" not in said.partition("accuracy")[2].partition("└")[0]
