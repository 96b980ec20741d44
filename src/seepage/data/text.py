"""Texts as rows of token ids: sentences from a small grammar, and any file of labelled lines.

A token is a word or a mark, as whitespace and punctuation divide them; there are no pieces of words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from seepage.data.dataset import Dataset
from seepage.data.folder import DataBroken, DataMissing
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream

__all__ = ["SPECIAL", "decode", "encode", "load_sentences", "read_texts", "sentences", "words"]

SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")
"""Ids 0 to 3: what fills up, begins and ends a text, and what stands for a word outside of the vocabulary."""

LENGTH = 16
"""Tokens of a generated sentence, the beginning and the end included; most have fewer."""

_WORDS = """
shared who: she he anna boris carla daniel elena farid
shared how: old young quiet tired angry cheerful careful worried
shared when: today yesterday tomorrow again early late often never
shared why: because although while before after unless
health person: doctor nurse patient surgeon dentist midwife therapist pharmacist
health thing: wound scan tablet fever bandage diagnosis injection allergy vaccine migraine
health like: painful chronic mild infected urgent swollen rare severe
health did: treated described ignored measured feared reported prescribed noticed
health place: hospital clinic ward pharmacy ambulance
money person: banker client broker cashier auditor landlord lawyer accountant
money thing: loan invoice salary mortgage debt account bonus pension receipt contract
money like: overdue secret taxable generous unpaid monthly fraudulent small
money did: paid disputed transferred hid signed cancelled inherited audited
money place: bank office court branch vault
travel person: pilot guide tourist driver sailor porter steward hiker
travel thing: ticket suitcase passport visa map flight cabin ferry reservation tent
travel like: lost cheap delayed foreign heavy direct scenic crowded
travel did: booked missed carried boarded forgot photographed changed recommended
travel place: airport harbour hotel station border
"""


def _grouped() -> dict[str, dict[str, list[str]]]:
    groups: dict[str, dict[str, list[str]]] = {}
    for line in _WORDS.strip().splitlines():
        kinds, _, members = line.partition(":")
        topic, part = kinds.split()
        groups.setdefault(topic, {})[part] = members.split()
    return groups


_TOPICS = _grouped()
_SHARED = _TOPICS.pop("shared")


def words(text: str) -> list[str]:
    """The tokens of a text, in lower case.

    Example:
        >>> words("She can't, today.")
        ['she', "can't", ',', 'today', '.']
    """
    return re.findall(r"[\w']+|[^\w\s]", text.lower())


def encode(texts: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int) -> Tensor:
    """Token ids, (texts, length): begun, ended and filled up; what is too long loses its end.

    Example:
        >>> encode([["a", "b", "zebra"]], [*SPECIAL, "a", "b"], 7)
        tensor([[1, 4, 5, 3, 2, 0, 0]])
    """
    place = {word: i for i, word in enumerate(vocabulary)}
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        known = [1, *(place.get(word, 3) for word in text), 2][:length]
        row[: len(known)] = torch.tensor(known)
    return ids


def decode(ids: Tensor, vocabulary: Sequence[str]) -> list[str]:
    """Texts back from token ids, (texts, length), without what begins, ends and fills them; `?` for what is unknown.

    Example:
        >>> decode(torch.tensor([[1, 4, -1, 2, 0]]), [*SPECIAL, "a"])
        ['a ?']
    """
    kept = [[int(i) for i in row if int(i) not in (0, 1, 2)] for row in ids]
    return [" ".join("?" if i < 0 else vocabulary[i] for i in row) for row in kept]


def sentence_vocabulary() -> tuple[str, ...]:
    """All tokens of the generated sentences, by id."""
    parts = [*_SHARED.values(), *(group for topic in _TOPICS.values() for group in topic.values())]
    return (*SPECIAL, "the", "a", "in", "and", ".", *(word for part in parts for word in part))


def sentences(count: int, rng: Stream) -> tuple[list[list[str]], Tensor]:
    """Sentences about health, money or travel, and which of the three, (count,).

    Example:
        >>> made, topic = sentences(2, Stream.from_seed(0))
        >>> len(made), made[0][-1], topic.shape
        (2, '.', torch.Size([2]))
    """
    generator = rng.generator()

    def one(options: Sequence[str]) -> str:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    made, topics = [], []
    for _ in range(count):
        topic = int(torch.randint(len(_TOPICS), (1,), generator=generator))
        group = list(_TOPICS.values())[topic] | _SHARED

        def phrase(kind: str, like: str, group: dict[str, list[str]] = group) -> list[str]:
            adjective = [one(group[like])] if one(["yes", "no"]) == "yes" else []
            return [one(["the", "a"]), *adjective, one(group[kind])]

        text = [one(group["who"])] if one(["yes", "no", "no"]) == "yes" else phrase("person", "how")
        text += [one(group["did"]), *phrase("thing", "like")]
        ending = one(["place", "when", "why"])
        if ending == "place":
            text += ["in", "the", one(group["place"])]
        elif ending == "when":
            text += [one(group["when"])]
        else:
            text += [one(group["why"]), one(group["who"]), one(group["did"]), "the", one(group["thing"])]
        made.append([*text, "."])
        topics.append(topic)
    return made, torch.tensor(topics)


def load_sentences(folder: Path | None = None) -> Dataset:
    """1,000 sentences to train on and 200 others, the same on every machine; no file is read."""
    vocabulary = sentence_vocabulary()

    def half(name: str, count: int) -> Examples:
        made, topic = sentences(count, Stream.from_seed(0) / "sentences" / name)
        return Examples(encode(made, vocabulary, LENGTH), topic)

    spec = DataSpec((LENGTH,), classes=len(_TOPICS), vocabulary=len(vocabulary))
    train, test = half("train", 1000), half("test", 200)
    return Dataset("sentences", spec, train, test, None, tuple(_TOPICS), "CC0", "made here", vocabulary=vocabulary)


def read_texts(path: str | Path, *, length: int = 32, vocabulary: int = 1000, held_out: float = 0.2) -> Dataset:
    """A file of lines `label<TAB>text` as a data set of tokens; an experiment names a function that calls it.

    Args:
        path: of the file, UTF-8.
        length: tokens of a text, its beginning and end included; longer ones are cut.
        vocabulary: at most so many token ids, for the most frequent words.
        held_out: share of the lines, the last ones, that nobody trains on.

    Raises:
        DataMissing: when there is no such file.
        DataBroken: naming the line that has no label or no text, or when there are too few lines.
    """
    path = Path(path)
    if not path.is_file():
        raise DataMissing(f"{path}: expected a file of lines `label<TAB>text`, got none; check the path")
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataBroken(f"{path}: expected UTF-8 text, got: {error}; save it as UTF-8") from error
    labels, texts = [], []
    for number, line in enumerate(lines, 1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip() or not words(text):
            raise DataBroken(
                f"{path}: line {number}: expected `label<TAB>text`, got {line[:60]!r}; put a tab between the two"
            )
        labels.append(label.strip())
        texts.append(words(text))
    kept = len(texts) - round(held_out * len(texts))
    if not 0 < kept < len(texts):
        raise DataBroken(
            f"{path}: expected lines to train on and to hold out, got {len(texts)} lines and `held_out` = {held_out}; "
            "add lines"
        )
    # The words of texts that are held out are not known; ties go by the alphabet.
    counts = Counter(word for text in texts[:kept] for word in text)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, vocabulary - len(SPECIAL))]
    known, classes = (*SPECIAL, *frequent), tuple(sorted(set(labels)))
    x, y = encode(texts, known, length), torch.tensor([classes.index(label) for label in labels])
    return Dataset(
        path.stem,
        DataSpec((length,), classes=len(classes), vocabulary=len(known)),
        Examples(x[:kept], y[:kept]),
        Examples(x[kept:], y[kept:]),
        None,
        classes,
        "that of the file",
        str(path),
        vocabulary=known,
    )
