"""The judge: pairs an attack's guesses with the truth and measures them, beside guesses made without any leak."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.metrics import baselines
from seepage.metrics.labels import label_accuracy, label_count_error
from seepage.metrics.matching import match, taken
from seepage.metrics.perceptual import lpips
from seepage.metrics.pixels import clip, mse, psnr, ssim, unclipped_psnr
from seepage.metrics.recovered import THRESHOLD, recovered
from seepage.metrics.registry import PaperMetrics
from seepage.metrics.relative import relative_error
from seepage.metrics.tabular import TOLERANCE, cells_found, exact_match, mae, majority_row, surest
from seepage.metrics.tags import Tagger, tag_jaccard
from seepage.metrics.text import bag_f1, match_texts, rouge, token_accuracy
from seepage.metrics.yue2023 import psnr_yue2023, ssim_yue2023
from seepage.metrics.zhao2023 import THRESHOLD as THRESHOLD_ZHAO2023
from seepage.metrics.zhao2023 import lpips_zhao2023, psnr_zhao2023, ssim_zhao2023, table_zhao2023
from seepage.perceptual import LpipsWeights
from seepage.spec import DataSpec, Examples

__all__ = ["Score", "Scored", "score", "score_images", "score_tabular", "score_text"]


@dataclass(frozen=True)
class Score:
    """One measured number.

    Args:
        item: place of the example among the true ones ("0", "1", ...), or "all" for a value of the whole client.
        metric: a name in `seepage.metrics.METRICS`.
        value: NaN where there was nothing to measure.

    Example:
        >>> Score("0", "psnr", 31.5).value
        31.5
    """

    item: str
    metric: str
    value: float


@dataclass(frozen=True, eq=False)
class Scored:
    """All numbers of one client, and the examples they were measured on.

    Args:
        scores: one after another, metric by metric.
        guess_pixels: the guesses in the order of the truth, raw values; images are clipped to the range; NaN where
            there was no guess; `None` for an attack that says nothing about inputs.
        truth_pixels: the client's examples, raw values.
        matched_labels: the guessed targets in the order of the truth, -1 (or NaN for regression) where there was no
            guess; `None` without guessed targets.

    Example:
        >>> import torch
        >>> spec = DataSpec((1, 16, 16), classes=10)
        >>> truth = Examples(torch.zeros(1, 1, 16, 16), torch.tensor([7]))
        >>> scored = score_images(torch.full((1, 1, 16, 16), 0.1), None, truth, spec)
        >>> [round(s.value, 4) for s in scored.scores if s.metric == "psnr"]
        [20.0]
    """

    scores: list[Score]
    guess_pixels: Tensor | None
    truth_pixels: Tensor
    matched_labels: Tensor | None


def _check(guess: Tensor, targets: Tensor | None, truth: Examples, spec: DataSpec, public: Examples | None) -> None:
    if len(truth) == 0:
        raise ValueError("expected at least one true example, got none; leave clients without data out")
    named = [("guess", guess), ("truth.x", truth.x)] + ([("public.x", public.x)] if public is not None else [])
    for name, x in named:
        if tuple(x.shape[1:]) != spec.shape:
            raise ValueError(
                f"expected `{name}` of shape (n, {', '.join(map(str, spec.shape))}) as the data spec says, "
                f"got {tuple(x.shape)}; reshape it, or correct `DataSpec.shape`"
            )
    if targets is not None and len(guess) not in (0, len(targets)):
        raise ValueError(
            f"expected one guessed label per guess, got {len(targets)} labels for {len(guess)} guesses; "
            "pass `None` in the place of guesses where only labels were found"
        )


def _plain(x: Tensor) -> Tensor:
    # Scores are few and end in tables, so they are made in double precision on the CPU whatever the attack ran on.
    return x.detach().cpu().double()


def _each(metric: str, values: Tensor) -> list[Score]:
    return [Score(str(item), metric, value) for item, value in enumerate(values.tolist())]


def _matched_targets(targets: Tensor | None, order: Tensor, guesses: int, spec: DataSpec) -> Tensor | None:
    if targets is None or len(targets) != guesses:
        return None
    return taken(targets.detach().cpu(), order, -1 if spec.classes is not None else math.nan)


def _label_scores(targets: Tensor | None, truth: Examples, spec: DataSpec) -> list[Score]:
    if targets is None or spec.classes is None:
        return []
    return [
        Score("all", "label_accuracy", label_accuracy(targets, truth.y)),
        Score("all", "label_count_error", label_count_error(targets, truth.y)),
        Score("all", "label_count", float(len(truth))),
        Score("all", "label_accuracy_of_even", baselines.even_labels(truth.y, spec.classes)),
    ]


def _public_guesses(public: Examples | None, targets: Tensor | None, n: int, spec: DataSpec) -> dict[str, Tensor]:
    """What somebody with public data, and at best the guessed labels, would answer; normalised."""
    if public is None:
        return {}
    guesses = {"public_mean": baselines.mean_image(public).expand(n, *spec.shape)}
    if targets is not None and spec.classes is not None:
        guesses["class_mean"] = baselines.class_mean(public, targets)
    return {name: _plain(guess) for name, guess in guesses.items()}


def _zhao2023(guess: Tensor, real: Tensor, weights: LpipsWeights | None) -> list[Score]:
    """What the paper measures, of pixels in units of their range."""
    psnr_values = psnr_zhao2023(guess, real)
    measured = {"psnr_zhao2023": psnr_values, "ssim_zhao2023": ssim_zhao2023(guess, real)}
    if weights is not None:
        measured["lpips_zhao2023"] = lpips_zhao2023(guess, real, weights).cpu().double()
    scores = [one for name, values in measured.items() for one in _each(name, values)]
    for name, values in measured.items():
        scores += _each(f"{name}_table", table_zhao2023(values, psnr_values))
    share = int((psnr_values >= THRESHOLD_ZHAO2023).sum()) / len(real)
    return [*scores, Score("all", "recovered_zhao2023", share)]


def _feature_scores(features: tuple[Tensor, Tensor]) -> list[Score]:
    found, real = map(_plain, features)
    # Features have no range of their own; the largest true one stands for it.
    order = match(found, real, 0.0, float(real.abs().max()) or 1.0)
    return _each("feature_error", relative_error(taken(found, order, math.nan), real))


def score_images(
    guess: Tensor,
    guess_labels: Tensor | None,
    truth: Examples,
    spec: DataSpec,
    public: Examples | None = None,
    lpips_weights: LpipsWeights | None = None,
    threshold: float = THRESHOLD,
    papers: Collection[PaperMetrics] = (),
    tagger: Tagger | None = None,
) -> Scored:
    """Pairs guessed images with the true ones and measures every pair.

    Per true image: mse, psnr, ssim, relative_error, lpips where there are weights, and tag_jaccard where there is a
    tagger; psnr, ssim and tag_jaccard of the best constant, of the public mean and of the class mean of the guessed
    labels (each where its ingredients are given).
    Per client: recovered, for the attack and each baseline, and the label metrics where there are guessed labels.

    Args:
        guess: normalised images (m, c, h, w) in any order; m may differ from the number of true images.
        guess_labels: (m,); `None` if none were found.
        truth: the client's examples, normalised.
        spec: of the data.
        public: examples that anybody may have, normalised.
        lpips_weights: from `seepage.perceptual.load_lpips`.
        threshold: PSNR in dB above which an image counts as recovered.
        papers: whose own metrics are measured too.
        tagger: tells which tags images have, for tag_jaccard; without one it is not measured.

    Note:
        A true image without a guess, or whose guess is not finite, has NaN for every value of its own and counts as
        not recovered. Baselines are paired with the truth as the attack's guesses are.

    Example:
        >>> import torch
        >>> spec = DataSpec((1, 16, 16), classes=10)
        >>> x = torch.linspace(0, 1, 2 * 256).reshape(2, 1, 16, 16)
        >>> found = score_images(x.flip(0), torch.tensor([4, 3]), Examples(x, torch.tensor([3, 3])), spec)
        >>> [s.value for s in found.scores if s.metric in ("psnr", "recovered", "label_accuracy")]
        [100.0, 100.0, 1.0, 0.5]
        >>> found.matched_labels
        tensor([3, 4])
    """
    _check(guess, guess_labels, truth, spec, public)
    low, high = spec.low, spec.high
    real = spec.pixels(_plain(truth.x))

    def paired(pixels: Tensor) -> tuple[Tensor, Tensor]:
        clipped = clip(pixels, low, high)
        order = match(clipped, real, low, high)
        return taken(clipped, order, math.nan), order

    unclipped = spec.pixels(_plain(guess))
    found, order = paired(unclipped)
    psnr_of_attack = psnr(found, real, low, high)
    scores = _each("mse", mse(found, real, low, high))
    scores += _each("psnr", psnr_of_attack)
    scores += _each("ssim", ssim(found, real, low, high))
    scores += _each("relative_error", relative_error(taken(_plain(guess), order, math.nan), _plain(truth.x)))
    if lpips_weights is not None:
        scores += _each("lpips", lpips(found, real, low, high, lpips_weights))

    def tagged(pixels: Tensor, suffix: str = "") -> list[Score]:
        if tagger is None:
            return []
        alike = tag_jaccard((pixels - low) / (high - low), (real - low) / (high - low), tagger)
        return _each(f"tag_jaccard{suffix}", alike)

    scores += tagged(found)
    if "dimitrov2022" in papers:
        order_of_paper = match(unclipped, real, low, high)  # pairs, too, are sought without clipping
        psnr_of_paper = unclipped_psnr(taken(unclipped, order_of_paper, math.nan), real, low, high)
        scores += _each("psnr_dimitrov2022", psnr_of_paper)
        scores.append(Score("all", "recovered_dimitrov2022", recovered(psnr_of_paper, threshold)))

    if "zhao2023" in papers:
        as_found = taken(unclipped, order, math.nan)
        scores += _zhao2023((as_found - low) / (high - low), (real - low) / (high - low), lpips_weights)

    if "yue2023" in papers:
        shown, true = (found - low) / (high - low), (real - low) / (high - low)
        scores += _each("psnr_yue2023", psnr_yue2023(shown, true))
        scores += _each("ssim_yue2023", ssim_yue2023(shown, true))

    others = {"constant": baselines.best_constant(real)}
    for name, x in _public_guesses(public, guess_labels, len(truth), spec).items():
        others[name] = paired(spec.pixels(x))[0]
    shares = [Score("all", "recovered", recovered(psnr_of_attack, threshold))]
    for name, pixels in others.items():
        psnr_of_baseline = psnr(pixels, real, low, high)
        scores += _each(f"psnr_of_{name}", psnr_of_baseline)
        scores += _each(f"ssim_of_{name}", ssim(pixels, real, low, high))
        scores += tagged(pixels, f"_of_{name}")
        shares.append(Score("all", f"recovered_of_{name}", recovered(psnr_of_baseline, threshold)))

    return Scored(
        scores + shares + _label_scores(guess_labels, truth, spec),
        guess_pixels=found.float(),
        truth_pixels=real.float(),
        matched_labels=_matched_targets(guess_labels, order, len(guess), spec),
    )


def score_tabular(
    guess: Tensor,
    guess_labels: Tensor | None,
    truth: Examples,
    spec: DataSpec,
    public: Examples | None = None,
    tolerance: float = TOLERANCE,
    certainty: Tensor | None = None,
) -> Scored:
    """Pairs guessed rows with the true ones and measures every pair.

    Per true row: relative_error of the attack; mae, exact_match and cell_accuracy, for the attack and for the public
    mean and class mean where their ingredients are given; cells also for the most frequent value of each column, unless
    a client's only row would be compared with itself. Per client: the label metrics where there are guessed labels. All
    is measured on normalised values, so that every feature weighs the same whatever its unit. Examples with more than
    one axis have no columns, and so no cells.

    Args:
        guess: normalised rows (m, features) in any order; m may differ from the number of true rows.
        guess_labels: (m,); `None` if none were found.
        truth: the client's examples, normalised.
        spec: of the data.
        public: examples that anybody may have, normalised.
        tolerance: largest error with which a feature counts as found, in normalised units.
        certainty: how sure the attack is of each cell, (m, columns).

    Note:
        Rows are not clipped: the features of a table seldom share one range. A true row without a guess has NaN as
        its mae and 0 as its exact_match and cell_accuracy.

    Example:
        >>> import torch
        >>> truth = Examples(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([0, 1]))
        >>> guess = torch.tensor([[2.0, 3.5], [0.0, 1.0]])
        >>> found = score_tabular(guess, torch.tensor([1, 1]), truth, DataSpec((2,), classes=2))
        >>> {s.metric: s.value for s in found.scores if s.item == "1"}
        {'mae': 0.25, 'exact_match': 0.5, 'cell_accuracy': 0.5, 'relative_error': ..., 'cell_accuracy_of_majority': 0.0}
    """
    _check(guess, guess_labels, truth, spec, public)
    real = _plain(truth.x)
    has_columns = len(spec.shape) == 1

    def paired(x: Tensor) -> tuple[Tensor, Tensor]:
        order = match(x, real, 0.0, 1.0)
        return taken(x, order, math.nan), order

    found, order = paired(_plain(guess))
    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "mae": lambda x: mae(x, real),
        "exact_match": lambda x: exact_match(x, real, tolerance),
    }
    if has_columns:
        measures["cell_accuracy"] = lambda x: cells_found(x, real, spec).double().mean(1)
    scores = [one for name, measure in measures.items() for one in _each(name, measure(found))]
    scores += _each("relative_error", relative_error(found, real))
    for baseline, x in _public_guesses(public, guess_labels, len(truth), spec).items():
        rows, _ = paired(x)
        for name, measure in measures.items():
            scores += _each(f"{name}_of_{baseline}", measure(rows))
    if has_columns:
        scores += _cell_scores(found, real, spec, None if certainty is None else taken(_plain(certainty), order, 0.0))
    return Scored(
        scores + _label_scores(guess_labels, truth, spec),
        guess_pixels=spec.pixels(found).float(),
        truth_pixels=spec.pixels(real).float(),
        matched_labels=_matched_targets(guess_labels, order, len(guess), spec),
    )


def _cell_scores(found: Tensor, real: Tensor, spec: DataSpec, certainty: Tensor | None) -> list[Score]:
    """What is known of cells beside how many were found: of which columns, by whom else, how surely, in whole rows."""
    scores: list[Score] = []
    categories = torch.tensor([column in spec.categories for column in spec.columns])
    kinds = {"category": categories, "number": ~categories} if spec.categories else {}
    cells = cells_found(found, real, spec)
    guesses = {"": cells}
    if len(real) > 1:  # else its most frequent values are the row itself
        guesses["_of_majority"] = cells_found(majority_row(real, spec).expand_as(real), real, spec)
        scores += _each("cell_accuracy_of_majority", guesses["_of_majority"].double().mean(1))
    for suffix, right in guesses.items():
        for kind, columns in kinds.items():
            if columns.any():
                scores += _each(f"{kind}_accuracy{suffix}", right[:, columns].double().mean(1))
    if certainty is not None:
        scores.append(Score("all", "sure_cell_accuracy", float(cells[surest(certainty, spec)].double().mean())))
    scores.append(Score("all", "rows_found", float(cells.all(1).double().mean())))
    return [*scores, Score("all", "column_count", len(spec.columns))]


def score_text(
    guess: Tensor | None,
    guess_labels: Tensor | None,
    truth: Examples,
    spec: DataSpec,
    public: Examples | None = None,
    tokens: Tensor | None = None,
) -> Scored:
    """Pairs guessed texts with the true ones and measures every pair.

    Per true text: token_accuracy, rouge1 and rouge2, for the attack and, where there are public texts, for as many of
    these. Per client: token_bag where an attack says which tokens occur, and the label metrics.

    Args:
        guess: token ids (m, length) in any order, −1 for what is not known; `None` where the attack names none.
        guess_labels: (m,); `None` if none were found.
        truth: the client's texts.
        spec: of the data.
        public: texts that anybody may have.
        tokens: which tokens are said to occur, (vocabulary,).

    Example:
        >>> import torch
        >>> truth = Examples(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([0, 1]))
        >>> found = score_text(torch.tensor([[4, 5, 0], [1, 2, 4]]), None, truth, DataSpec((3,), 2, vocabulary=6))
        >>> [round(s.value, 2) for s in found.scores]
        [0.67, 1.0, 0.67, 1.0, 0.5, 1.0]
    """
    _check(truth.x[:0] if guess is None else guess, guess_labels, truth, spec, public)
    real = truth.x.detach().cpu()

    def measured(texts: Tensor, suffix: str = "") -> list[Score]:
        found = taken(texts.detach().cpu(), match_texts(texts, real), -1)
        scores = _each(f"token_accuracy{suffix}", token_accuracy(found, real))
        for n in (1, 2):
            pairs = zip(found, real, strict=True)
            scores += [Score(str(i), f"rouge{n}{suffix}", rouge(*pair, n)) for i, pair in enumerate(pairs)]
        return scores

    scores = [] if guess is None else measured(guess)
    if guess is not None and public is not None:
        scores += measured(public.x[: len(truth)], "_of_public_texts")
    if tokens is not None:
        scores.append(Score("all", "token_bag", bag_f1(tokens.cpu(), real)))
    return Scored(
        scores + _label_scores(guess_labels, truth, spec), guess_pixels=None, truth_pixels=real, matched_labels=None
    )


def _score_labels(guess_labels: Tensor | None, truth: Examples, spec: DataSpec) -> Scored:
    _check(truth.x[:0], None, truth, spec, None)
    return Scored(
        _label_scores(guess_labels, truth, spec),
        guess_pixels=None,
        truth_pixels=spec.pixels(_plain(truth.x)).float(),
        matched_labels=None,
    )


def score(
    guess: Tensor | None,
    guess_labels: Tensor | None,
    truth: Examples,
    spec: DataSpec,
    public: Examples | None = None,
    lpips_weights: LpipsWeights | None = None,
    threshold: float = THRESHOLD,
    tolerance: float = TOLERANCE,
    papers: Collection[PaperMetrics] = (),
    features: tuple[Tensor, Tensor] | None = None,
    confidence: float | None = None,
    tokens: Tensor | None = None,
    tagger: Tagger | None = None,
    certainty: Tensor | None = None,
) -> Scored:
    """Measures an attack's guess with `score_images`, `score_tabular` or `score_text`, as the data spec says.

    Beside these, what an attack may say instead of inputs or about its own answer: feature_error per true example, and
    label_confidence.

    Args:
        guess: normalised inputs (m, ...) in any order; `None` where the attack says nothing about inputs, which are
            then not scored. To have set out for inputs and found none is something else: (0, ...), or NaN.
        guess_labels: (m,), or `None`; the guessed targets for regression.
        truth: the client's examples, normalised.
        spec: of the data.
        public: examples that anybody may have, normalised.
        lpips_weights: for images.
        threshold: for images, PSNR in dB above which one counts as recovered.
        tolerance: for tables, largest error with which a feature counts as found.
        papers: for images, whose own metrics are measured too.
        features: guessed and true values (m, width) and (n, width) that enter a layer of the module.
        confidence: how sure the attack is of its labels.
        tokens: for text, which tokens are said to occur, (vocabulary,).
        tagger: for images, what tells which tags they have.
        certainty: for tables, how sure the attack is of each cell, (m, columns).

    Example:
        >>> import torch
        >>> truth = Examples(torch.tensor([[0.0, 1.0]]), torch.tensor([0.7]))
        >>> scored = score(torch.tensor([[0.0, 0.5]]), None, truth, DataSpec((2,)), confidence=0.75)
        >>> {s.metric: s.value for s in scored.scores if s.metric in ("mae", "cell_accuracy", "label_confidence")}
        {'mae': 0.25, 'cell_accuracy': 0.5, 'label_confidence': 0.75}
    """
    if spec.is_text:
        scored = score_text(guess, guess_labels, truth, spec, public, tokens)
    elif guess is None:
        scored = _score_labels(guess_labels, truth, spec)
    elif spec.is_image:
        scored = score_images(guess, guess_labels, truth, spec, public, lpips_weights, threshold, papers, tagger)
    else:
        scored = score_tabular(guess, guess_labels, truth, spec, public, tolerance, certainty)
    more = [] if features is None else _feature_scores(features)
    more += [] if confidence is None else [Score("all", "label_confidence", confidence)]
    return replace(scored, scores=scored.scores + more)
