"""Texts as embeddings: what a search by gradients can move, where token ids cannot be moved.

The module's own lookup of tokens is replaced by what the search gives it; everything behind it stays as it is, so that
local training is simulated by the same code as for numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from seepage.finding import NotApplicable
from seepage.local import local_update
from seepage.spec import DataSpec
from seepage.task import Params, Task
from seepage.threat import View

__all__ = [
    "EmbeddedTexts",
    "Simulation",
    "embedded",
    "filled_places",
    "moved_rows",
    "nearest_tokens",
    "noise_of_rows",
    "simulation",
    "token_table",
    "with_places",
]

EMPTY = -2.0
"""Marks a place where nothing stands; filled ones are marked by 1."""

CLEAR = 6.0
"""Standard deviations by which the length of a row must exceed that of noise to count as moved."""


class _Given(nn.Module):
    """In the place of the lookup."""

    given: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        assert self.given is not None, ids
        return self.given


class _Lookup(nn.Module):
    """Another table, such as that of places, as an operation: nobody searches for what is looked up in it."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight, self.padding_idx = table.weight, table.padding_idx
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight, self.padding_idx)


class _Reader(nn.Module):
    """The user's module, reading rows of (embedding, mark of the place) instead of token ids."""

    def __init__(self, module: nn.Module, path: str) -> None:
        super().__init__()
        self.inner, self.path = copy.deepcopy(module), path
        self.inner.set_submodule(path, _Given())
        for other, layer in list(self.inner.named_modules()):
            if isinstance(layer, nn.Embedding):
                self.inner.set_submodule(other, _Lookup(layer))

    def forward(self, x: Tensor) -> Tensor:
        lookup = self.inner.get_submodule(self.path)
        lookup.given = x[..., :-1]
        try:
            # What a module makes of ids beside looking them up is to leave out those that fill up.
            out: Tensor = self.inner((x[..., -1] > EMPTY).long())
        finally:
            lookup.given = None  # type: ignore[assignment]
        return out


def with_places(embeddings: Tensor, there: Tensor, empty: Tensor) -> Tensor:
    """What the task of `embedded` reads, (…, length, width + 1).

    Args:
        embeddings: (…, length, width).
        there: which places are filled, (…, length).
        empty: the embedding of id 0, which stands at all others, (width,).
    """
    marks = torch.where(there, 1.0, EMPTY).to(embeddings)[..., None]
    return torch.cat([torch.where(there[..., None], embeddings, empty), marks], -1)


@dataclass(frozen=True, eq=False)
class EmbeddedTexts:
    """A view's task as a function of embeddings.

    Args:
        task: reads what `with_places` makes.
        tables: the embeddings of all tokens, (clients, vocabulary, width).
        params: that the clients received, without the table, by the task's names, (clients, …).
        buffers: likewise.
        update: likewise.
    """

    task: Task
    tables: Tensor
    params: Params
    buffers: Params
    update: Params


def token_table(task: Task) -> str | None:
    """The path of the embedding of tokens: the first that is as large as the vocabulary; `None` without one."""
    for path, layer in task.module.named_modules():
        table = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        if path and table and layer.num_embeddings == task.spec.vocabulary:
            return str(path)
    return None


def embedded(view: View) -> EmbeddedTexts:
    """The view's task as a function of embeddings.

    Raises:
        NotApplicable: for other data than text, and for modules without an embedding whose place could be taken.
    """
    task, spec = view.task, view.task.spec
    if not spec.is_text:
        raise NotApplicable(f"expected text, got numbers of shape {spec.shape}")
    path = token_table(task)
    layer = None if path is None else task.module.get_submodule(path)
    if path is None or not isinstance(layer, nn.Embedding):
        raise NotApplicable(
            "expected a module that looks its tokens up in an nn.Embedding as large as the vocabulary, got none; "
            "'token-bag' and 'count-labels' do without"
        )
    held = {**view.buffers, **view.params}
    reader = Task(
        _Reader(task.module, path),
        DataSpec((*spec.shape, layer.embedding_dim + 1), classes=spec.classes, targets=spec.targets),
        task.loss,
    )
    if missing := [n for n in (*reader.params, *reader.buffers) if n.removeprefix("inner.") not in held]:
        raise NotApplicable(
            f"expected an embedding with weights of its own, got one that shares them with {missing[0]!r}"
        )

    def of(tensors: Params, names: Params) -> Params:
        return {name: tensors[name.removeprefix("inner.")] for name in names}

    trained = {name: p for name, p in reader.params.items() if name.removeprefix("inner.") in view.update}
    return EmbeddedTexts(
        reader,
        held[f"{path}.weight"],
        of(held, reader.params),
        of(held, reader.buffers),
        of(view.update, trained),
    )


Simulation: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Params, Params], Params]
"""From embeddings (n, length, width), labels, filled places (length,), the embedding of id 0, params and buffers of one
client to the update that they give."""


def simulation(view: View, texts: EmbeddedTexts) -> Simulation:
    """What a client would send that trained on embeddings, as far as it was seen.

    Note:
        The embeddings do not move during several local steps, as those of the tokens would.
    """
    recipe, names = view.assumed_recipe.followed, tuple(texts.update)

    def simulate(x: Tensor, y: Tensor, there: Tensor, empty: Tensor, params: Params, buffers: Params) -> Params:
        schedule = recipe.schedule(with_places(x, there.expand(x.shape[:2]), empty), y)
        sent = local_update(texts.task, params, schedule, recipe, view.assumed_defence, buffers=buffers)
        return {name: sent[name] for name in names}

    return simulate


def noise_of_rows(update: Tensor) -> float | None:
    """The deviation of noise that moved every row of a table of which few are used; `None` where no such noise shows.

    Rows of noise alone have all but one length, and most rows are of that kind.

    Args:
        update: (rows, width).

    Example:
        >>> noise_of_rows(torch.tensor([[0.0, 0.0], [0.0, 0.1], [0.0, 0.0]]))
        0.0
    """
    lengths, width = update.double().norm(dim=1), update.shape[1]
    usual = float(lengths.median())
    # The length of normal numbers is all but normal itself, with a deviation of σ / √2.
    spread = CLEAR * usual / math.sqrt(2 * width)
    return usual / math.sqrt(width) if float(lengths.min()) >= usual - spread else None


def moved_rows(update: Tensor, noise: float) -> Tensor:
    """Which rows of a table moved further than noise alone moves them, (rows,).

    Args:
        update: (rows, width).
        noise: its deviation.

    Example:
        >>> moved_rows(torch.tensor([[0.0, 0.0], [0.0, 0.1], [0.0, 0.0]]), 0.0)
        tensor([False,  True, False])
    """
    moved: Tensor = update.double().norm(dim=1) > noise * (math.sqrt(update.shape[1]) + CLEAR / math.sqrt(2))
    return moved


def filled_places(view: View) -> Tensor:
    """At which places any text of a client has a token, (clients, length), by the gradient of learned positions.

    A place that nobody attends to has no gradient. Where there are no learned positions, all places may be filled.
    """
    (length,) = view.task.spec.shape
    path = token_table(view.task)
    device = next(iter(view.update.values())).device
    filled = torch.ones(len(view.clients), length, dtype=torch.bool, device=device)
    for name in _place_tables(view.task, path):
        if name not in view.update:
            continue
        for i, update in enumerate(view.update[name]):
            table = view.update.get(f"{path}.weight")
            noise = 0.0 if table is None else noise_of_rows(table[i]) or 0.0
            moved = moved_rows(update.flatten(0, -2)[:length], noise)
            if moved.any():
                # Texts begin at the beginning and have no gaps.
                filled[i] &= torch.arange(length, device=device) <= moved.nonzero().max()
    return filled


def _place_tables(task: Task, tokens: str | None) -> list[str]:
    """Names of what has a row for every place: other embeddings, and bare parameters of that shape."""
    (length,), names = task.spec.shape, []
    for path, layer in task.module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(layer, nn.Embedding) and path != tokens and layer.num_embeddings >= length:
            names.append(f"{prefix}weight")
        elif type(layer).__module__.split(".")[0] != "torch":
            own = layer.named_parameters(recurse=False)
            names += [prefix + name for name, p in own if p.dim() >= 2 and p.shape[-2] == length]
    return names


def nearest_tokens(embeddings: Tensor, table: Tensor, allowed: Tensor, count: int = 1) -> Tensor:
    """The tokens whose embeddings have the smallest angle to some, nearest first, (…, count).

    Args:
        embeddings: (…, width).
        table: (vocabulary, width).
        allowed: ids to choose from, (tokens,).
        count: how many; fewer where fewer are allowed.

    Example:
        >>> nearest_tokens(torch.tensor([0.0, 2.0]), torch.eye(2), torch.tensor([0, 1]))
        tensor([1])
    """
    unit = nn.functional.normalize(table[allowed], dim=-1)
    return allowed[(embeddings @ unit.T).topk(min(count, len(allowed)), -1).indices]
