"""Two folders of results held against each other."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from seepage.audit.differences import Difference, differences


def rows(values: list[float], metric: str = "psnr", **columns: Any) -> pd.DataFrame:
    """One client for each value."""
    common = {
        "case": "small",
        "attack": "inverting-gradients",
        "attack_settings": "tv=0.1",
        "defence": "none",
        "defence_settings": "",
        "threat": "honest-server",
        "data": "fashion-mnist",
        "seed": 7,
        "item": "0",
        "metric": metric,
    }
    return pd.DataFrame([{**common, "client": str(i), "value": v, **columns} for i, v in enumerate(values)])


def only(found: list[Difference]) -> Difference:
    (one,) = found
    return one


NOISE = np.random.default_rng(1).normal(size=12).tolist()


def test_a_folder_does_not_differ_from_itself() -> None:
    one = only(differences(rows(NOISE), rows(NOISE)))
    assert (one.change.mean, one.change.low, one.change.high, one.verdict) == (0, 0, 0, "the same")


def test_the_chance_of_a_change_is_the_share_of_signs_that_change_as_much() -> None:
    change = [0.3, 0.5, -0.1, 0.9, 0.2, 0.4, 0.8]
    one = only(differences(rows(NOISE[:7]), rows([a + b for a, b in zip(NOISE, change, strict=False)])))
    signed = [abs(np.dot(signs, change)) for signs in product((-1, 1), repeat=7)]
    assert one.p == pytest.approx(np.mean([s >= sum(change) - 1e-9 for s in signed]))
    assert one.paired
    assert one.change.mean == pytest.approx(np.mean(change))
    assert one.change.low < one.change.mean < one.change.high
    assert one.verdict == "beyond chance"


def test_the_same_clients_show_what_other_clients_would_hide() -> None:
    spread = [10.0 * i for i in range(12)]
    better = [v + 1 + 0.1 * n for v, n in zip(spread, NOISE, strict=True)]
    assert only(differences(rows(spread), rows(better))).verdict == "beyond chance"
    other = only(differences(rows(spread), rows(better, seed=8)))
    assert (other.paired, other.verdict) == (False, "within chance")
    assert other.change.mean == pytest.approx(np.mean(better) - np.mean(spread))


def test_few_clients_say_nothing_and_many_differences_are_held_to_more() -> None:
    few = only(differences(rows([1.0, 2.0]), rows([3.0, 4.5])))
    assert math.isnan(few.p)
    assert few.verdict == "too few clients to tell (2)"

    first = pd.concat([rows(NOISE[:6], case=f"case {i}") for i in range(10)])
    second = pd.concat([rows([v + 1 for v in NOISE[:6]], case=f"case {i}") for i in range(10)])
    alone = only(differences(rows(NOISE[:6]), rows([v + 1 for v in NOISE[:6]])))
    assert alone.p == pytest.approx(2 / 64)
    assert [d.verdict for d in differences(first, second)] == ["too few clients to tell (6)"] * 10
    assert differences(first, second)[0].p == pytest.approx(20 / 64)

    first = pd.concat([rows(NOISE, case=f"case {i}") for i in range(10)])
    second = pd.concat([rows([v + 1 for v in NOISE], case=f"case {i}") for i in range(10)])
    assert [d.verdict for d in differences(first, second)] == ["beyond chance"] * 10


def test_lines_of_one_folder_alone_are_named() -> None:
    first = pd.concat([rows([1.0] * 6), rows([2.0] * 6, attack="dlg")])
    second = pd.concat([rows([1.0] * 6), rows([3.0] * 6, attack="sme")])
    found = {d.attack: d for d in differences(first, second)}
    assert [(a, d.verdict) for a, d in found.items()] == [
        ("inverting-gradients", "the same"),
        ("dlg", "gone"),
        ("sme", "new"),
    ]
    assert (found["dlg"].before, found["sme"].after) == (2.0, 3.0)


def test_a_changed_setting_is_said_and_images_of_a_client_count_once() -> None:
    twice = pd.concat([rows([1.0] * 8), rows([3.0] * 8, item="1")])
    one = only(differences(twice, rows([2.0] * 8, attack_settings="tv=0.2")))
    assert one.settings == "tv=0.1 → tv=0.2"
    assert (one.before, one.change.n, one.verdict) == (2.0, 8, "the same")


def test_accuracy_is_that_of_the_last_round_and_other_metrics_are_looked_at_when_asked() -> None:
    rounds = pd.concat([rows([0.1 * i], "accuracy", item=str(i), attack="none") for i in range(3)])
    assert only(differences(rounds, rounds)).before == pytest.approx(0.2)
    both = pd.concat([rows([1.0]), rows([0.5], "ssim")])
    assert [d.metric for d in differences(both, both)] == ["psnr"]
    assert [d.metric for d in differences(both, both, ["ssim"])] == ["ssim"]


def test_strengths_of_one_defence_are_lines_of_their_own() -> None:
    weak, strong = ({"defence": "noise", "defence_settings": f"std={std}"} for std in (0.1, 1.0))
    folder = pd.concat([rows([30.0] * 6, **weak), rows([10.0] * 6, **strong)])
    found = differences(folder, rows([20.0] * 6, **strong))
    assert [(d.defence, d.before, d.verdict) for d in found] == [
        ("noise (std=0.1)", 30.0, "gone"),
        ("noise (std=1.0)", 10.0, "beyond chance"),
    ]


def test_another_strength_of_a_defence_is_the_same_line() -> None:
    one = only(differences(*(rows(NOISE, defence="noise", defence_settings=f"std={std}") for std in (0.1, 1.0))))
    assert (one.defence, one.settings) == ("noise", "std=0.1 → std=1.0")
