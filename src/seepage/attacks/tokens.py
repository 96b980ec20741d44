"""The texts that a client trained on, token by token and exactly, from the gradient of a transformer.

Petrov, Dimitrov, Baader, Müller and Vechev, 2024, "DAGER: Exact gradient inversion for large language models"
(https://arxiv.org/abs/2405.15586).

What enters the first self-attention is decided by a token and its place, and lies in the row space of the gradient of
the query, key and value weights: every token of the vocabulary is tried at every place. What enters a layer behind the
attention is decided by the text so far (decoder) or by the whole text (encoder), and the same test at that layer tells
which texts the tokens belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import check_needs
from seepage.finding import Finding, NotApplicable
from seepage.pieces.analytic import of_client
from seepage.pieces.embedded_texts import moved_rows, noise_of_rows, token_table
from seepage.pieces.token_layers import CHUNK, Entrance, entrances, reads_one_place, sees_only_the_past
from seepage.pieces.token_search import Choices, Outside, settle
from seepage.pieces.token_spans import Span, rounding, span_of
from seepage.streams import Stream
from seepage.task import Params, Task
from seepage.threat import Fact, View

__all__ = ["Dager", "TokenBag", "token_bags"]

Energy = Callable[[Tensor], Tensor]
"""From texts (n, length) to how far what enters the layer behind the attention lies from its span, (n, length).

Over the distance that rounding explains: up to 1 it lies inside.
"""

PROBES = 64
"""Directions outside of the span in which an encoder's texts are looked at during the search."""


@dataclass(frozen=True)
class TokenBag:
    """Which tokens occur, and nothing more: the rows of the embedding's gradient that are not zero, or not noise alone.

    The weaker answer, open to anybody who sees the gradient of an embedding: it names tokens, not how often or where
    they stand. Works for any network that begins with an embedding.
    """

    name: ClassVar[str] = "token-bag"
    needs: ClassVar[frozenset[Fact]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view."""
        check_needs(self, view)
        return Finding(tokens=token_bags(view))


def token_bags(view: View) -> Tensor:
    """Which tokens each client has, (clients, vocabulary); id 0, which fills up, is none.

    Rows of tokens that do not occur are zero; under noise, or weight decay, those of others stand out by their length.

    Raises:
        NotApplicable: without a trained embedding as large as the vocabulary, or when every row of it changed alike.
    """
    size, path = view.task.spec.vocabulary, token_table(view.task)
    if size is None or path is None or f"{path}.weight" not in view.update:
        raise NotApplicable("expected text and a trained embedding of its tokens, got none; its gradient names them")
    bags = []
    for update in view.update[f"{path}.weight"]:
        moved = update.any(-1)
        if moved[1:].all() and size > 2:
            noise = noise_of_rows(update[1:])
            moved = torch.zeros_like(moved) if noise is None else moved_rows(update, noise)
            if not moved[1:].any():
                raise NotApplicable(
                    f"expected a gradient of '{path}.weight' in which rows of tokens that occur stand out, got none "
                    "that does: noise, weight decay or a tied output layer moves every row"
                )
        moved[0] = False
        bags.append(moved)
    return torch.stack(bags)


@dataclass(frozen=True)
class Dager:
    """Recover texts exactly from the spans of a transformer's gradients.

    Texts come back in no particular order; a text that was not found holds −1. `objective` is the largest distance of
    an answered token to the span at the layer behind the attention, over what rounding explains, and beyond 1 where
    tokens that the embedding's gradient names were left over: up to 1 the texts are taken to be exact.

    Args:
        embeddings: also use which rows of the token embedding's gradient are zero, where it is seen.
        starts: for encoders, from how many made-up texts the search for each batch sets out.
        sweeps: for encoders, how often all exchanges of a token are tried from each of them.

    Note:
        The paper tests the gradients of the query projections of the first two layers. Here the gradients of all layers
        that read the same rows are taken together, and the second test is made at whichever layer behind the first
        attention has the largest rank and room. Tolerances follow from rounding instead of being set. For encoders the
        paper goes through combinations of the tokens; here the exchanges that together bring a text into the span are
        solved for.
    """

    name: ClassVar[str] = "dager"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.COUNT})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"as_paper": {"embeddings": False}}

    embeddings: bool = True
    starts: int = 64
    sweeps: int = 16

    def __call__(self, view: View, rng: Stream) -> Finding:
        """Attack all clients of the view, one after another."""
        check_needs(self, view)
        if not view.task.spec.is_text:
            raise NotApplicable(f"expected text, got numbers of shape {view.task.spec.shape}")
        bags = None
        if self.embeddings:
            try:
                bags = token_bags(view)
            except NotApplicable:  # frozen or noised: the spans may tell all the same
                bags = None
        found, refusals = [], []
        for i, client in enumerate(view.clients):
            try:
                found.append(self._client(view, i, None if bags is None else bags[i], rng / client))
            except NotApplicable as refusal:
                refusals.append(refusal)
                found.append((torch.full((view.count, *view.task.spec.shape), -1), float("inf")))
        if len(refusals) == len(found):
            raise refusals[0]
        device = next(iter(view.update.values())).device
        return Finding(
            inputs=torch.stack([texts for texts, _ in found]).to(device),
            objective=torch.tensor([worst for _, worst in found], device=device),
            tokens=bags,
        )

    def _client(self, view: View, i: int, bag: Tensor | None, rng: Stream) -> tuple[Tensor, float]:
        client = _Client.met(view, i)
        candidates = client.candidates(bag)
        if all(len(c) <= 1 for c in candidates):  # nothing to combine
            text = torch.tensor([int(c[0]) if len(c) else 0 for c in candidates])
            if (left := _unused([text], bag)) and text.any():
                raise NotApplicable(
                    f"expected a gradient of {client.first[0]!r} that spans all tokens that the embedding's names, got "
                    f"one without {left:.0%} of them: rounding hides what an attention that is all but uniform leaves"
                )
            return _filled([text] if text.any() else [], view.count), 0.0 if text.any() else float("inf")
        if client.behind is None:
            raise NotApplicable(client.why_not(view))
        if client.causal:
            texts = sorted(_grown(candidates, client.energy), key=lambda text: float(client.energy(text[None]).max()))
        else:
            texts = self._searched(client, candidates, view.count, rng)
        texts = texts[: view.count]
        worst = float("inf")
        if texts:
            rows = torch.stack(texts)
            worst = float(client.energy(rows)[rows.to(client.device) != 0].max())
        if left := _unused(texts, bag):
            worst = max(worst, 1.0) + left
        return _filled(texts, view.count), worst

    def _searched(self, client: _Client, candidates: list[Tensor], count: int, rng: Stream) -> list[Tensor]:
        """The texts of an encoder, whose every token sees all others.

        Returns:
            Texts inside of the span first, those among them that another one brought along last; where fewer than
            `count` were found, the nearest others follow.
        """
        generator = rng.generator()
        choices, outside = Choices.of(candidates, client.device), client.outside(generator)
        exact: list[tuple[float, Tensor]] = []
        near: list[tuple[float, Tensor]] = []
        for _ in range(self.starts):
            known = [text for _, text in exact]
            settled = settle(
                _made_up(candidates, known, generator).to(client.device),
                choices,
                outside,
                known,
                self.sweeps,
                generator,
            )
            if settled is None:
                continue
            text, distance = settled[0].cpu(), settled[1]
            (exact if float(client.energy(text[None]).max()) <= 1 else near).append((distance, text))
            if len(_separated(exact)[0]) == count:
                break
        separate, brought_along = _separated(exact)
        rest, _ = _separated(near)
        return [*separate, *brought_along, *rest]


def _made_up(candidates: list[Tensor], known: list[Tensor], rng: torch.Generator) -> Tensor:
    """A text of any length to set out from; tokens that no known text explains come first."""
    text = torch.zeros(len(candidates), dtype=torch.long)
    length = int(torch.randint(1, len(candidates) + 1, (1,), generator=rng))
    for place, tokens in enumerate(candidates[:length]):
        used = {int(one[place]) for one in known}
        pool = [t for t in tokens.tolist() if t not in used] or tokens.tolist() or [0]
        text[place] = pool[int(torch.randint(len(pool), (1,), generator=rng))]
    return text


def _unused(texts: list[Tensor], bag: Tensor | None) -> float:
    """Share of the tokens that the embedding's gradient names and no text has."""
    if bag is None or not bag.any():
        return 0.0
    named = set(bag.nonzero().flatten().tolist())
    return len(named - {int(token) for text in texts for token in text}) / len(named)


def _filled(texts: list[Tensor], count: int) -> Tensor:
    length = len(texts[0]) if texts else 0
    if not texts:
        raise NotApplicable(
            "expected tokens whose embeddings lie in the span of the first attention's gradient, got none at all: "
            "the update is empty, or was changed, as by compression, noise or many local steps"
        )
    rest = [torch.full((length,), -1)] * (count - len(texts))
    return torch.stack([*texts, *rest])


@dataclass(frozen=True, eq=False)
class _Client:
    """One client's gradients, as spans.

    Args:
        task: the module.
        params: that the client received.
        buffers: likewise.
        train: mode of the module.
        first: the weights that read tokens at their places, and the span of their gradients.
        behind: the weight that is tested behind the attention, and the span; `None` where no layer has room.
        ranks: of all layers behind the attention by name, with the largest that each could have.
        causal: whether a token sees those before it alone.
    """

    task: Task
    params: Params
    buffers: Params
    train: bool
    first: tuple[str, Span]
    behind: tuple[str, Span] | None
    ranks: dict[str, tuple[int, int]]
    causal: bool

    @staticmethod
    def met(view: View, i: int) -> _Client:
        """Find the layers by passing made-up texts through the network, and the span of each one's gradient."""
        task, train = view.task, view.assumed_recipe.train
        params, buffers, update = (of_client(t, i) for t in (view.params, view.buffers, view.update))
        vocabulary, (length,) = task.spec.vocabulary or 0, task.spec.shape
        device = next(iter(params.values())).device
        plain = torch.arange(length, device=device) % (vocabulary - 1) + 1
        probes = plain.repeat(3, 1)  # as it is, and with another token at the beginning or at the end
        for probe, place in ((1, 0), (2, length - 1)):
            probes[probe, place] = plain[place] % (vocabulary - 1) + 1
        seen = entrances(task, params, probes, buffers=buffers, train=train)
        alone = [reads_one_place(e.rows) for e in seen]
        first = next((e for e, one in zip(seen, alone, strict=True) if one), None)
        behind = [e for e, one in zip(seen, alone, strict=True) if not one]
        if first is None or not behind:
            raise NotApplicable(
                "expected a transformer, whose first linear layer reads each token and its place and whose later ones "
                "see others too, got none; for other networks 'token-bag' says which tokens occur"
            )

        def span(entrance: Entrance) -> Span:
            names = [name for name in entrance.weights if name in update]
            before = [params[name] if view.kind != "gradient" else None for name in names]
            noises = [rounding(update[name], weight) for name, weight in zip(names, before, strict=True)]
            return span_of([update[name].T if entrance.turned else update[name] for name in names], noises)

        spans = {e.weights[-1]: span(e) for e in behind}
        most = max(s.rank for s in spans.values())
        # A layer of smaller rank does not hold all rows: of the last block, only one place of each text is used.
        roomy = {name: s for name, s in spans.items() if s.rank == most and not s.full}
        # The more directions the span leaves free, the farther from it is a wrong text.
        chosen = max(roomy.items(), key=lambda item: item[1].basis.shape[1], default=None)
        return _Client(
            task,
            params,
            buffers,
            train,
            (first.weights[-1], span(first)),
            chosen,
            {name: (s.rank, s.most) for name, s in spans.items()},
            all(sees_only_the_past(e.rows) for e in behind),
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.params.values())).device

    def candidates(self, bag: Tensor | None) -> list[Tensor]:
        """The tokens at each place whose embedding lies in the span of the first attention's gradient."""
        vocabulary, (length,) = self.task.spec.vocabulary or 0, self.task.spec.shape
        tokens = torch.arange(1, vocabulary, device=self.device)
        if bag is not None:
            tokens = tokens[bag[1:]]
        if len(tokens) == 0:
            return [tokens.cpu()] * length
        name, span = self.first
        everywhere = tokens[:, None].expand(-1, length)
        inside = torch.cat([span.excess(rows) <= 1 for rows in self._rows(everywhere, name)])
        return [tokens[inside[:, place]].cpu() for place in range(length)]

    def energy(self, texts: Tensor) -> Tensor:
        """See `Energy`; places that are filled up are as near as can be."""
        assert self.behind is not None
        name, span = self.behind
        texts = texts.to(self.device)
        return torch.where(texts == 0, 0.0, torch.cat([span.excess(rows) for rows in self._rows(texts, name)]))

    def outside(self, rng: torch.Generator) -> Outside:
        """See `Outside`, in some directions alone."""
        assert self.behind is not None
        name, span = self.behind
        probes = span.probes(PROBES, rng)

        def outside(texts: Tensor) -> Tensor:
            seen = [
                rows @ probes.to(rows) / rows.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
                for rows in self._rows(texts, name)
            ]
            return torch.cat(seen) * (texts != 0)[..., None]

        return outside

    def _rows(self, texts: Tensor, name: str) -> Iterator[Tensor]:
        """What enters a layer, of some texts after others: a vocabulary at every place is too large to hold."""
        for part in texts.split(CHUNK):
            yield entrances(self.task, self.params, part, buffers=self.buffers, train=self.train, until=name)[-1].rows

    def why_not(self, view: View) -> str:
        """Why no layer tells which texts the tokens belong to."""
        name, (rank, most) = max(self.ranks.items(), key=lambda item: item[1])
        tokens = view.count * view.task.spec.shape[0]
        reason = (
            f"the client has up to {tokens} tokens, and a layer can tell fewer of them apart than it is wide"
            if tokens >= most - 1
            else f"the {tokens} tokens that the client can have at most do not explain that: the update was changed, "
            "as by noise, compression or many local steps"
        )
        return f"expected a gradient of {name!r} of a rank below {most}, got {rank}: {reason}"


def _grown(candidates: list[Tensor], energy: Energy) -> Iterator[Tensor]:
    """The texts of a decoder, from the first token on: what enters at a place depends on the tokens up to it."""
    length = len(candidates)
    begun = torch.zeros(1, length, dtype=torch.long)
    for place, tokens in enumerate(candidates):
        longer = begun.repeat_interleave(max(1, len(tokens)), 0)
        if len(tokens):
            longer[:, place] = tokens.repeat(len(begun))
            inside = (energy(longer)[:, place] <= 1).cpu()
        else:
            inside = torch.zeros(len(longer), dtype=torch.bool)
        goes_on = inside.reshape(len(begun), -1).any(1)
        if place:
            yield from begun[~goes_on]  # no token follows: the text ends here
        begun = longer[inside]
        if len(begun) == 0:
            return
    yield from begun


def _separated(found: Iterable[tuple[float, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """The nearest texts, and those that are such a one with a single token exchanged.

    Where weights were rounded, the tolerance is wide enough for a true text with one token wrong or missing.
    """
    separate: list[Tensor] = []
    brought_along: list[Tensor] = []
    for _, text in sorted(found, key=lambda entry: entry[0]):
        alone = all(int((text != other).sum()) > 1 for other in separate)
        (separate if alone else brought_along).append(text)
    return separate, brought_along
