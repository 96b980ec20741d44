from __future__ import annotations

from pathlib import Path

import pytest
import torch

from seepage.data import DataBroken, DataMissing, load
from seepage.data.text import SPECIAL, decode, encode, read_texts, sentences, words
from seepage.streams import Stream


def test_sentences_are_the_same_everywhere_and_fit() -> None:
    data, again = load("sentences"), load("sentences")
    assert data.train.x.equal(again.train.x)
    assert data.train.x.dtype == torch.long
    assert data.spec.vocabulary == len(data.vocabulary) == len(set(data.vocabulary))
    assert int(data.train.x.max()) < len(data.vocabulary)
    assert not (data.train.x == SPECIAL.index("<unknown>")).any()
    assert (data.train.x == SPECIAL.index("<end>")).sum(1).eq(1).all()  # none is cut
    assert set(data.train.y.tolist()) == {0, 1, 2}
    assert not {tuple(r) for r in data.test.x.tolist()} <= {tuple(r) for r in data.train.x.tolist()}


def test_a_sentence_survives_the_way_there_and_back() -> None:
    data = load("sentences")
    made, _ = sentences(20, Stream.from_seed(5))
    assert decode(encode(made, data.vocabulary, 16), data.vocabulary) == [" ".join(text) for text in made]


def test_what_is_too_long_loses_its_end() -> None:
    assert encode([["a"] * 9], [*SPECIAL, "a"], 4).tolist() == [[1, 4, 4, 4]]


def test_any_file_of_labelled_lines(tmp_path: Path) -> None:
    path = tmp_path / "reviews.tsv"
    path.write_text("good\tI like it!\nbad\tI don't.\n\ngood\tLike it, like it.\nbad\tnever seen\n", encoding="utf-8")
    data = read_texts(path, length=8, vocabulary=7, held_out=0.25)
    assert data.vocabulary == (*SPECIAL, "it", "like", ".")  # by number, then by the alphabet
    assert data.classes == ("bad", "good")
    assert data.train.y.tolist() == [1, 0, 1]
    assert data.train.x[0].tolist() == [1, 3, 5, 4, 3, 2, 0, 0]
    assert data.test.x[0].tolist() == [1, 3, 3, 2, 0, 0, 0, 0]
    assert words("I don't.") == ["i", "don't", "."]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"good\tfine\nno tab here\n", "line 2: expected `label<TAB>text`, got 'no tab here'"),
        (b"good\t  \n", "line 1"),
        (b"a\tb\n", "got 1 lines"),
        (b"\xff\xfe\tb\n", "UTF-8"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.tsv"
    path.write_bytes(content)
    with pytest.raises(DataBroken, match=r"broken.tsv") as error:
        read_texts(path)
    assert says in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"nowhere.tsv"):
        read_texts(tmp_path / "nowhere.tsv")


def test_text_is_neither_normalised_nor_resized() -> None:
    data = load("sentences")
    with pytest.raises(ValueError, match="numbers to normalise"):
        data.normalised_by()
    with pytest.raises(ValueError, match="images to resize"):
        data.resized(4)
