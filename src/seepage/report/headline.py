"""The verdict in one sentence, computed from the rows, with what a careful reader must know beside it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pandas as pd

from seepage.audit.diagnosis import FEATURES_FOUND
from seepage.audit.summary import AS_CAPTURED, MEASURES, Kind, answers
from seepage.metrics.baselines import BASELINES
from seepage.metrics.intervals import share_interval
from seepage.report.words import among, decimal, defence_label, percent, plural
from seepage.threat import THREATS, Fact, ThreatModel

__all__ = ["PLURALS", "Headline", "Tally", "Tone", "every_tally", "headline", "last_accuracy", "tally"]

Tone: TypeAlias = Literal["leak", "quiet", "unknown"]

ERRORS: frozenset[Kind] = frozenset({"feature", "model"})
"""What is measured by an error, of which less is more leakage."""

PLURALS: dict[Kind, str] = {
    "image": "images",
    "row": "rows",
    "array": "examples",
    "text": "texts",
    "token": "tokens",
    "feature": "features",
    "model": "models",
    "attribute": "sensitive values",
    "source": "records",
    "class": "classes",
    "label": "labels",
}
_DEFENCE = ["defence", "defence_settings"]
_PAIR = ["attack", "attack_settings", "threat"]


@dataclass(frozen=True)
class Tally:
    """What the strongest attack on one defence brought back, summed over cases.

    Args:
        kind: images, rows of a table, other examples of numbers, texts, their different tokens, what enters a layer,
            clients' own models, one column, sources, or labels.
        defence: name.
        settings: its knobs.
        found: images above the threshold, or examples whose features at a layer (or clients whose models) are right up
            to `FEATURES_FOUND`; of rows the cells found, as a number of rows; of labels the shares found, as a number
            of clients.
        total: images, rows or examples attacked; clients where labels were.
        mean: mean PSNR in dB, share of a row's cells or of labels found, or relative error of features; NaN when
            nothing was returned.
        prior: the same of the best guess without any leak; NaN when not measured.
        free: found images that a guess without any leak would also bring above the threshold.
        accuracy: after the last round, mean over cases; NaN when not measured.
        cost: accuracy without a defence minus `accuracy`, mean over the cases that have both; NaN without any.
        strongest: (case, attack, settings, threat) of the strongest attack in each case.
        met: every (case, attack, settings, threat, `total`) that was measured.
        clients: attacked, in all cases together.
        columns: of the table whose rows were attacked; `None` where tables differ.
        averaged: whether images were counted client by client, since rows hold their means alone.
    """

    kind: Kind
    defence: str
    settings: str
    found: float
    total: int
    mean: float
    prior: float
    free: int
    accuracy: float
    cost: float
    strongest: tuple[tuple[str, str, str, str], ...]
    met: frozenset[tuple[str, str, str, str, int]]
    clients: int
    columns: int | None = None
    averaged: bool = False

    @property
    def label(self) -> str:
        """Name and settings."""
        return defence_label(self.defence, self.settings)

    @property
    def share(self) -> float:
        """Of the images, cells or labels that came back."""
        return self.found / self.total

    @property
    def amount(self) -> str:
        """What came back, in words."""
        if self.kind == "image" and self.averaged:
            return f"on average the images of {among(round(self.found), self.total, 'client')}"
        if self.kind == "image":
            return among(round(self.found), self.total, "image")
        if self.kind == "feature":
            return f"the features of {among(round(self.found), self.total, 'example')}"
        if self.kind == "model":
            return f"the own models of {among(round(self.found), self.total, 'client')}"
        if self.kind == "text":
            return f"{percent(self.share)} of the tokens of {plural(self.total, 'text')}"
        if self.kind == "token":
            return f"{percent(self.share)} of the different tokens of {plural(self.total, 'client')}"
        if self.kind == "attribute":
            return f"{percent(self.share)} of the sensitive values of {plural(self.total, 'client')}"
        if self.kind == "source":
            return f"{percent(self.share)} of the target records of {plural(self.total, 'client')}"
        if self.kind == "class":
            return f"a likeness of {percent(self.share)} to the images of {plural(self.total, 'client')}"
        if self.kind == "label":
            return f"{percent(self.share)} of the labels of {plural(self.total, 'client')}"
        if self.kind == "row":
            of_columns = "" if self.columns is None else f" of {plural(self.columns, 'column')}"
            return f"{percent(self.share)} of the cells of {plural(self.total, 'row')}{of_columns}"
        return f"{percent(self.share)} of the features of {plural(self.total, 'example')}"

    @property
    def short(self) -> str:
        """The same where the noun has been said."""
        return f"{round(self.found)} of {self.total}" if self.counts else percent(self.share)

    @property
    def counts(self) -> bool:
        """Whether an example either came back or did not."""
        return self.kind in ("image", "feature", "model")

    @property
    def verb(self) -> str:
        """Images come back, labels are found."""
        return "were" if self.kind in ("token", "attribute", "source", "label") else "did"

    @property
    def leaks(self) -> bool:
        """Whether something came back: an image above the threshold, or more cells or labels than a guess finds.

        A point of a hundred above the guess is not more: cells are found by luck.
        """
        if self.counts:
            return self.found > 0
        return self.share > (0.0 if math.isnan(self.prior) else self.prior + 0.01)


@dataclass(frozen=True)
class Headline:
    """What the report says first.

    Args:
        tone: whether something came back, nothing did, or nobody knows.
        sentence: the verdict.
        cautions: sentences that keep the verdict from being read as more than it is.
    """

    tone: Tone
    sentence: str
    cautions: tuple[str, ...] = ()


def headline(
    rows: pd.DataFrame,
    threshold: float,
    trials: Collection[str] = (),
    threats: Mapping[str, ThreatModel] = THREATS,
    tallies: Mapping[Kind, Sequence[Tally]] | None = None,
) -> Headline:
    """The verdict on a table of results.

    Args:
        rows: as `Table.read` gives them.
        threshold: PSNR in dB above which an image counts as recovered.
        trials: digests of all trials of the experiment, to notice those that have not run.
        threats: the threat models by name.
        tallies: what came back of every kind that was measured, where `every_tally` was asked already.

    Example:
        >>> common = {"case": "a", "attack_settings": "", "defence_settings": "", "threat": "honest-server",
        ...           "client": "0", "trial": "t", "outcome": "reduced"}
        >>> rows = pd.DataFrame([
        ...     {**common, "attack": "x", "defence": "none", "item": str(i), "metric": "psnr", "value": value}
        ...     for i, value in enumerate((31.0, 24.0, 11.0))])
        >>> headline(rows, 20.0).sentence
        'Without a defence, 2 of 3 images came back recognisably (PSNR above 20 dB); no defence was measured.'
    """
    if tallies is None:
        tallies = every_tally(rows, threshold, threats)
    if not tallies:
        return Headline("unknown", _nothing_measured(rows), tuple(_unfinished(rows, trials)))
    came = {
        "image": f"came back recognisably (PSNR above {threshold:g} dB)",
        "row": "came back",
        "array": "came back",
        "feature": f"came back (what enters a layer, up to a relative error of {FEATURES_FOUND:g})",
        "model": f"came back (up to a relative error of {FEATURES_FOUND:g})",
        "text": "came back in their places",
        "token": "were named, without their places",
        "attribute": "were found",
        "source": "were traced to their client",
        "class": "came back class by class (SSIM)",
        "label": "were found",
    }
    *first, last = [_sentence(found, came[kind]) for kind, found in tallies.items()]
    # What was not measured for any of them is said once, at the end.
    sentences = [*(one.replace(f"; {_NO_DEFENCE}.", ".").replace(f"; {_NO_COST}.", ".") for one in first), last]
    every = [one for kind in tallies.values() for one in kind]
    tone: Tone = "leak" if any(one.leaks for one in every) else "quiet"
    cautions = [
        *dict.fromkeys(words for kind in tallies.values() for words in _about_tallies(kind)),
        *([] if "label" in tallies else _labels(rows, threats)),
        *_lanes(rows),
        *_failed(rows),
        *_unfinished(rows, trials),
    ]
    return Headline(tone, " ".join(sentences), tuple(cautions))


def last_accuracy(rows: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Accuracy after the last round by case, defence and its settings."""
    learning = rows[rows["metric"] == "accuracy"]
    return {
        (str(case), str(name), str(settings)): float(part["value"].iloc[-1])
        for (case, name, settings), part in learning.groupby(["case", *_DEFENCE], sort=False)
    }


def every_tally(
    rows: pd.DataFrame, threshold: float, threats: Mapping[str, ThreatModel] = THREATS
) -> dict[Kind, list[Tally]]:
    """What came back of every kind that was measured, under each defence."""
    return {kind: found for kind in MEASURES if (found := tally(rows, threshold, kind, threats))}


def tally(
    rows: pd.DataFrame, threshold: float, kind: Kind, threats: Mapping[str, ThreatModel] = THREATS
) -> list[Tally]:
    """What came back under each defence, no defence first.

    In each case the strongest pair of attack and threat model counts, so that every number can be found in the table.
    Whoever was told the labels did not find them, and does not count for labels.
    """
    measured = answers(rows, kind)
    if kind == "label":
        measured = measured[~measured["threat"].isin(_told_labels(threats))]
    accuracy = last_accuracy(rows)
    tallies = []
    for (name, settings), part in measured.groupby(_DEFENCE, sort=False):
        of_defence = rows[(rows["defence"] == name) & (rows["defence_settings"] == settings)]
        tallies.append(_tally(of_defence, part, threshold, kind, accuracy))
    return sorted(tallies, key=lambda one: one.defence != "none")


def _tally(
    rows: pd.DataFrame,
    measured: pd.DataFrame,
    threshold: float,
    kind: Kind,
    accuracy: Mapping[tuple[str, str, str], float],
) -> Tally:
    name, settings = str(measured["defence"].iloc[0]), str(measured["defence_settings"].iloc[0])
    found, total, free = 0.0, 0, 0
    strongest, met, values, priors = [], set(), [], []
    guesses = _guesses(rows, kind)
    for case, of_case in measured.groupby("case", sort=False):
        best: tuple[tuple[float, float], tuple[str, str, str], pd.DataFrame] | None = None
        for pair, part in of_case.groupby(_PAIR, sort=False):
            attack, attack_settings, threat = map(str, pair)
            met.add((str(case), attack, attack_settings, threat, len(part)))
            came = _came_back(part["value"], threshold, kind)
            mean = float(part["value"].mean())
            strength = (came, -math.inf if math.isnan(mean) else -mean if kind in ERRORS else mean)
            if best is None or strength > best[0]:
                best = strength, (attack, attack_settings, threat), part
        assert best is not None  # a group has at least one row
        (came, _), (attack, attack_settings, threat), part = best
        strongest.append((str(case), attack, attack_settings, threat))
        found, total = found + came, total + len(part)
        values.append(part["value"])
        prior = _prior_of_each(guesses.get((str(case), attack, attack_settings, threat), {}), part)
        priors.append(prior)
        if kind == "image":
            free += int(((part["value"] > threshold).to_numpy() & (prior > threshold).to_numpy()).sum())
    cases = [case for case, *_ in strongest]
    own = [accuracy.get((case, name, settings), math.nan) for case in cases]
    gaps = [accuracy.get((case, "none", ""), math.nan) - mine for case, mine in zip(cases, own, strict=True)]
    return Tally(
        kind,
        name,
        settings,
        found,
        total,
        float(pd.concat(values).mean()),
        float(pd.concat(priors).mean()),
        free,
        float(pd.Series(own, dtype=float).mean()),
        float(pd.Series(gaps, dtype=float).mean()),
        tuple(strongest),
        frozenset(met),
        int(measured.groupby("case")["client"].nunique().sum()),
        _columns(rows) if kind == "row" else None,
        bool((measured["item"] == "all").all()),
    )


def _columns(rows: pd.DataFrame) -> int | None:
    counts = rows.loc[rows["metric"] == "column_count", "value"].unique()
    return int(counts[0]) if len(counts) == 1 else None


def _came_back(values: pd.Series[float], threshold: float, kind: Kind) -> float:
    if kind == "image":
        return float((values > threshold).sum())
    return float((values <= FEATURES_FOUND).sum() if kind in ERRORS else values.sum())


def _told_labels(threats: Mapping[str, ThreatModel]) -> set[str]:
    return {
        name for name, threat in threats.items() if threat.facts & {Fact.LABELS, Fact.MEMBER_LABELS, Fact.BATCH_LABELS}
    }


def _guesses(rows: pd.DataFrame, kind: Kind) -> dict[tuple[str, ...], dict[str, pd.DataFrame]]:
    """What guesses without a leak score, by case, attack, settings and threat model, and by metric."""
    metrics = [f"{MEASURES[kind]}_of_{baseline}" for baseline in BASELINES]
    found: dict[tuple[str, ...], dict[str, pd.DataFrame]] = {}
    for names, part in rows[rows["metric"].isin(metrics)].groupby(["case", *_PAIR, "metric"], sort=False):
        *key, metric = map(str, names)
        found.setdefault(tuple(key), {})[metric] = part
    return {key: {metric: parts[metric] for metric in metrics if metric in parts} for key, parts in found.items()}


def _prior_of_each(guesses: Mapping[str, pd.DataFrame], part: pd.DataFrame) -> pd.Series[float]:
    """For each image or row the score of that guess without a leak that is best on the whole."""
    keys = pd.MultiIndex.from_frame(part[["client", "item"]])
    best = pd.Series(math.nan, index=keys, dtype=float)
    for values in guesses.values():
        one = values.drop_duplicates(["client", "item"]).set_index(["client", "item"])["value"].reindex(keys)
        if math.isnan(best.mean()) or one.mean() > best.mean():
            best = one
    return best


def _sentence(tallies: Sequence[Tally], came: str) -> str:
    base = next((one for one in tallies if one.defence == "none"), None)
    defended = [one for one in tallies if one.defence != "none"]
    if all(math.isnan(one.mean) for one in tallies):
        nothing = {
            "image": "an image",
            "row": "a row",
            "array": "an example",
            "feature": "features",
            "model": "a model",
            "text": "a text",
            "token": "a token",
            "attribute": "a sensitive value",
            "source": "a record's source",
            "class": "a class",
            "label": "a label",
        }
        return f"No attack returned {nothing[tallies[0].kind]}, so nothing could be compared with the truth."
    if base is None:
        return _without_base(defended, came)
    start = f"Without a defence, {base.amount} {came}"
    if not base.leaks:
        return f"{start}{_beside_prior(base)}; {_defences_too(defended)}."
    if not defended:
        return f"{start}{_beside_prior(base, shares_alone=True)}; {_NO_DEFENCE}."
    return f"{start}{_beside_prior(base, shares_alone=True)}; {_best_defence(base, defended)}."


_NO_DEFENCE = "no defence was measured"
_NO_COST = "what that costs in accuracy was not measured"


def _beside_prior(one: Tally, shares_alone: bool = False) -> str:
    """How that compares with no leak at all."""
    if math.isnan(one.prior) or one.kind in ERRORS or (one.counts and shares_alone):
        return ""
    if not one.counts:
        return f" (a guess without any leak finds {percent(one.prior)})"
    return f", on average {decimal(one.mean)} dB where a guess without any leak scores {decimal(one.prior)} dB"


def _best_defence(base: Tally, defended: Sequence[Tally]) -> str:
    # A defence that met fewer attacks has an easier life: it comes last whatever it scored.
    best = min(defended, key=lambda one: (one.met != base.met, one.share, _or(one.cost, math.inf)))
    if not best.leaks:
        guess = "" if best.counts else ", no more than a guess"
        return f"with {best.label} {best.short} {best.verb}{guess}{_cost(best)}"
    if best.share < base.share:
        if len(defended) > 1:
            return f"the best defence measured, {best.label}, still let {best.short} through{_cost(best)}"
        return f"with {best.label} {best.short} still {best.verb}{_cost(best)}"
    if len(defended) > 1:
        return f"none of the {len(defended)} defences measured lowered that"
    return f"with {best.label} {best.short} {best.verb}{_cost(best)}"


def _defences_too(defended: Sequence[Tally]) -> str:
    if not defended:
        return _NO_DEFENCE
    worst = max(defended, key=lambda one: one.share)
    if worst.leaks:
        return f"but with {worst.label} {worst.short} {worst.verb}"
    if len(defended) == 1:
        return f"with {worst.label} {worst.short} {worst.verb}"
    more = "were more found" if worst.kind in ("token", "attribute", "source", "label") else "did more come back"
    return f"with none of the {len(defended)} defences measured {more}"


def _without_base(defended: Sequence[Tally], came: str) -> str:
    best, worst = min(defended, key=lambda one: one.share), max(defended, key=lambda one: one.share)
    reached = "" if math.isnan(best.accuracy) else f" and accuracy reached {percent(best.accuracy, 1)}"
    if best.defence == AS_CAPTURED:
        return f"From the updates as they were captured, {best.amount} {came}{_beside_prior(best)}."
    text = f"With {best.label}, {best.amount} {came}{reached}"
    if worst.share > best.share:
        text += f"; with {worst.label} {worst.short} {worst.verb}"
    return f"{text}; without a defence nothing was measured, so what a defence changed is not known."


def _cost(one: Tally) -> str:
    if math.isnan(one.cost):
        return f"; {_NO_COST}"
    points = decimal(abs(100 * one.cost))
    if float(points) == 0:
        return ", at no measurable cost in accuracy"
    return (
        f", at a cost of {points} points of accuracy" if one.cost > 0 else f", and accuracy was {points} points higher"
    )


def _or(value: float, other: float) -> float:
    return other if math.isnan(value) else value


def _nothing_measured(rows: pd.DataFrame) -> str:
    attacked = rows[rows["attack"] != "none"]
    if rows.empty:
        return "Nothing was measured: the table has no rows."
    if attacked.empty:
        return "No attack was run, so what the updates give away is not known."
    failed = attacked[attacked["metric"] == "none"]
    if ((attacked["defence"] == AS_CAPTURED) & (attacked["metric"] != "none")).any():
        return (
            "The attacks answered, but without the clients' data nothing can be scored: what came back is shown "
            "unscored, with what is known without them."
        )
    if failed.empty:
        if not answers(rows, "label").empty:
            return "Only labels were attacked, by attackers who were told them: what updates give away is not known."
        return "The attacks gave no measured reconstruction, so what the updates give away is not known."
    reasons = failed["outcome"].astype(str).str.partition(":")[0].value_counts(sort=False)
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"No attack could be measured ({why}), so what the updates give away is not known."


def _about_tallies(every: Sequence[Tally]) -> list[str]:
    """About what came back of one kind."""
    words = []
    base = next((one for one in every if one.defence == "none"), every[0])
    pairs = len({met[1:4] for one in every for met in one.met})
    cases = len({met[0] for one in every for met in one.met})
    if pairs > 1:
        scope = f" in each of {cases} cases" if cases > 1 else ""
        of_what = PLURALS[base.kind]
        words.append(f"Counted for {of_what} is the strongest of {pairs} pairs of attack and threat model{scope}.")
    elif cases > 1:
        words.append(f"Counted over {cases} cases.")
    words += [
        f"With {one.label}, {one.free} of the {round(one.found)} images above the threshold are so plain that a guess "
        "without any leak would be above it too."
        for one in every
        if one.free
    ]
    if any(one.met != base.met for one in every):
        words.append("Not every defence met the same attacks and examples: compare them line by line in the table.")
    none = next((one for one in every if one.kind == "image" and one.found == 0 and not math.isnan(one.mean)), None)
    if none is not None:
        # As in every table the client is the unit; of a single one the images are.
        units, of_what = (none.clients, "clients") if none.clients > 1 else (none.total, "images of one client")
        high = percent(share_interval(0, units).high)
        words.append(
            f"0 of {none.total} is not proof of safety: even for this very attack the true share may be up to {high} "
            f"(95 % confidence, {units} {of_what}), and other attacks may do better."
        )
    return words


def _labels(rows: pd.DataFrame, threats: Mapping[str, ThreatModel]) -> list[str]:
    told = rows["threat"].isin(_told_labels(threats))
    found = rows[(rows["metric"] == "label_accuracy") & (rows["defence"] == "none") & ~told]
    if found["value"].notna().sum() == 0:
        return []
    means = found.groupby(["case", *_PAIR], sort=False)["value"].mean()
    return [f"Without a defence, up to {percent(float(means.max()))} of a client's labels were found from its update."]


def _lanes(rows: pd.DataFrame) -> list[str]:
    measured = rows[(rows["attack"] != "none") & (rows["metric"] != "none")]
    keys = ["case", *_DEFENCE, *_PAIR, "client"]
    lanes = measured.drop_duplicates(keys)
    stuck = int(lanes["outcome"].isin(["not reduced", "diverged", "never finite"]).sum())
    if not stuck:
        return []
    return [
        f"In {stuck} of {plural(len(lanes), 'attacked update')} the attack's search got stuck or diverged: a low score "
        "there may say more about the attack than about the defence."
    ]


def _failed(rows: pd.DataFrame) -> list[str]:
    failed = int((rows["metric"] == "none").sum())
    return [f"{plural(failed, 'trial')} gave no number; see “What gave no number”."] if failed else []


def _unfinished(rows: pd.DataFrame, trials: Collection[str]) -> list[str]:
    missing = len(set(trials) - set(rows["trial"])) if len(rows) else len(set(trials))
    if not missing:
        return []
    return [f"{missing} of {plural(len(set(trials)), 'trial')} {'has' if missing == 1 else 'have'} not run yet."]
