from __future__ import annotations

import torch
from torch import Tensor

from seepage.pieces.token_search import Choices, settle

CPU = torch.device("cpu")


def drawn(seed: int, length: int = 6, tokens: int = 9) -> tuple[Choices, Tensor]:
    """All tokens at every place, and what each adds there to a sum that all places see."""
    g = torch.Generator().manual_seed(seed)
    added = torch.randn(length, tokens + 1, 40, generator=g, dtype=torch.float64)
    added[:, 0] = 0  # an empty place
    return Choices.of([torch.arange(1, tokens + 1)] * length, CPU), added


def sums(added: Tensor, texts: Tensor) -> Tensor:
    """What every place of the texts sees, (n, length, 40), as from an attention that is uniform."""
    places = torch.arange(texts.shape[1])
    return added[places, texts].mean(1, keepdim=True).expand(-1, texts.shape[1], -1)


def test_shares_are_the_nearest_that_sum_up_to_one() -> None:
    choices = Choices.of([torch.tensor([5]), torch.tensor([3, 4]), torch.tensor([7])], CPU)
    weights = torch.randn(20, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = choices.shares(weights)
    assert shares[..., ~choices.there].eq(0).all()
    torch.testing.assert_close(shares.sum(-1), torch.ones(20, 3, dtype=torch.float64))
    torch.testing.assert_close(choices.shares(shares), shares)
    for given, found in zip(weights.flatten(0, 1), shares.flatten(0, 1), strict=True):
        one = given[found > 0] - found[found > 0]  # the same for all that are kept, and more than the others have
        assert one.max() - one.min() < 1e-12
    two = weights[:, 1, :2].diff(dim=-1)[:, 0]  # of [3, 4, nothing] with nothing far away, a closed form
    far = weights.clone()
    far[:, 1, 2] = -9
    torch.testing.assert_close(choices.shares(far)[:, 1, 1], ((1 + two) / 2).clamp(0, 1))


def test_a_text_is_exchanged_at_every_place_and_may_end() -> None:
    choices = Choices.of([torch.tensor([5]), torch.tensor([3, 4])], CPU)
    texts, places = choices.exchanged(torch.tensor([5, 3]))
    assert texts.tolist() == [[5, 3], [5, 3], [5, 4], [5, 0]]
    assert places.tolist() == [0, 1, 1, 1]
    assert choices.trust.tolist() == [1.0, 0.5]


def test_exchanges_are_solved_together() -> None:
    """No token is right at first, and the text is found in a single sweep: a sum is linear in its parts."""
    for seed in range(3):
        choices, added = drawn(seed)
        truth = torch.tensor([[3, 1, 4, 1, 5, 9]])
        target = sums(added, truth)

        def outside(texts: Tensor, added: Tensor = added, target: Tensor = target) -> Tensor:
            return sums(added, texts) - target

        start = torch.tensor([2, 7, 1, 8, 2, 8])
        found = settle(start, choices, outside, [], 1, torch.Generator().manual_seed(seed))
        assert found is not None
        assert found[0].tolist() == truth[0].tolist()
        assert found[1] < 1e-12
        assert settle(start, choices, outside, [truth[0]], 4, torch.Generator().manual_seed(seed)) is None
