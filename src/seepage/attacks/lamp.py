"""LAMP: texts by matching gradients over embeddings and, in turn, over the order of tokens.

Balunović, Dimitrov, Jovanović and Vechev, 2022, "LAMP: Extracting text from gradients with language model priors"
(https://arxiv.org/abs/2202.08827).

The angle between simulated and observed update is minimised over embeddings whose length is held to that of real ones;
now and then tokens are swapped and moved, and what explains the update best and reads most like text is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from seepage.attacks.base import check_needs
from seepage.attacks.tokens import token_bags
from seepage.engine.lanes import over_lanes
from seepage.engine.minimise import Solution, best_start, minimise
from seepage.engine.optimisers import adam, exponential
from seepage.engine.precision import Precision, arithmetic
from seepage.finding import Finding, NotApplicable
from seepage.local import local_update
from seepage.pieces.analytic import of_client
from seepage.pieces.bigrams import Bigrams
from seepage.pieces.distances import cosine, layer_cosine, squared_and_absolute
from seepage.pieces.embedded_texts import EmbeddedTexts, embedded, filled_places, nearest_tokens, simulation
from seepage.pieces.labels import guess_labels
from seepage.pieces.starts import normal_lanes
from seepage.pieces.text_moves import new_orders, with_one_other
from seepage.streams import Stream
from seepage.task import Params
from seepage.threat import Fact, View

__all__ = ["LAMP"]

TOGETHER = 2**26
"""Numbers of simulated updates that are held at once while moves are compared."""

Values = Callable[[Tensor], Tensor]
"""From candidates (k, n, …) to how badly each explains the update, (k,)."""


@dataclass(frozen=True)
class LAMP:
    """Reconstruct texts by searching embeddings and orders of tokens in turn.

    Args:
        distance: `"cosine"` of the whole update, `"layers"`, the mean over its tensors, or `"absolute"`, that of TAG.
        absolute: weight of the absolute distance in the latter, α in eq. (3).
        length: weight of the difference between the mean length of embeddings and that of real ones, eq. (5).
        surprise: weight of the language model where moves are compared; without public texts there is none.
        lr: step size of Adam.
        decay: of the step size over 50 iterations.
        steps: iterations over embeddings, of all turns together.
        turns: how often moves are tried; the search over embeddings goes on in between.
        moves: how many are tried for each text in each turn.
        starts: restarts, of which the one with the lowest objective is answered.
        embeddings: also use which rows of the token embedding's gradient are moved, where it is seen.
        sweeps: in the end, how often each token is exchanged for the one that explains the update best.
        choices: tokens that are tried at each place then: all that occur where these are fewer, else the nearest.
        precision: of products on a GPU.

    Note:
        The paper's language model is GPT-2; here it is counts of neighbouring tokens in public texts, where the threat
        model grants some. The paper keeps the nearest tokens of the last embeddings, as `sweeps = 0` does; exchanging
        single tokens afterwards is added here, and finds lengths too. The paper picks its start among 500.
    """

    name: ClassVar[str] = "lamp"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_paper": {"distance": "layers", "embeddings": False, "sweeps": 0},
        "absolute": {"distance": "absolute", "length": 25.0, "surprise": 60.0},
    }

    distance: Literal["cosine", "layers", "absolute"] = "cosine"
    absolute: float = 0.01
    length: float = 1.0
    surprise: float = 0.2
    lr: float = 0.01
    decay: float = 0.89
    steps: int = 2000
    turns: int = 20
    moves: int = 200
    starts: int = 1
    embeddings: bool = True
    sweeps: int = 4
    choices: int = 64
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= self.steps:
            raise ValueError(f"expected `turns` between 1 and `steps`, got {self.turns} and {self.steps}")

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view: embeddings at once, orders and tokens one client after another."""
        check_needs(self, view)
        search = _Search.met(self, view, rng)
        shape = (view.count, *view.task.spec.shape, search.texts.tables.shape[-1])
        x = normal_lanes(view, self.starts, rng / "start", *shape)
        x = x / x.norm(dim=-1, keepdim=True) * search.usual_length[:, None, None, None, None]
        found = search.matched_from(x)
        for turn in range(1, self.turns):
            later = search.matched_from(search.reordered(found.x, rng / "moves" / turn), turn)
            found = replace(later, first_value=found.first_value)
        ids, values = search.answered(found, rng / "exchanges")
        best = best_start(replace(found, x=ids, value=values))
        return Finding(
            best.x, search.labels, best.value, best.status, best.first_value, search.sure, tokens=search.occurring
        )


@dataclass(frozen=True, eq=False)
class _Search:
    """What is searched with, for all clients.

    Args:
        how: the knobs.
        view: the messages and facts.
        texts: the task as a function of embeddings.
        labels: of the texts, (clients, n).
        sure: of them, (clients,).
        there: filled places, (clients, length).
        occurring: tokens that occur, (clients, vocabulary); `None` where that does not show.
        language: how usual texts are; `None` without public ones.
    """

    how: LAMP
    view: View
    texts: EmbeddedTexts
    labels: Tensor
    sure: Tensor
    there: Tensor
    occurring: Tensor | None
    language: Bigrams | None

    @staticmethod
    def met(how: LAMP, view: View, rng: Stream) -> _Search:
        texts = embedded(view)
        labels, sure = guess_labels(view, rng / "labels")
        occurring = language = None
        if how.embeddings:
            try:
                occurring = token_bags(view)
            except NotApplicable:  # frozen, or hidden by noise
                occurring = None
        if view.knows(Fact.PUBLIC_DATA):
            language = Bigrams.counted(view.public.x, texts.tables.shape[1])
        return _Search(how, view, texts, labels, sure, filled_places(view), occurring, language)

    @property
    def given(self) -> tuple[Any, ...]:
        """What the objective is told of each client."""
        texts = self.texts
        return self.labels, self.there, texts.tables[:, 0], texts.params, texts.buffers, texts.update

    @property
    def usual_length(self) -> Tensor:
        """The mean length of the embeddings of all tokens, (clients,)."""
        means: Tensor = self.texts.tables[:, 1:].norm(dim=-1).mean(-1)
        return means

    def matched_from(self, x: Tensor, turn: int = 0) -> Solution:
        """Where matching the update leads from embeddings (clients, starts, n, length, width), in one of the turns."""
        how, steps = self.how, self.how.steps // self.how.turns
        return minimise(
            self.objective,
            x,
            (*self.given, self.usual_length),
            optimiser=exponential(adam(how.lr * how.decay ** (turn * steps / 50)), how.decay, 50),
            steps=steps,
            batched=self.texts.task.batched,
            precision=how.precision,
        )

    def apart(self, guess: Params, update: Params) -> Tensor:
        if self.how.distance == "absolute":
            return squared_and_absolute(guess, update, self.how.absolute)
        return {"cosine": cosine, "layers": layer_cosine}[self.how.distance](guess, update)

    def matched(
        self, x: Tensor, y: Tensor, there: Tensor, empty: Tensor, params: Params, buffers: Params, update: Params
    ) -> Tensor:
        """How badly embeddings explain the update."""
        return self.apart(simulation(self.view, self.texts)(x, y, there, empty, params, buffers), update)

    def objective(self, x: Tensor, *given: Any) -> Tensor:
        """Likewise, with their length held to that of real ones, eq. (5)."""
        *known, usual = given
        filled = known[1].expand(x.shape[:2]).to(x)
        mean: Tensor = (x.norm(dim=-1) * filled).sum() / filled.sum().clamp(min=1)
        total: Tensor = self.matched(x, *known) + self.how.length * (mean - usual) ** 2
        return total

    def allowed(self, i: int) -> Tensor:
        """Tokens that a client may have."""
        tokens = torch.arange(1, self.texts.tables.shape[1], device=self.there.device)
        if self.occurring is None or not self.occurring[i].any():
            return tokens
        return tokens[self.occurring[i][1:]]

    def reordered(self, x: Tensor, rng: Stream) -> Tensor:
        """Embeddings (clients, starts, n, length, width), each text in the best order of some that were tried."""
        x = x.clone()
        for i, client in enumerate(self.view.clients):
            given = pytree.tree_map(lambda leaf, i=i: leaf[i], self.given)
            table, allowed = self.texts.tables[i], self.allowed(i)

            def values(
                xs: Tensor, given: Any = given, table: Tensor = table, allowed: Tensor = allowed, i: int = i
            ) -> Tensor:
                matched = self._together(lambda x: self.matched(x, *given), xs, self.texts.task.batched)
                ids = torch.where(self.there[i], nearest_tokens(xs, table, allowed)[..., 0], 0)
                return matched + self._surprise(ids)

            for s in range(x.shape[1]):
                generator = (rng / client / s).generator()
                for j in range(self.view.count):
                    orders = new_orders(int(self.there[i].sum()), x.shape[3], self.how.moves, generator)
                    xs = x[i, s].repeat(len(orders), 1, 1, 1)
                    xs[:, j] = x[i, s, j][orders.to(x.device)]
                    x[i, s] = xs[values(xs).argmin()]
        return x

    def answered(self, found: Solution, rng: Stream) -> tuple[Tensor, Tensor]:
        """Token ids (clients, starts, n, length) of what was found, and how badly they explain the update."""
        ids = torch.zeros(found.x.shape[:-1], dtype=torch.long, device=found.x.device)
        values = found.value.clone()
        for i, client in enumerate(self.view.clients):
            for s, x in enumerate(found.x[i]):
                nearest = nearest_tokens(x, self.texts.tables[i], self.allowed(i), self.how.choices)
                ids[i, s] = torch.where(self.there[i], nearest[..., 0], 0)
                if self.how.sweeps:
                    ids[i, s], values[i, s] = self._exchanged(ids[i, s], nearest, i, (rng / client / s).generator())
        return ids, values

    def _exchanged(self, ids: Tensor, nearest: Tensor, i: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Single tokens and orders are changed as long as that explains the update better."""
        values, most = self._of_tokens(i), int(self.there[i].sum())
        best = values(ids[None])[0]

        def better(j: int, options: Tensor) -> None:
            nonlocal ids, best
            others = ids.repeat(len(options), 1, 1)
            others[:, j] = options
            found = values(others)
            if (which := int(found.argmin())) and found[which] < best:
                ids, best = others[which], found[which]

        for _ in range(self.how.sweeps):
            before = ids
            for j in range(len(ids)):
                for place in torch.randperm(most, generator=generator).tolist():
                    if place <= int((ids[j] != 0).sum()):
                        better(j, with_one_other(ids[j], place, nearest[j, place]))
                orders = new_orders(int((ids[j] != 0).sum()), len(ids[j]), self.how.moves, generator)
                better(j, ids[j][orders.to(ids.device)])
            if ids.equal(before):
                break
        return ids, best

    def _of_tokens(self, i: int) -> Values:
        """How badly tokens explain the whole update, their own embeddings' part of it included."""
        view, recipe = self.view, self.view.assumed_recipe
        params, buffers, update = (of_client(t, i) for t in (view.params, view.buffers, view.update))

        def matched(ids: Tensor) -> Tensor:
            schedule = recipe.schedule(ids, self.labels[i])
            guess = local_update(view.task, params, schedule, recipe, view.assumed_defence, buffers=buffers)
            return self.apart({name: guess[name] for name in update}, update)

        return lambda ids: self._together(matched, ids, view.task.batched) + self._surprise(ids)

    def _together(self, function: Callable[[Tensor], Tensor], candidates: Tensor, batched: bool) -> Tensor:
        size = sum(p[0].numel() for p in self.view.params.values())
        lanes = over_lanes(function, batched)
        # Nothing here asks for a derivative, so that no graph is kept.
        with arithmetic(self.how.precision), warnings.catch_warnings():
            # Where no derivative of its input is asked for, torch takes an LSTM that it batches by a loop, and says so.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return torch.cat([lanes(some) for some in candidates.split(max(1, min(64, TOGETHER // size)))])

    def _surprise(self, ids: Tensor) -> Tensor | float:
        if self.language is None:
            return 0.0
        flat = self.language.surprise(ids.flatten(0, 1)).reshape(ids.shape[:2]).mean(1)
        return self.how.surprise * flat.to(ids.device)
