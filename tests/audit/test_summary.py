"""What a person reads: one line per attack, defence and threat model, and ours beside the paper's."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from seepage.audit.diagnosis import Cause
from seepage.audit.experiment import Expectation
from seepage.audit.summary import MEASURES, Index, Planned, Progress, answers, compare, summarise


def row(metric: str, value: float, **columns: Any) -> dict[str, Any]:
    common = {
        "trial": "t",
        "case": "all",
        "attack": "a",
        "attack_settings": "steps=1",
        "defence": "none",
        "defence_settings": "",
        "threat": "honest-server",
        "client": "0",
        "item": "0",
        "seed": 0,
        "outcome": "reduced",
    }
    return {**common, "metric": metric, "value": value, **columns}


def learning(value: float, **columns: Any) -> dict[str, Any]:
    none = {"attack": "none", "attack_settings": "", "threat": "none", "client": "all", "outcome": "measured"}
    return row("accuracy", value, **{**none, **columns})


def test_lines_are_those_of_the_table_in_order_of_appearance() -> None:
    rows = pd.DataFrame(
        [
            row("psnr", 10.0, defence="z"),
            row("psnr", 20.0, defence="a", threat="t2"),
            row("psnr", 30.0, defence="a", threat="t1"),
            row("psnr", 12.0, defence="z"),
        ]
    )
    lines = summarise(rows)
    assert [(line.defence, line.threat, line.mean("psnr")) for line in lines] == [
        ("z", "honest-server", 11.0),
        ("a", "t2", 20.0),
        ("a", "t1", 30.0),
    ]


def test_attacks_with_other_settings_are_other_lines() -> None:
    rows = pd.DataFrame([row("psnr", 10.0), row("psnr", 20.0, attack_settings="steps=2")])
    assert [line.mean("psnr") for line in summarise(rows)] == [10.0, 20.0]


def test_every_client_weighs_the_same_however_many_images_it_has() -> None:
    rows = pd.DataFrame(
        [row("psnr", 10.0, client="0", item=str(i)) for i in range(9)] + [row("psnr", 20.0, client="1")]
    )
    (line,) = summarise(rows)
    assert (line.mean("psnr"), line.metrics["psnr"].n, line.clients) == (15.0, 2, 2)


def test_accuracy_is_that_of_the_last_round_under_the_same_defence() -> None:
    rows = pd.DataFrame(
        [
            row("psnr", 10.0),
            row("psnr", 10.0, defence="clip", defence_settings="norm=1.0"),
            row("psnr", 10.0, defence="top-k"),
            learning(0.25, item="1"),
            learning(0.75, item="2"),
            learning(0.5, item="1", defence="clip", defence_settings="norm=1.0"),
        ]
    )
    assert [line.accuracy for line in summarise(rows)] == pytest.approx([0.75, 0.5, math.nan], nan_ok=True)


def test_failures_are_told_beside_what_was_measured() -> None:
    rows = pd.DataFrame([row("psnr", 10.0), row("none", math.nan, client="", item="", outcome="error: oops")])
    (line,) = summarise(rows)
    assert (line.mean("psnr"), line.failures, line.clients) == (10.0, ("error: oops",), 1)
    assert math.isnan(line.mean("ssim"))


def compared(expectation: Expectation, *rows: dict[str, Any]) -> tuple[float | None, str]:
    (comparison,) = compare(pd.DataFrame(rows), Index("e", "", 20.0, (expectation,), ()))
    return (None if comparison.ours is None else comparison.ours.mean), comparison.verdict


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        ({"reported": 20.0, "tolerance": 1.0}, "as reported"),
        ({"reported": 24.0, "tolerance": 1.0}, "-3.5 against the paper"),
        ({"at_least": 20.0}, "target met"),
        ({"at_least": 22.0}, "target of 22 missed"),
        ({"reported": 20.5, "at_least": 22.0}, "as reported, target of 22 missed"),
    ],
)
def test_ours_stands_beside_the_papers_with_a_verdict(expected: dict[str, float], verdict: str) -> None:
    assert compared(Expectation("all", "psnr", **expected), row("psnr", 20.5)) == (20.5, verdict)


def test_an_expectation_is_about_its_case_metric_attack_and_defence() -> None:
    rows = [
        row("psnr", 10.0),
        row("ssim", 0.5),
        row("psnr", 20.0, case="other"),
        row("psnr", 30.0, attack="b"),
        row("psnr", 40.0, attack="b", defence="clip"),
    ]
    assert compared(Expectation("other", "psnr", 20.0), *rows)[0] == 20.0
    assert compared(Expectation("all", "psnr", 10.0, attack="a"), *rows)[0] == 10.0
    assert compared(Expectation("all", "psnr", 10.0, attack="b", defence="clip"), *rows)[0] == 40.0


def test_what_was_not_measured_is_said_so() -> None:
    assert compared(Expectation("all", "lpips", 0.1), row("psnr", 20.0)) == (None, "not measured")
    assert compared(Expectation("all", "psnr", 0.1), row("psnr", math.nan)) == (None, "not measured")


def test_causes_are_counted_once_for_every_attacked_update() -> None:
    rows = pd.DataFrame(
        [
            row(metric, 1.0, client=client, diagnosis=diagnosis)
            for metric in ("psnr", "ssim")
            for client, diagnosis in (("0", "labels-wrong+stuck"), ("1", "labels-wrong"), ("2", "recovered"))
        ]
    )
    (line,) = summarise(rows)
    assert line.causes == {Cause.LABELS_WRONG: 2, Cause.STUCK: 1}
    assert next(iter(line.causes)) is Cause.LABELS_WRONG
    (old,) = summarise(rows.drop(columns="diagnosis"))
    assert old.causes == {}


def test_what_is_not_finished_is_said_to_be_so() -> None:
    plan = (Planned("all", "a", "none", 3), Planned("all", "b", "none", 1), Planned("all", "none", "none", 1))
    expect = (
        Expectation("all", "psnr", reported=20.0, attack="a"),
        Expectation("all", "psnr", attack="b"),
        Expectation("all", "accuracy", reported=0.5),
        Expectation("all", "psnr", at_least=19.0),
    )
    index = Index("e", "", 20.0, expect, ("1", "2", "3", "4", "5"), plan)
    found = pd.DataFrame([row("psnr", 20.0, trial="2"), row("psnr", 18.0, trial="4", attack="b")])
    verdicts = [one.verdict for one in compare(found, index)]
    assert verdicts == [
        "as reported, so far (1 of 3 trials)",
        "",  # complete, and nothing to hold it against
        "not measured",
        "target met, so far (2 of 4 trials)",
    ]
    assert index.case_progress(found) == {"all": Progress(2, 5)}
    complete = pd.DataFrame([row("psnr", 20.0, trial=str(i)) for i in range(1, 6)])
    assert compare(complete, index)[0].verdict == "as reported"


def test_a_line_is_about_the_most_that_its_attack_answers() -> None:
    rows = pd.DataFrame(
        [
            row("psnr", 10.0, attack="images"),
            row("label_accuracy", 1.0, attack="images", item="all"),
            row("cell_accuracy", 1.0, attack="rows"),
            row("exact_match", 1.0, attack="rows"),
            row("exact_match", 1.0, attack="arrays"),
            row("token_accuracy", 1.0, attack="texts"),
            row("token_bag", 1.0, attack="texts", item="all"),
            row("token_bag", 1.0, attack="tokens", item="all"),
            row("feature_error", 0.1, attack="features"),
            row("label_accuracy", 1.0, attack="features", item="all"),
            row("relative_error", 0.1, attack="models", item="all"),
            row("relative_error", 0.1, attack="images"),
            row("attribute_accuracy", 0.9, attack="columns", item="all"),
            row("source_accuracy", 0.3, attack="sources", item="all"),
            row("class_ssim", 0.3, attack="classes", item="all"),
            row("label_accuracy", 0.5, attack="labels", item="all"),
            row("none", math.nan, attack="nothing"),
            learning(0.5),
        ]
    )
    kinds = {line.attack: line.kind for line in summarise(rows)}
    expected = {
        "images": "image",
        "rows": "row",
        "arrays": "array",
        "texts": "text",
        "tokens": "token",
        "features": "feature",
        "models": "model",
        "columns": "attribute",
        "sources": "source",
        "classes": "class",
        "labels": "label",
        "nothing": None,
    }
    assert kinds == expected
    for kind in MEASURES:
        assert [expected[name] for name in answers(rows, kind)["attack"]] == [kind]
    assert answers(rows[:0], "label").empty


def test_reported_accuracy_is_compared_with_the_last_round() -> None:
    rows = pd.DataFrame([learning(value, item=str(i)) for i, value in enumerate([0.1, 0.4, 0.7])])
    expected = Expectation("all", "accuracy", reported=0.72, tolerance=0.05)
    (only,) = compare(rows, Index("e", "", 20.0, (expected,), ()))
    assert only.ours is not None
    assert only.ours.mean == pytest.approx(0.7)
    assert only.verdict == "as reported"


def test_accuracy_of_several_seeds_is_the_mean_of_their_last_rounds() -> None:
    rows = [row("psnr", 10.0), *(learning(0.1 * n, item=str(n), seed=n % 2) for n in range(1, 5))]
    assert summarise(pd.DataFrame(rows))[0].accuracy == pytest.approx((0.3 + 0.4) / 2)
