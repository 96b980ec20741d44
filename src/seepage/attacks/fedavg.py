"""Data Leakage in Federated Averaging.

Dimitrov, Balunović, Konstantinov and Vechev, 2022, "Data leakage in federated averaging" (dimitrov2022,
https://arxiv.org/abs/2206.12395).

All local steps of the client are simulated, on dummies of their own for every epoch, because the attacker does not know
in which order an epoch visits the examples. A prior says that epochs hold the same examples in some order; in the end
the dummies of all epochs are matched and averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.engine.lanes import over_lanes
from seepage.engine.minimise import Solution, best_start, minimise
from seepage.engine.optimisers import Optimiser, adam, exponential
from seepage.engine.optimisers import cosine as annealed
from seepage.engine.precision import Precision
from seepage.finding import Finding, NotApplicable
from seepage.knobs import added
from seepage.pieces.assign import Combination, Similarity, combine, match_epochs
from seepage.pieces.distances import cosine, relative, squared
from seepage.pieces.gradients import gradients_in
from seepage.pieces.labels import MethodName, guess_labels
from seepage.pieces.layers import layer_weights
from seepage.pieces.orders import PairDistance, Statistic, order_prior, random_filters
from seepage.pieces.priors import outside_box, squared_variation, total_variation
from seepage.pieces.simulation import simulated_update
from seepage.pieces.starts import normal_lanes
from seepage.recipe import Recipe, Schedule
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["FedAvg", "aligned_orders", "epoch_schedule"]

_CODE_FEMNIST: dict[str, Any] = {"labels": "geng-as-code"}  # for the rest, the fields' own values
_CODE_CIFAR: dict[str, Any] = {
    **_CODE_FEMNIST,
    "order": 6.075,
    "statistic": "conv-max",
    "tv": 2e-4,
    "clip": 10.0,
    "ramp": (4.0, 2.0, 200),
    "lr": 0.1,
    "rate": 0.997,
    "every": 20,
}
_TEXT = {
    **_CODE_FEMNIST,
    "distance": "cosine",
    "layer_decay": 0.0,
    "ramp": (1.0, 1.0, 200),
    "variation": "absolute",
    "steps": 200,
}
_OURS = {
    "steps": 800,
    "decay": "cosine",
    "ramp": (1.0, 1.0, 200),
    "within": "label",
    "matching": "label",
    "combination": "median",
    "labels": "auto",
}
_OURS_FEMNIST = {**_OURS, "order": 10.0, "layer_decay": 0.5, "tv": 6e-4, "split": "random"}
_OURS_CALM = {**_OURS_FEMNIST, "spread": 0.1}
_OURS_CIFAR = {
    "order": 10.0,
    "statistic": "mean",
    "tv": 5e-4,
    "shared_tv": True,
    "layer_decay": 0.5,
    "split": "random",
    "lr": 0.3,
    "steps": 400,
}
_DISTANCES = {"squared": squared, "relative": relative, "cosine": cosine}


@dataclass(frozen=True)
class FedAvg:
    """Reconstruct inputs by simulating the client's local training, epoch by epoch.

    Args:
        order: weight of the epoch order-invariant prior, λ_inv.
        statistic: g, which must be the same in every epoch: `"mean"` or `"max"` over the images of an epoch, or
            `"conv-mean"` or `"conv-max"`, the same after a random convolution.
        pairs: D_inv, the distance between two epochs: `"l2"` or `"l1"`.
        within: take g over all examples of an `"epoch"` as in eq. (3), or over those of each `"label"` by itself.
        scaled: multiply `order` by E·N / 500, which keeps its force on a single pixel as it is for 10 epochs of 50.
        tv: weight of total variation, λ_TV; images only.
        variation: `"squared"`, the differences of the code, or `"absolute"`, those of geiping2020.
        clip: weight of the squared distance to the range of the data, λ_clip.
        distance: L_sim, between simulated and observed update: `"squared"`; `"relative"`, the same per squared length
            of the observed one; or `"cosine"` as in section 4.3.
        scale: weight of L_sim.
        layer_decay: in the distance the l-th layer weighs e^(−layer_decay·l).
        ramp: L_sim is multiplied with a factor that goes geometrically from the first number to the second within so
            many steps.
        lr: step size of Adam, η_rec.
        decay: of the step size: `"exponential"`, by `rate` every `every` steps; `"cosine"`, to zero at the last step;
            or `"none"`.
        rate: γ_rec.
        every: steps that `rate` is for.
        steps: iterations.
        starts: restarts, of which the one with the lowest objective is answered.
        variables: dummies of their own for each of the `"epochs"`, or `"shared"` between them.
        simulates: all local `"steps"`; `"epochs"`, each as one step on all examples; or `"gradient"`, one gradient on
            all examples times the number of steps.
        split: how counted labels are dealt to batches: drawn once and `"tiled"` over the epochs as in section 4.3,
            drawn for each epoch (`"random"`), or not drawn, from the lowest label to the highest (`"ascending"`). Known
            batches are taken as they are.
        labels: how labels are counted where the threat model hides them; a key of `seepage.pieces.labels.METHODS`.
        similarity: by which epochs are matched in the end: total `"psnr"`, or `"squared"` error.
        matching: pairs are sought among all examples of an `"epoch"` or only among those of the same `"label"`.
        combination: what is answered of the matched dummies: their `"mean"`, or the `"median"` of every pixel.
        members: how many clients of equal size were summed into each update that is seen. Labels are dealt to them
            once, at random, or to each its own where the threat model tells who has which (`member labels`).
        precision: of products on a GPU; `"tf32"` is faster, and the row says so.
        compiled: on a GPU, compile the simulation of local training, which takes half a minute and pays for long runs.
        chunk: most clients × restarts in one program; `None` is as many as memory allows.
        keep_every: in the simulation of local steps, keep every k-th state and recompute the others; `None` keeps all.
        shared_tv: `tv` is for all epochs together, and the dummies of each have an equal share of it: where there are
            more epochs, what is answered of them smooths as well.
        spread: standard deviation of the first dummies, which are normal.

    Note:
        | | presets `as_paper_…` | presets `as_code_…` |
        |---|---|---|
        | L_sim | cosine | Σ e^(−l)·‖Δ_l − Δ̃_l‖² / batches, with Δ = update / η, times a factor in time |
        | iterations | 200 | 400 |
        | total variation | as in geiping2020 | squared, around the borders, summed over pixels |

        With the printed weights the cosine, which is of order 1, is swamped by the priors; `scale = 100` mends that
        (`as_paper_scaled_femnist`). Both readings share an Adam whose step size falls continuously, where the text has
        stairs. Answered is the last candidate where the factor changes in time, as in the code, and else the best one.
        The code deals known labels to batches in the order in which the client stores them, where here the attacker
        deals them at random, and recovered ones in ascending order (`split = "ascending"`, as in Table 3). In the code,
        the simulation of a client with known batches and shared variables is told the client's own orders; here only
        which labels a batch holds, see `aligned_orders`.

        The code divides L_sim by the number of batches, counted over all dummies. Each of the terms then acts on a
        single pixel as 1 / (E·N), so that their balance depends on E and N through the size of the update alone; with
        `"cosine"`, which is not divided, `scaled` is there to restore it.

        `ours_…` differ from the code in a step size that falls to zero, in the prior, which is taken label by label
        (where a label occurs once, its dummies must agree across epochs), and in matching within labels and answering
        the median. They also count later layers for more, smooth less, and deal labels anew for each epoch, so that the
        median is over different mistakes; in a development run on other images of 8 writers (400 iterations) each of
        the three by itself brought 80.5 % of images recovered to 81.2 to 83.8 %. `ours_femnist` runs twice as long.
        `ours_cifar` takes steps three times as long: on 5 clients of 50 test images of CIFAR-100 (300 iterations)
        72.4 % became 82.4 % by these alone and 88.4 % with all four. It divides total variation among epochs: with one
        epoch, ten times as much as each of ten has brought 14.1 to 15.8 dB on 3 clients of such images. On FEMNIST the
        same brought 20.4 to 19.7 dB on 4 clients, and is not done.

        `ours_calm_femnist` begins with dummies a tenth as loud, for models that are trained already: after ten rounds
        45 % of images recovered became 58 % (Table 7, 20 clients; the code has 33 %), and at the first model nothing
        was lost. The tenth was chosen by truth on other images of two writers; the code gained nothing by it there.

        `ours` is for any network. The priors of the others are weighed against the length of an update of the paper's
        networks, whose square is 100 to 300 in these units; from PyTorch's own first weights it is ten times less and
        more, where the priors swamp it. `ours` takes the distance per squared length of the update. Its scale was
        chosen by truth, coarsely, on clients of Fashion-MNIST who are in no table; `benchmarks/suite_fedavg.py` says
        what it brings.

        Labels keep their batches during the search, because there is little to gain by moving them: told the labels of
        every batch, `ours_femnist` did no better in development runs on FEMNIST (15 images of each writer, one seed:
        3 writers with 3 epochs and 150 iterations 0.0 dB more, 4 writers with 4 epochs and 200 iterations 0.15 dB
        less); at 10 epochs of 50 images the paper has 0.2 dB more (Table 8).
    """

    name: ClassVar[str] = "fedavg-leakage"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT, Fact.RECIPE})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_code_femnist": _CODE_FEMNIST,
        "as_code_cifar": _CODE_CIFAR,
        "as_paper_femnist": _TEXT,
        "as_paper_scaled_femnist": {**_TEXT, "scale": 100.0},
        "as_paper_cifar": {**_CODE_CIFAR, **_TEXT},
        "ours_femnist": _OURS_FEMNIST,
        "ours_calm_femnist": _OURS_CALM,
        "ours": {**_OURS_CALM, "distance": "relative", "scale": 100.0},
        "ours_cifar": {**_CODE_CIFAR, **_OURS, **_OURS_CIFAR},
    }

    order: float = 1000.0
    statistic: Statistic = "mean"
    pairs: PairDistance = "l2"
    within: Literal["epoch", "label"] = "epoch"
    scaled: bool = False
    tv: float = 1e-3
    variation: Literal["squared", "absolute"] = "squared"
    clip: float = 2.0
    distance: Literal["squared", "relative", "cosine"] = "squared"
    scale: float = 1.0
    layer_decay: float = 1.0
    ramp: tuple[float, float, int] = (1.0, 2.0, 200)
    lr: float = 0.4
    decay: Literal["exponential", "cosine", "none"] = "exponential"
    rate: float = 0.995
    every: int = 10
    steps: int = 400
    starts: int = 1
    variables: Literal["epochs", "shared"] = "epochs"
    simulates: Literal["steps", "epochs", "gradient"] = "steps"
    split: Literal["tiled", "random", "ascending"] = "tiled"
    labels: MethodName = "geng-interpolated"
    similarity: Similarity = "psnr"
    matching: Literal["epoch", "label"] = "epoch"
    combination: Combination = "mean"
    members: int = 1
    precision: Precision = "fp32"
    compiled: bool = False
    chunk: int | None = None
    keep_every: int | None = None
    shared_tv: bool = added(False)
    spread: float = added(1.0)

    def __post_init__(self) -> None:
        if self.within == "label" and self.statistic.endswith("max"):
            raise ValueError(
                f"expected `statistic` to be a mean where `within` is 'label', got {self.statistic!r}; "
                "a label that occurs once has one image, whose mean it is"
            )
        if min(self.ramp) <= 0:
            raise ValueError(f"expected three numbers above 0 in `ramp`, got {self.ramp}")
        if self.members < 1:
            raise ValueError(f"expected `members` of at least 1, got {self.members}")
        if self.spread <= 0:
            raise ValueError(f"expected `spread` above 0, got {self.spread}; dummies that begin alike stay alike")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view at once."""
        check_needs(self, view)
        view = _as_one_client(view, self.members)
        recipe, gain = self._simulated(view)
        labels, sure = self._dealt_labels(view, recipe.epochs, rng / "labels")  # (clients, epochs, n)
        found = best_start(self._search(view, recipe, gain, labels, rng))
        inputs = torch.stack([self._one_of_each(view, x, y) for x, y in zip(found.x, labels, strict=True)])
        return Finding(inputs, labels[:, 0], found.value, found.status, found.first_value, sure)

    def _search(self, view: View, recipe: Recipe, gain: float, labels: Tensor, rng: Stream) -> Solution:
        """Algorithm 2 of dimitrov2022, lines 5 to 11: dummies (clients, starts, epochs or 1, n, …)."""
        task, spec, members = view.task, view.task.spec, self.members
        shared = self.variables == "shared"
        epochs = 1 if shared else recipe.epochs
        start = self.spread * normal_lanes(view, self.starts, rng / "start", epochs, view.count, *spec.shape)
        lower, upper = spec.box(start)
        weights = self._tensor_weights(view, epochs)
        target = {name: weights[name] * update / _step_size(view) for name, update in view.update.items()}
        order = self.order * (epochs * view.count / 500 if self.scaled else 1.0)
        convolves = self.statistic.startswith("conv") and spec.is_image and order > 0
        extra = {"filters": random_filters(view, rng / "filters")} if convolves else {}
        if shared and view.knows(Fact.BATCH_LABELS) and members == 1:
            extra["orders"] = aligned_orders(labels)

        def priors(x: Tensor, y: Tensor, filters: Tensor | None) -> Tensor:
            images = x.flatten(0, 1)
            value = self.clip * outside_box(images, lower, upper)
            if self.tv and spec.is_image:
                value = value + self.tv / (len(x) if self.shared_tv else 1) * self._variation(images)
            if order and len(x) > 1:  # eq. (3), for each member by itself
                of = y if self.within == "label" else None
                parts = zip(x.chunk(members, 1), [None] * members if of is None else of.chunk(members, 1), strict=True)
                disagree = [order_prior(own, self.statistic, self.pairs, filters=filters, labels=z) for own, z in parts]
                value = value + order * torch.stack(disagree).mean()
            return value

        def objective(
            x: Tensor, y: Tensor, params: Params, buffers: Params, target: Params, extra: Params, *clock: Tensor
        ) -> Tensor:
            def client(x: Tensor, y: Tensor) -> Params:
                schedule = epoch_schedule(recipe, x, y, extra.get("orders"))
                return simulated_update(
                    view, params, schedule, recipe, buffers, keep_every=self.keep_every, compiled=self.compiled
                )

            if members == 1:
                guess = client(x, y)
            else:
                each = [torch.stack(part.chunk(members, 1)) for part in (x, y)]  # (members, epochs, …)
                guess = {name: u.mean(0) for name, u in over_lanes(client, task.batched)(*each).items()}
            guess = {name: gain * weights[name] * u for name, u in guess.items()}
            value = self.scale * _DISTANCES[self.distance](guess, target)
            for updates in clock:
                value = value * self._factor(updates)
            return value + priors(x, y, extra.get("filters"))  # line 9

        return minimise(
            objective,
            start,
            (labels, view.params, view.buffers, target, extra),
            optimiser=self._optimiser(),
            steps=self.steps,
            chunk=self.chunk,
            batched=task.batched,
            precision=self.precision,
            clocked=self.ramp[0] != self.ramp[1],
        )

    def _simulated(self, view: View) -> tuple[Recipe, float]:
        """What is simulated, and how often its result goes into a sum of gradients."""
        if view.kind == "gradient":
            return view.recipe, 1.0
        recipe, lr = view.recipe, view.recipe.optimiser.lr
        if self.simulates == "gradient":
            return Recipe(sends="gradient", batch_norm=recipe.batch_norm), gradients_in(view) / lr
        if self.simulates == "epochs":
            batches = recipe.steps(view.count) // recipe.epochs
            return replace(recipe, batch_size=None, optimiser=replace(recipe.optimiser, lr=lr * batches)), 1 / lr
        return replace(recipe, batch_size=recipe.batch_size and recipe.batch_size // self.members), 1 / lr

    def _tensor_weights(self, view: View, epochs: int) -> dict[str, float]:
        """Roots of what squares are weighed with: the layers' weights, divided by the number of batches of dummies."""
        weights = layer_weights(view.update, self.layer_decay)
        batches = epochs * view.recipe.steps(view.count) / view.recipe.epochs if self.distance == "squared" else 1.0
        return {name: math.sqrt(weight / batches) for name, weight in weights.items()}

    def _dealt_labels(self, view: View, epochs: int, rng: Stream) -> tuple[Tensor, Tensor | None]:
        """Labels in the order of simulated training, (clients, epochs, n), and how sure they are."""
        if view.knows(Fact.BATCH_LABELS):
            return view.batch_labels[:, :epochs], None
        counted, sure = guess_labels(view, rng, "auto" if view.knows(Fact.LABELS) else self.labels)
        draws = epochs if self.split == "random" else 1
        parts = self._labels_of_parts(view, counted.cpu(), rng)  # (clients, parts, …): batches are drawn within each
        if self.split == "ascending":
            dealt = parts.flatten(1, 2)[:, None]
        else:
            dealt = torch.stack(
                [
                    torch.stack([_shuffled(own, rng / "split" / client / e) for e in range(draws)])
                    for client, own in zip(view.clients, parts, strict=True)
                ]
            )
        return dealt.expand(-1, epochs, *dealt.shape[2:]).contiguous().to(counted.device), sure

    def _labels_of_parts(self, view: View, counted: Tensor, rng: Stream) -> Tensor:
        """Labels by member where the threat model says who has which, and else dealt to them once.

        A member keeps its examples from epoch to epoch. Where batches are the same in all, they are the deal.
        """
        told = view.knows(Fact.MEMBER_LABELS)
        if self.members == 1 or (self.split != "random" and not told):
            return counted[:, None]
        if not told:
            each = [_shuffled(own[None], rng / "members" / c) for c, own in zip(view.clients, counted, strict=True)]
            return torch.stack(each).reshape(len(each), self.members, -1, *counted.shape[2:])
        known: Tensor = view.member_labels.cpu()
        if known.shape[1] != self.members:
            raise NotApplicable(f"expected `members` of {known.shape[1]}, whose labels are known, got {self.members}")
        return known

    def _one_of_each(self, view: View, x: Tensor, y: Tensor) -> Tensor:
        """Appendix A of dimitrov2022: one client's dummies (epochs or 1, n, …) matched and combined, (n, …)."""
        spec = view.task.spec
        pixels = spec.pixels(x) / (spec.high - spec.low)
        answers = []
        for own, shown, labels in zip(*(part.chunk(self.members, 1) for part in (x, pixels, y)), strict=True):
            of = labels if self.matching == "label" and not labels.is_floating_point() else None
            orders = match_epochs(shown, None if of is None or len(own) == 1 else of, self.similarity)
            answers.append(combine(own, orders, self.combination))
        return torch.cat(answers)

    def _variation(self, images: Tensor) -> Tensor:
        return squared_variation(images) if self.variation == "squared" else total_variation(images)

    def _factor(self, updates: Tensor) -> Tensor:
        first, last, steps = self.ramp
        return first * (last / first) ** torch.clamp(updates / steps, max=1.0)

    def _optimiser(self) -> Optimiser:
        step = adam(self.lr)
        if self.decay == "exponential":
            return exponential(step, self.rate, self.every)
        return annealed(step, max(1, self.steps)) if self.decay == "cosine" else step


def epoch_schedule(recipe: Recipe, x: Tensor, y: Tensor, orders: Tensor | None = None) -> Schedule:
    """The batches of training on examples of their own in each epoch.

    Args:
        recipe: says how many epochs there are and where they are cut.
        x: inputs, (epochs, n, …), or (1, n, …) for inputs that all epochs share.
        y: targets in the order of training, (epochs, n, …).
        orders: in which each epoch visits `x`, (epochs, n); as stored when absent.

    Example:
        >>> x, y = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.zeros(2, 3)
        >>> [batch.tolist() for batch in epoch_schedule(Recipe(epochs=2, batch_size=2), x, y).x]
        [[1.0, 2.0], [3.0], [4.0, 5.0], [6.0]]
    """
    size = recipe.batch_size or x.shape[1]
    epochs = [x[e if len(x) > 1 else 0] for e in range(recipe.epochs)]
    if orders is not None:
        epochs = [epoch[order] for epoch, order in zip(epochs, orders, strict=True)]
    return Schedule(
        tuple(batch for epoch in epochs for batch in epoch.split(size)),
        tuple(batch for e in range(recipe.epochs) for batch in y[e].split(size)),
    )


def aligned_orders(labels: Tensor) -> Tensor:
    """An order of the first epoch's examples that gives every epoch its labels, (…, epochs, n).

    Examples of equal label are visited in the same order in all epochs, as nothing is known about theirs.

    Args:
        labels: in the order of training, the same in each epoch up to their order, (…, epochs, n).

    Example:
        >>> labels = torch.tensor([[3, 5, 3], [5, 3, 3]])
        >>> aligned_orders(labels)
        tensor([[0, 1, 2],
                [1, 0, 2]])
        >>> labels[0][aligned_orders(labels)]
        tensor([[3, 5, 3],
                [5, 3, 3]])
    """
    ranks = labels.argsort(dim=-1, stable=True)
    return torch.zeros_like(ranks).scatter(-1, ranks, ranks[..., :1, :].expand_as(ranks))


def _as_one_client(view: View, members: int) -> View:
    """A sum of clients is like one that has all their examples and takes as many steps, on batches that are as large.

    Whoever counts steps or labels then finds the right numbers.
    """
    if members == 1:
        return view
    if view.count % members:
        raise NotApplicable(
            f"expected {members} members of equal size, got {view.count} examples in all; attack with another `members`"
        )
    size = view.recipe.batch_size
    recipe = replace(view.recipe, batch_size=None if size is None else size * members)
    return replace(view, _granted={**view._granted, Fact.RECIPE: recipe})


def _step_size(view: View) -> float:
    return 1.0 if view.kind == "gradient" else view.recipe.optimiser.lr


def _shuffled(parts: Tensor, rng: Stream) -> Tensor:
    """One part after the other, each in an order of its own."""
    streams = [rng] if len(parts) == 1 else [rng / k for k in range(len(parts))]
    return torch.cat([own[_permutation(len(own), of)] for own, of in zip(parts, streams, strict=True)])


def _permutation(n: int, rng: Stream) -> Tensor:
    return torch.randperm(n, generator=rng.generator())
