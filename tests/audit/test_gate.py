"""The gate: within limits, a limit broken, or not measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from seepage.audit.gate import Limit, Policy, exit_code, gate, read_policy
from seepage.audit.values import SpecError
from seepage.metrics.intervals import mean_interval

NAN = math.nan


def rows(values: list[float], **columns: Any) -> pd.DataFrame:
    """One row per value, the items numbered as they come."""
    common = {
        "trial": "t",
        "metric": "psnr",
        "attack": "inverting-gradients",
        "defence": "none",
        "threat": "honest-server",
        "case": "all",
        "client": "ann",
        "outcome": "reduced",
    }
    return pd.DataFrame([{**common, "item": str(i), "value": v, **columns} for i, v in enumerate(values)])


def failed(**columns: Any) -> pd.DataFrame:
    return rows([NAN], **{"metric": "none", "outcome": "error: RuntimeError: oops", "item": "", **columns})


def outcome(table: pd.DataFrame, **limit: Any) -> str:
    (verdict,) = gate(table, Policy((Limit(**{"metric": "psnr", **limit}),)))
    return verdict.outcome


HUNDRED = [float(v) for v in range(101)]  # 0, 1, …, 100: the 95th percentile is 95


@pytest.mark.parametrize(
    ("statistic", "value"), [("mean", 50.0), ("max", 100.0), ("min", 0.0), ("p95", 95.0), ("last", 100.0)]
)
def test_each_statistic_is_held_against_both_bounds(statistic: str, value: float) -> None:
    table = rows(HUNDRED).sample(frac=1, random_state=0)
    (verdict,) = gate(table, Policy((Limit("psnr", at_most=value, at_least=value, statistic=statistic),)))
    assert (verdict.outcome, verdict.value) == ("within", pytest.approx(value))
    assert outcome(table, statistic=statistic, at_most=value - 0.5) == "broken"
    assert outcome(table, statistic=statistic, at_least=value + 0.5) == "broken"


def test_a_sentence_says_by_how_much_a_limit_is_broken() -> None:
    (verdict,) = gate(rows([30.0]), Policy((Limit("psnr", at_most=25.0),)))
    assert verdict.why == "30 is above 25"


@pytest.mark.parametrize("statistic", ["mean", "max", "min", "p95"])
def test_a_weak_attack_does_not_make_a_strong_one_look_better(statistic: str) -> None:
    table = pd.concat([rows([0.0] * 6, attack="weak"), rows([30.0], attack="strong", defence="clip", case="other")])
    (verdict,) = gate(table, Policy((Limit("psnr", at_most=25.0, statistic=statistic),)))
    assert (verdict.outcome, verdict.value) == ("broken", 30.0)
    assert verdict.why == "30 is above 25 (strong as honest-server, clip, case other)"
    (verdict,) = gate(table, Policy((Limit("psnr", at_most=40.0, statistic=statistic),)))
    assert verdict.why == "30 (strong as honest-server, clip, case other)"


def test_strengths_of_one_defence_are_held_one_by_one_and_told_apart() -> None:
    strengths = [
        rows([value], defence="clip", defence_settings=f"norm={norm}") for value, norm in ((30.0, 9), (5.0, 1))
    ]
    (verdict,) = gate(pd.concat(strengths), Policy((Limit("psnr", at_most=25.0),)))
    assert verdict.why == "30 is above 25 (inverting-gradients as honest-server, clip (norm=9))"


def test_the_least_accurate_must_be_accurate_enough() -> None:
    learned = pd.concat(
        [rows([v], metric="accuracy", attack="none", defence=d) for v, d in ((0.9, "none"), (0.3, "clip"))]
    )
    (verdict,) = gate(learned, Policy((Limit("accuracy", at_least=0.5, statistic="min"),)))
    assert verdict.why == "0.3 is below 0.5 (clip)"


def test_a_mean_says_how_sure_it_is() -> None:
    clients = pd.concat([rows([v, v + 1], client=str(v)) for v in (10.0, 12.0, 14.0)])
    found = mean_interval([10.5, 12.5, 14.5])
    bounds = f"; 95 % interval [{found.low:.4g}, {found.high:.4g}] over 3 clients"
    for limit, why in [(30.0, f"12.5{bounds}"), (15.0, f"12.5{bounds}, to both sides of the limit")]:
        (verdict,) = gate(clients, Policy((Limit("psnr", at_most=limit),)))
        assert verdict.why == why
    (verdict,) = gate(rows([0.5, 0.7], metric="accuracy", attack="none"), Policy((Limit("accuracy", at_least=0.1),)))
    assert verdict.why == "0.6"  # rounds are no clients


@pytest.mark.parametrize("column", ["attack", "defence", "threat", "case"])
def test_a_limit_holds_for_the_rows_that_match_its_patterns(column: str) -> None:
    table = pd.concat([rows([10.0], **{column: "quiet-one"}), rows([90.0], **{column: "loud-one"})])
    assert outcome(table, at_most=20, statistic="max") == "broken"
    assert outcome(table, at_most=20, statistic="max", **{column: "quiet-*"}) == "within"
    assert outcome(table, at_most=20, statistic="max", **{column: "loud-?ne"}) == "broken"
    assert outcome(table, at_most=20, statistic="max", **{column: "absent"}) == "unmeasured"


def test_a_trial_that_failed_leaves_what_it_would_have_measured_unmeasured() -> None:
    table = pd.concat([rows([10.0]), failed(defence="clip")])
    (verdict,) = gate(table, Policy((Limit("psnr", at_most=20),)))
    assert (verdict.outcome, math.isnan(verdict.value)) == ("unmeasured", True)
    assert "error: RuntimeError: oops" in verdict.why
    assert outcome(table, at_most=20, defence="none") == "within"
    assert outcome(table, at_most=20, defence="clip") == "unmeasured"


@pytest.mark.parametrize("statistic", ["mean", "max", "min", "p95", "last"])
def test_a_value_that_is_no_number_is_never_within(statistic: str) -> None:
    assert outcome(rows([10.0, NAN]), at_most=20, statistic=statistic) == "unmeasured"
    assert outcome(rows([10.0, NAN]), at_least=5, statistic=statistic) == "unmeasured"


def test_the_last_round_may_be_measured_where_an_earlier_one_was_not() -> None:
    assert outcome(rows([NAN, 10.0]), at_most=20, statistic="last") == "within"


def test_the_last_round_is_that_of_each_federation_however_long() -> None:
    short = rows([0.1, 0.2], metric="accuracy", case="short", trial="a")
    long = rows([0.1, 0.5, 0.9], metric="accuracy", case="long", trial="b")
    (verdict,) = gate(pd.concat([short, long]), Policy((Limit("accuracy", at_least=0.8, statistic="last"),)))
    assert (verdict.outcome, verdict.value) == ("broken", pytest.approx(0.2))


def test_rounds_are_counted_as_numbers() -> None:
    table = rows([0.1] * 9 + [0.9, 0.2], metric="accuracy")
    assert outcome(table, metric="accuracy", at_least=0.5, statistic="last") == "broken"


def test_what_has_no_rounds_has_no_last_one() -> None:
    assert outcome(rows([0.5], metric="recovered", item="all"), metric="recovered", at_most=1, statistic="last") == (
        "unmeasured"
    )


def test_a_metric_that_nobody_measured_is_unmeasured_and_those_measured_are_named() -> None:
    (verdict,) = gate(rows([1.0]), Policy((Limit("ssim", at_most=0.5),)))
    assert verdict.outcome == "unmeasured"
    assert verdict.why == "no row of 'ssim' matches; there are ['psnr']"


def test_an_empty_table_is_unmeasured() -> None:
    assert outcome(rows([1.0]).iloc[:0], at_most=1.0) == "unmeasured"


def test_a_broken_limit_outweighs_an_unmeasured_one() -> None:
    within, broken, unmeasured = Limit("psnr", at_most=20), Limit("psnr", at_most=5), Limit("ssim", at_most=1)

    def code(*limits: Limit) -> int:
        return exit_code(gate(rows([10.0]), Policy(limits)))

    assert code(within) == 0
    assert code(within, unmeasured) == 2
    assert code(within, unmeasured, broken) == 1


def test_a_policy_is_read_as_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[limit]]\nmetric = "psnr"\nat_most = 20\nstatistic = "p95"\ndefence = "top-*"\n')
    assert read_policy(path) == Policy((Limit("psnr", 20.0, statistic="p95", defence="top-*"),))


WRONG: dict[str, tuple[str, list[str]]] = {
    "no TOML": ("limit = \n", ["expected TOML"]),
    "nothing": ("", ["expected the key 'limit'"]),
    "no limit": ("limit = []", ["expected at least one [[limit]], got none"]),
    "unknown key": ("limits = []", ["unknown key 'limits'", "['limit']"]),
    "unknown key of a limit": (
        '[[limit]]\nmetric = "psnr"\nmax = 3',
        ["limit[0]: unknown key 'max'", "'at_least', 'at_most'"],
    ),
    "no metric": ("[[limit]]\nat_most = 3", ["limit[0]: expected the key 'metric', got only ['at_most']"]),
    "no bound": ('[[limit]]\nmetric = "psnr"', ["limit[0]: expected `at_most` or `at_least`, got neither"]),
    "word for a bound": (
        '[[limit]]\nmetric = "psnr"\nat_most = "low"',
        ["limit[0].at_most: expected float, got 'low'"],
    ),
    "bound that is no number": (
        '[[limit]]\nmetric = "psnr"\nat_most = nan',
        ["limit[0].at_most: expected a finite number, got nan"],
    ),
    "unknown statistic": (
        '[[limit]]\nmetric = "psnr"\nat_most = 3\nstatistic = "median"',
        ["limit[0].statistic: expected one of ['mean', 'max', 'min', 'p95', 'last'], got 'median'"],
    ),
    "word for a limit": ('limit = ["psnr"]', ["limit[0]: expected a table, got 'psnr'"]),
    "one table for the list": ('[limit]\nmetric = "psnr"', ["limit: expected a list"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_policy_fails_with_its_name_the_key_and_what_was_expected(what: str, tmp_path: Path) -> None:
    text, pieces = WRONG[what]
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as failed:
        read_policy(path)
    assert str(failed.value).startswith(f"{path}: ")
    for piece in pieces:
        assert piece in str(failed.value)


def test_an_absent_policy_and_a_folder_fail_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.toml: expected a policy file, got none"):
        read_policy(tmp_path / "absent.toml")
    with pytest.raises(SpecError, match="expected a file"):
        read_policy(tmp_path)


def test_labels_that_were_found_can_be_limited() -> None:
    table = rows([0.25, 1.0], metric="label_accuracy", attack="count-labels", item="all", outcome="answered")
    assert outcome(table, metric="label_accuracy", at_most=0.5) == "broken"
    assert outcome(table, metric="label_accuracy", at_most=0.7, attack="count-*") == "within"
    # An attack on labels alone says nothing about images, for better or worse.
    assert outcome(table, metric="recovered", at_most=0.0) == "unmeasured"
    both = pd.concat([table, rows([0.0], metric="recovered", item="all")])
    assert outcome(both, metric="recovered", at_most=0.0) == "within"


@pytest.mark.parametrize(("defence", "outcome"), [("as captured", "broken"), ("none", "unmeasured")])
def test_an_attack_that_was_tried_on_a_capture_and_does_not_fit_is_no_gap(defence: str, outcome: str) -> None:
    """Which attacks meet a capture is chosen for it; in an audit a refusal is of an attack that somebody asked for."""
    common = {"defence": defence, "threat": "t", "case": "c", "client": "0", "item": "all"}
    rows = pd.DataFrame(
        [
            {**common, "attack": "a", "metric": "label_accuracy", "value": 1.0, "outcome": "answered"},
            {**common, "attack": "b", "metric": "none", "value": math.nan, "outcome": "not applicable: no ReLU"},
        ]
    )
    limits = Policy((Limit("label_accuracy", at_most=0.5),))
    assert [verdict.outcome for verdict in gate(rows, limits)] == [outcome]
    lost = rows.assign(outcome=["answered", "error: out of memory"])
    assert [verdict.outcome for verdict in gate(lost, limits)] == ["unmeasured"]
