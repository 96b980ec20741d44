from __future__ import annotations

import pytest
import torch

from seepage.metrics.registry import METRICS
from seepage.metrics.score import score
from seepage.metrics.text import bag_f1, match_texts, rouge, token_accuracy
from seepage.spec import DataSpec, Examples

SPEC = DataSpec((6,), classes=2, vocabulary=20)
POLICE_KILLED_THE_GUNMAN = torch.tensor([5, 6, 7, 8, 0, 0])  # the example of Lin, 2004, section 3


@pytest.mark.parametrize(
    ("guess", "one", "two"),
    [
        ([5, 6, 7, 8], 1.0, 1.0),
        ([5, 9, 7, 8], 3 / 4, 1 / 3),  # police kill the gunman: of 3 pairs "the gunman"
        ([7, 8, 9, 5], 3 / 4, 1 / 3),  # the gunman kill police: the same pairs of words, other order
        ([8, 7, 6, 5], 1.0, 0.0),
        ([5, 5, 5, 5], 1 / 4, 0.0),  # a word counts as often as the truth has it
        ([5, 6], 2 * 2 / (2 + 4), 2 * 1 / (1 + 3)),
        ([-1, -1, -1, -1], 0.0, 0.0),
        ([5, -1, 7, 8], 3 / 4, 1 / 3),
        ([], 0.0, 0.0),
    ],
)
def test_rouge_by_hand(guess: list[int], one: float, two: float) -> None:
    text = torch.tensor(guess + [0] * (6 - len(guess)))
    assert rouge(text, POLICE_KILLED_THE_GUNMAN, 1) == pytest.approx(one)
    assert rouge(text, POLICE_KILLED_THE_GUNMAN, 2) == pytest.approx(two)


def test_a_text_too_short_for_pairs_is_right_or_wrong() -> None:
    assert rouge(torch.tensor([3, 0]), torch.tensor([3, 0]), 2) == 1.0
    assert rouge(torch.tensor([4, 0]), torch.tensor([3, 0]), 2) == 0.0


def test_accuracy_counts_places_that_either_text_fills() -> None:
    truth = torch.tensor([[1, 2, 0, 0], [1, 2, 3, 0]])
    guess = torch.tensor([[1, 2, 3, 4], [-1, 2, 0, 0]])
    assert token_accuracy(guess, truth).tolist() == [0.5, pytest.approx(1 / 3)]


def test_texts_are_paired_one_to_one() -> None:
    truth = torch.tensor([[1, 2], [1, 2], [3, 4]])
    assert match_texts(torch.tensor([[3, 4], [1, 2]]), truth)[2] == 0
    assert sorted(match_texts(torch.tensor([[3, 4], [1, 2]]), truth).tolist()) == [-1, 0, 1]
    assert match_texts(truth[:0], truth).tolist() == [-1, -1, -1]


def test_a_bag_says_nothing_about_what_fills_up() -> None:
    texts = torch.tensor([[1, 2, 0], [2, 0, 0]])
    named = torch.tensor([True, True, True, False])
    assert bag_f1(named, texts) == 1.0
    assert bag_f1(torch.tensor([False, False, False, True]), texts) == 0.0


def test_scores_of_a_client() -> None:
    truth = Examples(torch.tensor([[1, 5, 6, 2, 0, 0], [1, 7, 8, 9, 2, 0]]), torch.tensor([0, 1]))
    bag = torch.zeros(20, dtype=torch.bool)
    bag[[1, 2, 5, 6, 7, 8, 9]] = True
    scored = score(truth.x.flip(0), None, truth, SPEC, public=Examples(truth.x[:1], truth.y[:1]), tokens=bag)
    values = {(s.item, s.metric): s.value for s in scored.scores}
    assert all(values[str(i), name] == 1 for i in (0, 1) for name in ("token_accuracy", "rouge1", "rouge2"))
    assert values["all", "token_bag"] == 1
    assert values["0", "rouge1_of_public_texts"] == 1
    assert values["1", "rouge1_of_public_texts"] == 0  # it ran out of public texts
    assert {metric for _, metric in values} <= set(METRICS)
    assert scored.guess_pixels is None


def test_what_is_not_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        token_accuracy(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="`n` of at least 1"):
        rouge(POLICE_KILLED_THE_GUNMAN, POLICE_KILLED_THE_GUNMAN, 0)
