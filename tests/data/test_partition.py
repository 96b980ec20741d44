from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.data.partition import IID, ByOwner, Dirichlet, DistinctLabels, Partition, partition
from seepage.spec import Examples
from seepage.streams import Stream

ROOT = Stream.from_seed(0)


def deck(n: int, classes: int = 5) -> Examples:
    return Examples(torch.zeros(n, 1), torch.arange(n) % classes)


def skew(hands: list[torch.Tensor], examples: Examples) -> float:
    """Mean share of a client's most frequent class."""
    return sum(float(examples.y[hand].bincount().max()) / len(hand) for hand in hands) / len(hands)


@settings(max_examples=40, deadline=None)
@given(
    how=st.sampled_from([ByOwner(), IID(), Dirichlet(1.0), Dirichlet(10.0)]),
    clients=st.integers(1, 6),
    per_client=st.none() | st.integers(1, 10),
    seed=st.integers(0, 5),
)
def test_hands_are_disjoint_filled_and_repeatable(
    how: Partition, clients: int, per_client: int | None, seed: int
) -> None:
    examples, owner = deck(400), torch.arange(400) // 20
    rng = Stream.from_seed(seed)
    hands = partition(examples, owner, how, clients, per_client, rng=rng)
    together = torch.cat(hands)
    assert len(hands) == clients
    assert len(set(together.tolist())) == len(together)
    assert together.dtype == torch.long
    assert all(len(hand) > 0 for hand in hands)
    if per_client is not None:
        assert {len(hand) for hand in hands} == {per_client}
    elif not isinstance(how, ByOwner):
        assert len(together) == len(examples)
    again = partition(examples, owner, how, clients, per_client, rng=rng)
    assert all(torch.equal(a, b) for a, b in zip(hands, again, strict=True))


@pytest.mark.parametrize("how", [IID(), Dirichlet(1.0)])
def test_another_stream_deals_otherwise(how: Partition) -> None:
    one, other = (partition(deck(100), None, how, 2, 20, rng=ROOT / name) for name in "ab")
    assert not torch.equal(one[0], other[0])


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(hand) for hand in partition(deck(103), None, IID(), 10, rng=ROOT)]
    assert sorted(set(sizes)) == [10, 11]


def test_owners_keep_their_examples_in_stored_order() -> None:
    owner = torch.tensor([7, 3, 7, 3, 7, 5])
    hands = partition(deck(6), owner, ByOwner(), 3, rng=ROOT)
    assert [hand.tolist() for hand in hands] == [[1, 3], [5], [0, 2, 4]]  # by id: 3, 5, 7
    first = partition(deck(6), owner, ByOwner(), 2, 2, rng=ROOT)
    assert [hand.tolist() for hand in first] == [[1, 3], [0, 2]]


def test_owners_with_fewer_are_drawn_where_they_may_be() -> None:
    owner = torch.tensor([7, 3, 7, 3, 7, 5])
    hands = partition(deck(6), owner, ByOwner(), 3, 2, fewer=True, rng=ROOT)
    assert [hand.tolist() for hand in hands] == [[1, 3], [5], [0, 2]]
    with pytest.raises(ValueError, match="expected 3 owners with at least 2 examples, got 2 of 3"):
        partition(deck(6), owner, ByOwner(), 3, 2, rng=ROOT)


def test_skewed_clients_may_have_fewer_but_never_more_and_never_none() -> None:
    hands = partition(deck(100), None, Dirichlet(0.3), 8, 15, fewer=True, rng=ROOT)
    sizes = [len(hand) for hand in hands]
    assert 1 <= min(sizes) < max(sizes) == 15


def test_owners_are_drawn() -> None:
    owner = torch.arange(60) // 2
    drawn = {tuple(partition(deck(60), owner, ByOwner(), 2, rng=ROOT / i)[0].tolist()) for i in range(10)}
    assert len(drawn) > 3


def test_labels_are_more_skewed_for_smaller_alpha() -> None:
    examples = deck(2000, 10)
    found = [skew(partition(examples, None, Dirichlet(a), 5, rng=ROOT), examples) for a in (100.0, 1.0, 0.1)]
    assert found == sorted(found)
    assert found[0] < 0.15
    assert found[2] > 0.3


def test_first_examples_of_a_skewed_client_are_like_the_rest() -> None:
    examples = deck(2000, 10)
    hands = partition(examples, None, Dirichlet(100.0), 2, 100, rng=ROOT)
    assert all(len(set(examples.y[hand].tolist())) == 10 for hand in hands)


@pytest.mark.parametrize(
    ("how", "clients", "per_client", "message"),
    [
        (ByOwner(), 4, None, "expected 4 owners with at least 1 examples, got 3 of 3"),
        (ByOwner(), 3, 3, "expected 3 owners with at least 3 examples, got 1 of 3.*fewer"),
        (IID(), 4, 2, "expected at least 4 × 2 = 8 examples, got 6"),
        (Dirichlet(0.001), 5, None, "in 100 draws with alpha 0.001 the smallest client had 0 at best; raise `alpha`"),
        (IID(), 0, None, "expected `clients` and `per_client` of 1 or more, got 0 and None"),
        (IID(), 1, 0, "expected `clients` and `per_client` of 1 or more, got 1 and 0"),
    ],
)
def test_too_little_is_said_clearly(how: Partition, clients: int, per_client: int | None, message: str) -> None:
    owner = torch.tensor([7, 3, 7, 3, 7, 5])
    with pytest.raises(ValueError, match=message):
        partition(deck(6, 1), owner, how, clients, per_client, rng=ROOT)


def test_rules_say_what_they_need() -> None:
    with pytest.raises(ValueError, match="expected an owner per example, got none"):
        partition(deck(6), None, ByOwner(), 2, rng=ROOT)
    with pytest.raises(ValueError, match="got 2 owners for 6 examples"):
        partition(deck(6), torch.zeros(2), ByOwner(), 1, rng=ROOT)
    with pytest.raises(ValueError, match="got a regression target"):
        partition(Examples(torch.zeros(4, 1), torch.zeros(4, 1)), None, Dirichlet(), 2, rng=ROOT)
    with pytest.raises(ValueError, match="expected `alpha` above 0, got 0"):
        Dirichlet(0)


def test_distinct_labels_are_taken_in_stored_order_and_never_twice() -> None:
    y = torch.tensor([1, 1, 2, 2, 0, 1, 0, 2, 1])
    deck = Examples(torch.zeros(9, 1), y)
    hands = partition(deck, None, DistinctLabels(), clients=3, per_client=2, rng=Stream.from_seed(0))
    assert [hand.tolist() for hand in hands] == [[0, 2], [1, 3], [4, 5]]


def test_too_few_different_labels_are_refused() -> None:
    deck = Examples(torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]))
    with pytest.raises(ValueError, match="2 examples of different labels, got only 1 for client 1; ask for fewer"):
        partition(deck, None, DistinctLabels(), clients=2, per_client=2, rng=Stream.from_seed(0))
    with pytest.raises(ValueError, match="regression target"):
        partition(Examples(deck.x, deck.y.float()), None, DistinctLabels(), 1, 1, rng=Stream.from_seed(0))
