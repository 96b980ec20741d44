"""Who holds which example: by nature, evenly at random, or with labels skewed by a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.spec import Examples
from seepage.streams import Stream

__all__ = ["IID", "ByOwner", "Dirichlet", "DistinctLabels", "Partition", "partition"]

Indices = NDArray[np.int64]
DRAWS = 100


@dataclass(frozen=True)
class ByOwner:
    """Each client is one owner: a writer, a person, an airline. Examples keep their stored order."""


@dataclass(frozen=True)
class IID:
    """Examples are dealt evenly at random."""


@dataclass(frozen=True)
class Dirichlet:
    """The examples of each class are dealt in proportions drawn from Dir(alpha).

    Hsu, Qi and Brown, 2019, Measuring the Effects of Non-Identical Data Distribution
    (https://arxiv.org/abs/1909.06335); dealt class by class as in Yurochkin et al., 2019.

    Args:
        alpha: concentration; 100 is almost even, 0.1 gives most clients a few classes only.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"expected `alpha` above 0, got {self.alpha}")


@dataclass(frozen=True)
class DistinctLabels:
    """Each client takes the next examples, as stored, whose labels it does not have yet.

    So geiping2020 makes batches, because examples of one label could be recovered in any order.
    """


Partition = ByOwner | DistinctLabels | IID | Dirichlet


def partition(
    examples: Examples,
    owner: Tensor | None,
    how: Partition,
    clients: int,
    per_client: int | None = None,
    *,
    fewer: bool = False,
    rng: Stream,
) -> list[Tensor]:
    """Deals examples to clients.

    Args:
        examples: what is dealt.
        owner: whose each example is; needed by `ByOwner` alone.
        how: the rule.
        clients: how many are wanted. `ByOwner` draws them among the owners, and returns them in the order of their ids.
        per_client: keep the first that many examples of each client; owners with fewer are passed over.
        fewer: clients may have fewer than `per_client`, and owners with fewer are drawn like any other.
        rng: decides everything that is drawn.

    Returns:
        One tensor of indices per client; none is empty and no index occurs twice.

    Raises:
        ValueError: when there are not enough examples, or not enough owners with enough examples.

    Example:
        >>> deck = Examples(torch.zeros(10, 1), torch.arange(10) % 2)
        >>> hands = partition(deck, None, IID(), clients=3, per_client=2, rng=Stream.from_seed(0))
        >>> [len(hand) for hand in hands]
        [2, 2, 2]
    """
    if clients < 1 or (per_client is not None and per_client < 1):
        raise ValueError(f"expected `clients` and `per_client` of 1 or more, got {clients} and {per_client}")
    fewest = 1 if fewer else per_client or 1
    draw = np.random.default_rng(rng.seed)
    match how:
        case ByOwner():
            hands = _by_owner(examples, owner, clients, fewest, draw)
        case DistinctLabels():
            hands = _distinct(examples, clients, fewest)
        case IID():
            hands = _iid(len(examples), clients, fewest, draw)
        case Dirichlet():
            hands = _dirichlet(examples, how.alpha, clients, fewest, draw)
    return [torch.from_numpy(hand[:per_client]) for hand in hands]


def _by_owner(
    examples: Examples, owner: Tensor | None, clients: int, fewest: int, draw: np.random.Generator
) -> list[Indices]:
    if owner is None:
        raise ValueError("expected an owner per example, got none; this data set has no natural owners, use `IID`")
    if len(owner) != len(examples):
        raise ValueError(f"expected one owner per example, got {len(owner)} owners for {len(examples)} examples")
    ids, counts = np.unique(owner.numpy(), return_counts=True)
    enough = ids[counts >= fewest]
    if len(enough) < clients:
        raise ValueError(
            f"expected {clients} owners with at least {fewest} examples, got {len(enough)} of {len(ids)}; "
            "ask for fewer clients or fewer examples per client"
        )
    chosen = np.sort(draw.choice(enough, clients, replace=False))
    return [np.flatnonzero(owner.numpy() == one) for one in chosen]


def _distinct(examples: Examples, clients: int, each: int) -> list[Indices]:
    if examples.y.is_floating_point():
        raise ValueError("expected class labels to tell apart, got a regression target; use `IID` or `ByOwner`")
    labels = examples.y.tolist()
    waiting = list(range(len(labels)))
    hands = []
    for client in range(clients):
        seen: set[int] = set()
        hand: list[int] = []
        for i in waiting:
            if len(hand) == each:
                break
            if labels[i] not in seen:
                seen.add(labels[i])
                hand.append(i)
        if len(hand) < each:
            raise ValueError(
                f"expected {clients} clients with {each} examples of different labels, got only {len(hand)} for client "
                f"{client}; ask for fewer clients or fewer examples per client"
            )
        taken = set(hand)
        waiting = [i for i in waiting if i not in taken]
        hands.append(np.array(hand, dtype=np.int64))
    return hands


def _iid(count: int, clients: int, fewest: int, draw: np.random.Generator) -> list[Indices]:
    if count < clients * fewest:
        raise ValueError(
            f"expected at least {clients} × {fewest} = {clients * fewest} examples, got {count}; "
            "ask for fewer clients or fewer examples per client"
        )
    order: NDArray[Any] = draw.permutation(count)
    return [hand.astype(np.int64) for hand in np.array_split(order, clients)]


def _dirichlet(examples: Examples, alpha: float, clients: int, fewest: int, draw: np.random.Generator) -> list[Indices]:
    if examples.y.is_floating_point():
        raise ValueError("expected class labels to skew, got a regression target; use `IID` or `ByOwner`")
    labels = examples.y.numpy()
    pools = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    smallest = 0
    for _ in range(DRAWS):
        hands: list[list[Indices]] = [[] for _ in range(clients)]
        for pool in pools:
            shares = draw.dirichlet(np.full(clients, alpha))
            cuts = np.floor(np.cumsum(shares)[:-1] * len(pool) + 0.5).astype(np.int64)
            for hand, part in zip(hands, np.split(draw.permutation(pool), cuts), strict=True):
                hand.append(part)
        # Shuffled, so that the first examples of a client are of all its classes.
        dealt = [draw.permutation(np.concatenate(hand)) for hand in hands]
        smallest = max(smallest, min(len(hand) for hand in dealt))
        if smallest >= fewest:
            return dealt
    raise ValueError(
        f"expected every one of {clients} clients to get at least {fewest} of {len(examples)} examples, but in "
        f"{DRAWS} draws with alpha {alpha} the smallest client had {smallest} at best; "
        "raise `alpha`, or ask for fewer clients or fewer examples per client"
    )
