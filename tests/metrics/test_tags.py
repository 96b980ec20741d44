"""Tags and what two sets of them have in common."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from seepage.metrics.score import score
from seepage.metrics.tags import NetworkTagger, Tagging, jaccard, tag_jaccard
from seepage.spec import DataSpec, Examples


class Given(nn.Module):
    """Says the same scores of every image, and remembers what it was shown."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, images: Tensor) -> Tensor:
        self.shown = images
        return self.scores.expand(len(images), -1)


def brightest(pixels: Tensor) -> Tensor:
    """Tags are the channels that are brighter than a half."""
    return pixels.mean((2, 3)) > 0.5


def colour(*channels: float) -> Tensor:
    return torch.tensor(channels)[:, None, None].expand(3, 16, 16)


def test_jaccard_is_shared_over_all() -> None:
    left = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    right = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    assert jaccard(left, right).tolist() == [0.5, 0.0, 1.0, 1.0]
    assert jaccard(left, right).equal(jaccard(right, left))
    for row, (a, b) in enumerate(zip(left, right, strict=True)):
        one, other = (set(x.nonzero().flatten().tolist()) for x in (a, b))
        expected = len(one & other) / len(one | other) if one | other else 1.0
        assert float(jaccard(left, right)[row]) == pytest.approx(expected)


def test_images_are_compared_by_their_tags_and_what_is_not_finite_is_not() -> None:
    guess = torch.stack([colour(1, 1, 0), colour(0, 0, 1), colour(math.nan, 0, 0)])
    truth = torch.stack([colour(1, 0, 0), colour(0, 0, 0.9), colour(1, 0, 0)])
    got = tag_jaccard(guess, truth, brightest)
    assert got[:2].tolist() == [0.5, 1.0]
    assert got[2].isnan()


@pytest.mark.parametrize(
    ("knobs", "tags"),
    [
        ({"threshold": 0.2, "most": 5}, [0, 1]),
        ({"threshold": 0.2, "most": 1}, [0]),
        ({"threshold": 0.9}, [0]),  # one at least
        ({"threshold": 0.0, "most": 9}, [0, 1, 2, 3]),
        ({"threshold": 0.7, "several": True}, [0, 1, 2]),
    ],
)
def test_the_likeliest_tags_above_the_threshold_are_given(knobs: dict[str, float], tags: list[int]) -> None:
    # Softmax: .64, .24, .09, .03; sigmoid: .95, .88, .73, .5
    tagger = NetworkTagger(Given(3.0, 2.0, 1.0, 0.0), Tagging(**knobs))  # type: ignore[arg-type]
    assert tagger(torch.zeros(2, 3, 8, 8)).nonzero().tolist() == [[i, tag] for i in (0, 1) for tag in tags]


def test_images_are_enlarged_and_normalised_and_grey_ones_coloured() -> None:
    net = Given(0.0, 1.0)
    NetworkTagger(net, Tagging(size=12, mean=0.25, spread=0.5))(torch.full((1, 1, 6, 9), 0.75))
    torch.testing.assert_close(net.shown, torch.ones(1, 3, 12, 12))


def test_scoring_measures_it_where_there_is_a_tagger() -> None:
    spec = DataSpec((3, 16, 16), classes=2)
    truth = Examples(torch.stack([colour(1, 0, 0), colour(0, 1, 1)]), torch.tensor([0, 1]))
    guess = torch.stack([colour(1, 0, 0), colour(0.4, 1, 0)])
    scored = score(guess, None, truth, spec, tagger=brightest)
    assert [s.value for s in scored.scores if s.metric == "tag_jaccard"] == [1.0, 0.5]
    assert not [s for s in score(guess, None, truth, spec).scores if s.metric == "tag_jaccard"]


@pytest.mark.parametrize("knobs", [{"threshold": 2.0}, {"most": 0}, {"size": 0}, {"spread": 0.0}, {"name": "a:b"}])
def test_knobs_that_make_no_sense_are_refused(knobs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Tagging(**knobs)  # type: ignore[arg-type]
