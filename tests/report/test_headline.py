from __future__ import annotations

import math
from typing import Any

import pytest

from seepage.metrics.intervals import share_interval
from seepage.report.headline import headline, last_accuracy, tally
from seepage.threat import Fact, ThreatModel

NOISE = {"defence": "gaussian-noise", "defence_settings": "std=0.01"}
CLIP = {"defence": "clip", "defence_settings": "norm=1.0"}


def test_a_leak_that_a_defence_stops_at_a_cost(book: Any) -> None:
    book.images([30.0, 25.0, 12.0])
    book.images([9.0, 8.0, 7.0], **NOISE)
    book.learning([0.5, 0.85])
    book.learning([0.4, 0.82], **NOISE)
    found = headline(book.frame, 20.0)
    assert found.tone == "leak"
    assert found.sentence == (
        "Without a defence, 2 of 3 images came back recognisably (PSNR above 20 dB); with gaussian-noise (std=0.01) "
        "0 of 3 did, at a cost of 3.0 points of accuracy."
    )


def test_rows_that_are_means_of_clients_are_not_taken_for_images(book: Any) -> None:
    book.images([30.0, 25.0, 12.0])
    book.images([9.0, 8.0, 21.0], **NOISE)
    assert headline(book.frame.assign(item="all"), 20.0).sentence.startswith(
        "Without a defence, on average the images of 2 of 3 clients came back recognisably (PSNR above 20 dB); "
        "with gaussian-noise (std=0.01) 1 of 3 still did"
    )


def test_accuracy_that_was_not_measured_is_said_to_be_unknown(book: Any) -> None:
    book.images([30.0])
    book.images([9.0], **NOISE)
    sentence = headline(book.frame, 20.0).sentence
    assert sentence.endswith("0 of 1 did; what that costs in accuracy was not measured.")
    assert "1 of 1 image came back" in sentence


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        (0.8, "at no measurable cost in accuracy"),
        (0.82, "and accuracy was 2.0 points higher"),
        (0.79, "a cost of 1.0 p"),
    ],
)
def test_the_cost_has_the_right_sign(book: Any, accuracy: float, words: str) -> None:
    book.images([30.0])
    book.images([9.0], **NOISE)
    book.learning([0.8])
    book.learning([accuracy], **NOISE)
    assert words in headline(book.frame, 20.0).sentence


def test_of_two_defences_that_stop_it_the_cheaper_is_named(book: Any) -> None:
    book.images([30.0])
    book.images([9.0], **NOISE)
    book.images([9.0], **CLIP)
    book.learning([0.8])
    book.learning([0.5], **NOISE)
    book.learning([0.79], **CLIP)
    assert "with clip (norm=1.0) 0 of 1 did, at a cost of 1.0 points" in headline(book.frame, 20.0).sentence


def test_a_defence_that_lets_some_through_is_not_said_to_stop_it(book: Any) -> None:
    book.images([30.0, 30.0, 30.0])
    book.images([30.0, 9.0, 9.0], **NOISE)
    book.images([30.0, 30.0, 9.0], **CLIP)
    sentence = headline(book.frame, 20.0).sentence
    assert "the best defence measured, gaussian-noise (std=0.01), still let 1 of 3 through" in sentence


def test_defences_that_change_nothing(book: Any) -> None:
    book.images([30.0])
    book.images([31.0], **NOISE)
    assert "with gaussian-noise (std=0.01) 1 of 1 did" in headline(book.frame, 20.0).sentence
    book.images([31.0], **CLIP)
    assert "none of the 2 defences measured lowered that" in headline(book.frame, 20.0).sentence


def test_nothing_leaked_is_no_proof_of_safety(book: Any) -> None:
    book.images([12.0, 14.0])
    found = headline(book.frame, 20.0)
    assert found.tone == "quiet"
    assert found.sentence == (
        "Without a defence, 0 of 2 images came back recognisably (PSNR above 20 dB), on average 13.0 dB where a guess "
        "without any leak scores 10.0 dB; no defence was measured."
    )
    (caution,) = [one for one in found.cautions if "not proof of safety" in one]
    assert caution.endswith("(95 % confidence, 2 images of one client), and other attacks may do better.")
    book.images([9.0], client="another")
    (caution,) = [one for one in headline(book.frame, 20.0).cautions if "not proof of safety" in one]
    assert f"may be up to {100 * share_interval(0, 2).high:.0f} % (95 % confidence, 2 clients)" in caution


def test_nothing_to_stop_is_not_a_success_of_the_defence(book: Any) -> None:
    book.images([12.0])
    book.images([11.0], **NOISE)
    book.images([11.0], **CLIP)
    assert "with none of the 2 defences measured did more come back" in headline(book.frame, 20.0).sentence


def test_a_leak_under_a_defence_alone_is_still_a_leak(book: Any) -> None:
    book.images([12.0])
    book.images([25.0], **NOISE)
    found = headline(book.frame, 20.0)
    assert found.tone == "leak"
    assert "but with gaussian-noise (std=0.01) 1 of 1 did" in found.sentence


def test_without_an_undefended_run_no_gain_is_claimed(book: Any) -> None:
    book.images([9.0, 9.0], **NOISE)
    book.learning([0.8], **NOISE)
    sentence = headline(book.frame, 20.0).sentence
    assert sentence.startswith("With gaussian-noise (std=0.01), 0 of 2 images came back recognisably")
    assert "accuracy reached 80.0 %" in sentence
    assert "what a defence changed is not known" in sentence


def test_only_failures(book: Any) -> None:
    book.failure("not applicable: the threat model hides 'recipe'")
    book.failure("error: ValueError: boom", **NOISE)
    found = headline(book.frame, 20.0)
    assert found.tone == "unknown"
    assert found.sentence == (
        "No attack could be measured (1 not applicable, 1 error), so what the updates give away is not known."
    )


def test_no_rows_and_no_attack(book: Any) -> None:
    assert headline(book.frame, 20.0, ["a", "b"]).sentence == "Nothing was measured: the table has no rows."
    assert headline(book.frame, 20.0, ["a", "b"]).cautions == ("2 of 2 trials have not run yet.",)
    book.learning([0.5])
    assert headline(book.frame, 20.0).sentence.startswith("No attack was run")


def test_tables_are_counted_in_cells_beside_the_guess(book: Any) -> None:
    book.table_rows([0.8, 0.6])
    book.table_rows([0.2, 0.2], **NOISE)
    found = headline(book.frame, 20.0)
    assert found.tone == "leak"
    assert found.sentence == (
        "Without a defence, 70 % of the cells of 2 rows of 5 columns came back (a guess without any leak finds 20 %); "
        "with gaussian-noise (std=0.01) 20 % did, no more than a guess; what that costs in accuracy was not measured."
    )


def test_tables_of_different_columns_have_no_number_of_them(book: Any) -> None:
    book.table_rows([0.8])
    book.table_rows([0.8], case="wider")
    frame = book.frame
    frame.loc[(frame["metric"] == "column_count") & (frame["case"] == "wider"), "value"] = 9
    assert "80 % of the cells of 2 rows came back (" in headline(frame, 20.0).sentence


def test_numbers_that_are_no_table_are_counted_in_features(book: Any) -> None:
    book.arrays([0.8, 0.6])
    assert headline(book.frame, 20.0).sentence == (
        "Without a defence, 70 % of the features of 2 examples came back (a guess without any leak finds 20 %); no "
        "defence was measured."
    )


def test_a_table_found_no_better_than_by_guessing_did_not_leak(book: Any) -> None:
    book.table_rows([0.2, 0.21])
    assert headline(book.frame, 20.0).tone == "quiet"


def test_images_and_tables_side_by_side(book: Any) -> None:
    book.images([30.0])
    book.table_rows([0.8], case="adult", prior=None)
    sentence = headline(book.frame, 20.0).sentence
    assert "1 of 1 image came back recognisably" in sentence
    assert "80 % of the cells of 1 row of 5 columns came back; no defence" in sentence


def test_the_strongest_attack_counts_in_every_case(book: Any) -> None:
    book.images([30.0, 9.0])
    book.images([30.0, 30.0], threat="all-knowing-server")
    book.images([30.0, 9.0, 9.0], case="large")
    (one,) = tally(book.frame, 20.0, "image")
    assert (one.found, one.total) == (3, 5)
    assert [name[3] for name in one.strongest] == ["all-knowing-server", "honest-server"]
    found = headline(book.frame, 20.0)
    assert "3 of 5 images" in found.sentence
    assert (
        "Counted for images is the strongest of 2 pairs of attack and threat model in each of 2 cases."
        in found.cautions
    )


def test_no_guess_is_not_recovered_but_counts(book: Any) -> None:
    book.images([30.0, math.nan])
    assert "1 of 2 images" in headline(book.frame, 20.0).sentence


def test_an_attack_that_returns_no_image_is_not_a_failure_to_recognise_one(book: Any) -> None:
    book.images([math.nan, math.nan])
    assert headline(book.frame, 20.0).sentence.startswith("No attack returned an image")


def test_the_threshold_is_strict_and_named(book: Any) -> None:
    book.images([18.0, 18.5], threshold=18.0)
    assert "1 of 2 images came back recognisably (PSNR above 18 dB)" in headline(book.frame, 18.0).sentence


def test_plain_images_that_anybody_would_guess_are_pointed_out(book: Any) -> None:
    book.images([30.0, 25.0], prior=24.0)
    assert any("2 of the 2 images" in caution for caution in headline(book.frame, 20.0).cautions)


def test_an_easier_life_is_not_a_better_defence(book: Any) -> None:
    book.images([30.0])
    book.images([30.0], threat="all-knowing-server")
    book.images([9.0], **NOISE)  # never met the stronger attacker
    book.images([25.0], **CLIP)
    book.images([9.0], **CLIP, threat="all-knowing-server")
    found = headline(book.frame, 20.0)
    assert "gaussian-noise" not in found.sentence
    assert any("Not every defence met the same attacks" in caution for caution in found.cautions)


def test_labels_that_were_granted_were_not_found(book: Any) -> None:
    book.images([30.0])
    book.add("label_accuracy", 1.0, item="all", threat="mine")
    mine = {"mine": ThreatModel("mine", frozenset({Fact.LABELS}))}
    assert not any("labels" in caution for caution in headline(book.frame, 20.0, (), mine).cautions)
    book.add("label_accuracy", 0.75, item="all")
    assert any("up to 75 % of a client's labels" in c for c in headline(book.frame, 20.0, (), mine).cautions)


def test_stuck_searches_failed_and_missing_trials_are_pointed_out(book: Any) -> None:
    book.images([12.0], outcome="diverged")
    book.images([12.0], client="1")
    book.failure("error: boom", trial="u")
    cautions = " ".join(headline(book.frame, 20.0, ["t", "u", "v"]).cautions)
    assert "In 1 of 2 attacked updates" in cautions
    assert "1 trial gave no number" in cautions
    assert "1 of 3 trials has not run yet" in cautions


def test_last_accuracy_is_that_of_the_last_round(book: Any) -> None:
    book.learning([0.1, 0.9, 0.7])
    assert last_accuracy(book.frame) == {("small", "none", ""): 0.7}


def test_labels_alone_are_told_beside_a_guess(book: Any) -> None:
    book.labels(1.0, wrong=0.0, client="0")
    book.labels(0.9, wrong=0.4, client="1")
    found = headline(book.frame, 20.0)
    assert found.tone == "leak"
    assert found.sentence == (
        "Without a defence, 95 % of the labels of 2 clients were found (a guess without any leak finds 25 %); no "
        "defence was measured."
    )
    assert not any("image" in caution for caution in found.cautions)
    book.labels(0.25, wrong=3.0, **NOISE)
    assert headline(book.frame, 20.0).sentence.endswith(
        "with gaussian-noise (std=0.01) 25 % were, no more than a guess; what that costs in accuracy was not measured."
    )


def test_labels_no_better_than_a_guess_did_not_leak(book: Any) -> None:
    book.labels(0.25, wrong=3.0)
    assert headline(book.frame, 20.0).tone == "quiet"


def test_who_was_told_the_labels_did_not_find_them(book: Any) -> None:
    book.labels(1.0, wrong=0.0, threat="label-aware-server")
    found = headline(book.frame, 20.0)
    assert found.tone == "unknown"
    assert found.sentence.startswith("Only labels were attacked, by attackers who were told them")
    book.labels(0.5, wrong=2.0)
    assert "50 % of the labels of 1 client were found" in headline(book.frame, 20.0).sentence


def test_what_enters_a_layer_is_counted_in_examples(book: Any) -> None:
    book.features([0.01, 0.1, 0.5, math.nan])
    book.features([0.9, 0.8, 0.7, 0.6], **NOISE)
    assert headline(book.frame, 20.0).sentence == (
        "Without a defence, the features of 2 of 4 examples came back (what enters a layer, up to a relative error of "
        "0.1); with gaussian-noise (std=0.01) 0 of 4 did; what that costs in accuracy was not measured."
    )


def test_own_models_are_counted_in_clients(book: Any) -> None:
    book.model(1e-12, client="0")
    book.model(0.2, client="1")
    assert headline(book.frame, 20.0).sentence == (
        "Without a defence, the own models of 1 of 2 clients came back (up to a relative error of 0.1); no defence was "
        "measured."
    )


def test_own_models_that_did_not_come_back_are_not_measured_in_decibels(book: Any) -> None:
    book.model(0.9)
    sentence = headline(book.frame, 20.0).sentence
    assert sentence.startswith("Without a defence, the own models of 0 of 1 client came back")
    assert "dB" not in sentence


def test_columns_and_sources_have_a_sentence_each_with_what_a_guess_finds(book: Any) -> None:
    book.attribute(1.0, client="0")
    book.attribute(0.9, client="1")
    book.source(0.25)
    assert headline(book.frame, 20.0).sentence == (
        "Without a defence, 95 % of the sensitive values of 2 clients were found (a guess without any leak finds "
        "62 %). Without a defence, 25 % of the target records of 1 client were traced to their client (a guess "
        "without any leak finds 12 %); no defence was measured."
    )


def test_classes_that_are_less_like_than_a_guess_are_no_leak(book: Any) -> None:
    book.classes(0.25)
    said = headline(book.frame, 20.0)
    assert said.tone == "quiet"
    assert said.sentence.startswith(
        "Without a defence, a likeness of 25 % to the images of 1 client came back class by class (SSIM)"
    )
    assert "38 %" in said.sentence


def test_images_and_labels_have_a_sentence_each(book: Any) -> None:
    book.images([30.0, 12.0])
    book.add("label_accuracy", 0.5, item="all")
    book.labels(1.0, wrong=0.0)
    found = headline(book.frame, 20.0)
    assert found.sentence == (
        "Without a defence, 1 of 2 images came back recognisably (PSNR above 20 dB). Without a defence, 100 % of the "
        "labels of 1 client were found (a guess without any leak finds 25 %); no defence was measured."
    )
    assert not any(caution.startswith("Counted") for caution in found.cautions)
