from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.metrics import METRICS
from seepage.metrics.pixels import psnr, ssim
from seepage.metrics.score import Scored, score, score_images, score_tabular
from seepage.perceptual import LpipsWeights
from seepage.spec import DataSpec, Examples

SPEC = DataSpec((3, 12, 12), classes=4, low=0.0, high=255.0, mean=(100.0, 120.0, 140.0), std=(50.0, 60.0, 70.0))
TABLE = DataSpec((5,), classes=3, mean=(1.0, 2.0, 3.0, 4.0, 5.0), std=(1.0, 10.0, 100.0, 1.0, 1.0))
MIXED = replace(TABLE, categories=((2, 5),))


def images(n: int, seed: int = 0) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    x = SPEC.normalise(255 * torch.rand(n, 3, 12, 12, generator=rng))
    return Examples(x, torch.randint(0, 4, (n,), generator=rng))


def rows(n: int, seed: int = 0) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(n, 5, generator=rng), torch.randint(0, 3, (n,), generator=rng))


def values(scored: Scored, metric: str) -> list[float]:
    return [one.value for one in scored.scores if one.metric == metric]


def names(scored: Scored) -> set[str]:
    return {one.metric for one in scored.scores}


def toy_weights() -> LpipsWeights:
    rng = torch.Generator().manual_seed(0)
    sizes = ((3, 11), (2, 5), (2, 3), (2, 3), (2, 3))
    kernels = [torch.randn(2, before, side, side, generator=rng) for before, side in sizes]
    return LpipsWeights(tuple((kernel, torch.zeros(2)) for kernel in kernels), (torch.ones(2),) * 5)


def test_everything_that_can_be_measured_is_and_has_a_name() -> None:
    truth = images(3)
    full = score(
        truth.x,
        truth.y,
        truth,
        SPEC,
        public=images(5, seed=1),
        lpips_weights=toy_weights(),
        papers=("dimitrov2022", "zhao2023", "yue2023"),
        features=(rows(3).x, rows(3).x),
        confidence=0.5,
        tagger=lambda pixels: pixels.mean((2, 3)) > 0.5,
    )
    table = score(rows(3).x, rows(3).y, rows(3), MIXED, public=rows(9, seed=1), certainty=torch.rand(3, 3))
    of_models = {"relative_error_of_global_model", "relative_error_of_last_answer"}  # see `tests/audit/test_optimum.py`
    of_messages = {"wire_bytes", "epsilon"}  # see `tests/audit/test_run.py`
    of_text = {name for name in METRICS if name.startswith(("token_", "rouge"))}  # see `tests/metrics/test_text.py`
    unscored = {"update_explained", "restart_psnr"}  # see `tests/inspect`
    beginnings = ("attribute_", "source_", "class_", "model_accuracy", "prediction_distance", "zest")
    of_federations = {name for name in METRICS if name.startswith(beginnings)}  # see `tests/audit`
    elsewhere = of_models | of_messages | of_text | unscored | of_federations
    assert names(full) | names(table) == set(METRICS) - elsewhere
    for scored in (full, table):
        for metric in names(scored):
            items = [one.item for one in scored.scores if one.metric == metric]
            assert items == (["all"] if METRICS[metric].per == "client" else ["0", "1", "2"])


def test_what_is_not_given_is_left_out() -> None:
    truth = images(2)
    bare = score_images(truth.x, None, truth, SPEC)
    assert names(bare) == {
        "mse",
        "psnr",
        "ssim",
        "relative_error",
        "recovered",
        "psnr_of_constant",
        "ssim_of_constant",
        "recovered_of_constant",
    }
    assert bare.matched_labels is None
    without_labels = names(score_images(truth.x, None, truth, SPEC, public=images(4, seed=1)))
    assert not any(name.endswith("class_mean") or name.startswith("label") for name in without_labels)
    assert "recovered_of_public_mean" in without_labels
    assert names(score_tabular(rows(2).x, None, rows(2), TABLE)) == {
        "mae",
        "exact_match",
        "cell_accuracy",
        "cell_accuracy_of_majority",
        "relative_error",
        "rows_found",
        "column_count",
    }


@settings(max_examples=8, deadline=None)
@given(order=st.permutations(list(range(5))))
def test_the_order_of_the_guesses_does_not_matter(order: list[int]) -> None:
    truth, public = images(5), images(6, seed=2)
    guess = truth.x + 0.1 * torch.randn(truth.x.shape, generator=torch.Generator().manual_seed(3))
    shuffled = torch.tensor(order)
    plain = score_images(guess, truth.y, truth, SPEC, public)
    mixed = score_images(guess[shuffled], truth.y[shuffled], truth, SPEC, public)
    assert [(s.item, s.metric) for s in plain.scores] == [(s.item, s.metric) for s in mixed.scores]
    assert [s.value for s in mixed.scores] == pytest.approx([s.value for s in plain.scores])
    assert mixed.matched_labels is not None
    assert mixed.matched_labels.tolist() == truth.y.tolist()


def test_is_measured_in_raw_pixels_after_clipping() -> None:
    truth = images(2)
    guess = truth.x + 3 * torch.randn(truth.x.shape, generator=torch.Generator().manual_seed(4))
    scored = score_images(guess, None, truth, SPEC)
    assert scored.guess_pixels is not None
    assert scored.guess_pixels.min() >= 0
    assert scored.guess_pixels.max() <= 255
    torch.testing.assert_close(scored.truth_pixels, SPEC.pixels(truth.x))
    again = psnr(scored.guess_pixels, scored.truth_pixels, 0.0, 255.0)
    assert values(scored, "psnr") == pytest.approx(again.tolist(), abs=1e-3)
    assert values(scored, "ssim") == pytest.approx(
        ssim(scored.guess_pixels, scored.truth_pixels, 0.0, 255.0).tolist(), abs=1e-5
    )


def test_perfect_guess_is_recovered_and_constants_are_not() -> None:
    truth = images(4)
    scored = score_images(truth.x, truth.y, truth, SPEC)
    assert values(scored, "psnr") == [100.0] * 4
    assert values(scored, "recovered") == [1.0]
    assert values(scored, "recovered_of_constant") == [0.0]
    assert values(scored, "label_accuracy") == [1.0]
    assert values(scored, "label_count_error") == [0.0]


def test_fewer_guesses_than_truths_leave_nan_and_count_as_not_recovered() -> None:
    truth = images(4)
    scored = score_images(truth.x[2:3], truth.y[2:3], truth, SPEC, lpips_weights=toy_weights())
    for metric in ("mse", "psnr", "ssim", "lpips"):
        assert [math.isnan(value) for value in values(scored, metric)] == [True, True, False, True]
    assert values(scored, "recovered") == [0.25]
    assert scored.guess_pixels is not None
    assert scored.guess_pixels[0].isnan().all()
    assert scored.matched_labels is not None
    assert scored.matched_labels.tolist() == [-1, -1, int(truth.y[2]), -1]
    assert not any(math.isnan(value) for value in values(scored, "psnr_of_constant"))


def test_more_guesses_than_truths_use_the_best() -> None:
    truth = images(2)
    guess = torch.cat([images(3, seed=9).x, truth.x])
    scored = score_images(guess, None, truth, SPEC)
    assert values(scored, "psnr") == [100.0, 100.0]


def test_a_guess_that_diverged_is_not_recovered() -> None:
    truth = images(2)
    guess = truth.x.clone()
    guess[1, 0, 0, 0] = math.inf
    scored = score_images(guess, None, truth, SPEC, lpips_weights=toy_weights())
    assert values(scored, "psnr")[0] == 100.0
    assert all(math.isnan(values(scored, metric)[1]) for metric in ("mse", "psnr", "ssim", "lpips"))
    assert values(scored, "recovered") == [0.5]


LABELS = {"label_accuracy", "label_count_error", "label_count", "label_accuracy_of_even"}


@pytest.mark.parametrize(("examples", "spec"), [(images(3), SPEC), (rows(3), TABLE)], ids=["images", "rows"])
def test_an_attack_that_says_nothing_about_inputs_is_not_scored_on_them(examples: Examples, spec: DataSpec) -> None:
    public = examples
    scored = score(None, examples.y, examples, spec, public, toy_weights(), papers=("zhao2023",), confidence=0.5)
    assert names(scored) == {*LABELS, "label_confidence"}
    assert values(scored, "label_accuracy") == [1.0]
    assert values(scored, "label_count") == [3.0]
    assert scored.guess_pixels is scored.matched_labels is None
    features = (numbers := torch.ones(3, 7), numbers)
    assert names(score(None, None, examples, spec, features=features)) == {"feature_error"}


def test_who_sets_out_for_inputs_and_finds_none_is_scored_on_them() -> None:
    truth = images(3)
    scored = score(truth.x[:0], truth.y, truth, SPEC, public=images(5, seed=1))
    assert values(scored, "label_accuracy") == [1.0]
    assert values(scored, "recovered") == [0.0]
    assert len(values(scored, "psnr_of_class_mean")) == 3
    assert scored.matched_labels is None


def test_class_mean_is_paired_like_a_guess() -> None:
    public = images(4, seed=1)
    public = Examples(public.x, torch.arange(4))
    truth = Examples(public.x[[2, 0]], torch.tensor([2, 0]))
    scored = score_images(images(2, seed=5).x, torch.tensor([0, 2]), truth, SPEC, public)
    assert values(scored, "psnr_of_class_mean") == [100.0, 100.0]
    assert values(scored, "recovered_of_class_mean") == [1.0]


def test_regression_has_no_label_metrics() -> None:
    spec = DataSpec((5,), classes=None)
    truth = Examples(rows(3).x, torch.tensor([0.1, 0.2, 0.3]))
    scored = score(truth.x[[1, 0]], torch.tensor([0.25, 0.15]), truth, spec, public=truth)
    assert names(scored) == {
        "mae",
        "exact_match",
        "cell_accuracy",
        "relative_error",
        "mae_of_public_mean",
        "exact_match_of_public_mean",
        "cell_accuracy_of_public_mean",
        "cell_accuracy_of_majority",
        "rows_found",
        "column_count",
    }
    assert scored.matched_labels is not None
    assert scored.matched_labels[:2].tolist() == pytest.approx([0.15, 0.25])
    assert scored.matched_labels[2].isnan()


def test_rows_are_compared_in_normalised_units_and_shown_raw() -> None:
    truth = rows(4)
    guess = truth.x + torch.tensor([0.05, 0.05, 0.05, 0.05, 0.5])
    scored = score_tabular(guess.flip(0), truth.y.flip(0), truth, TABLE)
    assert values(scored, "mae") == pytest.approx([0.14] * 4, rel=1e-4)
    assert values(scored, "exact_match") == pytest.approx([0.8] * 4)
    assert scored.guess_pixels is not None
    torch.testing.assert_close(scored.guess_pixels, TABLE.pixels(guess))


def test_a_missing_row_matches_nothing() -> None:
    truth = rows(2)
    scored = score_tabular(truth.x[:1], None, truth, TABLE)
    assert values(scored, "exact_match") == [1.0, 0.0]
    assert math.isnan(values(scored, "mae")[1])


@pytest.mark.parametrize(("examples", "spec"), [(images(3), SPEC), (rows(3), TABLE)], ids=["images", "rows"])
def test_the_relative_error_is_of_the_values_that_the_module_eats(examples: Examples, spec: DataSpec) -> None:
    scored = score(1.25 * examples.x.flip(0), None, examples, spec)
    assert values(scored, "relative_error") == pytest.approx([0.25] * 3)
    missing = score(examples.x[1:], None, examples, spec)
    assert [math.isnan(value) for value in values(missing, "relative_error")] == [True, False, False]


def test_features_are_paired_with_the_true_ones_whatever_their_scale() -> None:
    truth, real = images(3), 1e4 * rows(3).x
    found = torch.cat([1.5 * real[2:], real[:1]])
    scored = score(None, None, truth, SPEC, features=(found, real))
    errors = values(scored, "feature_error")
    assert errors[::2] == pytest.approx([0.0, 0.5])
    assert math.isnan(errors[1])


def test_an_example_without_a_guess_does_not_spoil_the_others() -> None:
    truth = images(3)
    guess = truth.x.clone()
    guess[1] = math.nan
    scored = score(guess, truth.y, truth, SPEC, lpips_weights=toy_weights(), papers=("zhao2023",))
    assert values(scored, "psnr")[::2] == [100.0, 100.0]
    assert values(scored, "recovered") == values(scored, "recovered_zhao2023") == [pytest.approx(2 / 3)]
    assert [math.isnan(value) for value in values(scored, "psnr_zhao2023")] == [False, True, False]
    assert values(scored, "psnr_zhao2023_table")[1] == values(scored, "lpips_zhao2023_table")[1] == 0


def test_the_metrics_of_a_paper_are_measured_where_they_are_asked_for() -> None:
    truth = images(2)
    assert not any("zhao2023" in name for name in names(score(truth.x, None, truth, SPEC)))
    guess = truth.x + 0.3 * torch.randn(truth.x.shape, generator=torch.Generator().manual_seed(4))
    asked = score(guess, None, truth, SPEC, papers=("zhao2023",))
    unit = (SPEC.pixels(guess) - SPEC.pixels(truth.x)).double() / 255
    usual = -10 * unit.square().mean(dim=(1, 2, 3)).log10()  # the paper's guesses are not clipped
    assert values(asked, "psnr_zhao2023") == pytest.approx((usual + 11.485).tolist(), abs=1e-3)
    assert "lpips_zhao2023" not in names(asked)


def test_the_psnr_of_dimitrov2022_pairs_and_measures_what_is_not_clipped() -> None:
    """Two white guesses beyond white are the same once clipped; as they are, each is nearer to one of the images."""
    spec = DataSpec((1, 12, 12), classes=2)
    truth = Examples(torch.stack([torch.full((1, 12, 12), value) for value in (1.0, 0.9)]), torch.tensor([0, 1]))
    guess = torch.stack([torch.full((1, 12, 12), value) for value in (1.3, 1.05)])
    scored = score_images(guess, None, truth, spec, papers=("dimitrov2022",), threshold=16.0)
    assert values(scored, "psnr") == pytest.approx([100.0, 20.0])
    assert values(scored, "recovered") == [1.0]
    # Total PSNR is highest where 1.05 is for 1 and 1.3 for 0.9: −10 log10 of 0.05² and 0.4².
    assert values(scored, "psnr_dimitrov2022") == pytest.approx([26.0206, 7.9588], abs=1e-4)
    assert values(scored, "recovered_dimitrov2022") == [0.5]


def test_gradients_and_inputs_are_left_alone() -> None:
    truth = images(2)
    guess = truth.x.clone().requires_grad_()
    before = guess.detach().clone()
    scored = score_images(guess, None, truth, SPEC)
    assert scored.guess_pixels is not None
    assert not scored.guess_pixels.requires_grad
    assert torch.equal(guess.detach(), before)


def test_errors_say_what_to_do() -> None:
    truth = images(2)
    with pytest.raises(ValueError, match=r"`guess` of shape \(n, 3, 12, 12\) .*got \(2, 1, 12, 12\)"):
        score(torch.zeros(2, 1, 12, 12), None, truth, SPEC)
    with pytest.raises(ValueError, match=r"`public.x` of shape"):
        score(truth.x, None, truth, SPEC, public=rows(2))
    with pytest.raises(ValueError, match="got 3 labels for 2 guesses"):
        score(truth.x, torch.tensor([1, 2, 3]), truth, SPEC)
    with pytest.raises(ValueError, match="at least one true example"):
        score(truth.x, None, truth[:0], SPEC)
