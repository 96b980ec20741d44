from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from seepage.audit.diagnosis import Cause
from seepage.audit.experiment import Expectation
from seepage.audit.gate import Limit, Policy, gate
from seepage.audit.summary import Index, Planned
from seepage.audit.table import COLUMNS
from seepage.engine.minimise import Status
from seepage.report import render, vendor
from seepage.report import strips as strips_module
from seepage.threat import Fact

NOISE = {"defence": "gaussian-noise", "defence_settings": "std=0.01"}


class Page(HTMLParser):
    """The tags, texts and unclosed elements of a page."""

    VOID = frozenset({"meta", "img", "br", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] not in ("style", "title"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def index(*trials: str, expect: tuple[Expectation, ...] = (), name: str = "audit", threshold: float = 20.0) -> Index:
    return Index(name, "What it is about.", threshold, expect, trials)


@pytest.fixture
def full(book: Any) -> Any:
    for client in ("0", "1"):
        book.images([31.25, 22.5, math.nan], client=client)
        book.images([11.0, 9.0, 8.0], client=client, trial="n", outcome="not reduced", **NOISE)
    book.learning([0.5, 0.8, 0.8512], trial="a")
    book.learning([0.4, 0.7, 0.8], trial="b", **NOISE)
    book.failure("not applicable: the threat model 'eavesdropper' hides it", trial="f", threat="eavesdropper")
    book.show("t", [31.25, 22.5, math.nan])
    book.show("n", [11.0, 9.0, 8.0])
    return book


def test_every_part_is_there(full: Any) -> None:
    expect = (Expectation("small", "psnr", reported=30.0, source="table 2", tolerance=5.0),)
    verdicts = gate(
        full.frame, Policy((Limit("recovered", at_most=0.1, threat="honest*"), Limit("lpips", at_least=0.4)))
    )
    text = render(index("t", expect=expect), full.frame, full.pictures, verdicts, {"t": {"seconds": 65.0}})
    page = Page(text)
    assert page.open == []
    assert "with gaussian-noise (std=0.01) 0 of 6 did, at a cost of 5.1 points of accuracy." in page.text
    for words in (
        "85.1 %",  # accuracy after the last round
        "+16.9",  # leak above prior: (31.25 + 22.5) / 2 - 10
        "4 of 6",
        "table 2",
        "✗ broken",
        "? unmeasured",
        "hides it",
        Status.NOT_REDUCED.sentence,
        "runs the protocol as agreed".capitalize(),
        "Run on data you own or simulate",
        "1 min 5 s of computing",
        "2.13.0",
        "Seed 7",
        "no guess",
    ):
        assert words in page.text, words
    assert len([s for s in page.all("svg") if s.get("role") == "img"]) == 2


def test_self_contained_and_its_own_scripts_alone_may_run(full: Any) -> None:
    text = render(index("t"), full.frame, full.pictures)
    page = Page(text)
    assert not page.all("link")
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "data", "action", "poster"):
            assert (attributes.get(name) or "#").startswith(("data:image/png;base64,", "#")), (tag, name)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "@import" not in style
    assert "url(" not in style
    targets = {a["id"] for _, a in page.tags if "id" in a}
    assert {(a["href"] or "")[1:] for a in page.all("a")} <= targets
    (policy,) = [m["content"] or "" for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    data, *code = page.scripts
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in code]
    assert rules["script-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert json.loads(data)["threshold"] == 20.0
    assert "sourceMappingURL" not in "".join(code)


def test_libraries_come_with_their_licence_and_are_what_was_fetched() -> None:
    folder = Path(vendor.__file__).parent
    entries = json.loads((folder / "versions.json").read_text())
    listed = {file for entry in entries for file in entry["files"]}
    shown = unescape(render(index(), COLUMNS.empty_table().to_pandas(), {}))
    assert listed == {path.name for path in folder.iterdir() if path.suffix in (".js", ".css", ".txt")}
    for entry in entries:
        licence = next((folder / file).read_text() for file in entry["files"] if file.startswith("LICENSE"))
        assert {"MIT": "without restriction", "ISC": "Permission to use, copy, modify"}[entry["licence"]] in licence
        script = next((folder / file).read_text() for file in entry["files"] if file.endswith(".js"))
        assert entry["version"] in script
        assert licence.split("\n\n")[-1].strip() in shown


def test_every_image_has_words_and_the_best_comes_first(full: Any) -> None:
    page = Page(render(index("t"), full.frame, full.pictures))
    images = page.all("img")
    worst, images = images[:2], images[2:]
    assert ["31.2 dB" in str(image["alt"]) for image in worst] == [False, True]
    assert len(images) == 2 * 3 - 1 + 2 * 3  # one true image has no reconstruction
    assert all(image.get("alt") for image in images)
    reconstructions = [str(i["alt"]) for i in images if str(i["alt"]).startswith("Reconstruction")]
    assert [re.findall(r"[\d.]+ dB, \w+", alt)[0] for alt in reconstructions] == [
        "31.2 dB, above",
        "22.5 dB, above",
        "11.0 dB, not",
        "9.0 dB, not",
        "8.0 dB, not",
    ]


HOSTILE = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    "column",
    ["case", "attack", "attack_settings", "defence", "defence_settings", "threat", "client", "data", "outcome"],
)
def test_what_comes_from_the_table_is_escaped(book: Any, column: str) -> None:
    book.images([30.0], **{column: HOSTILE})
    book.failure(**{"outcome": HOSTILE, column: HOSTILE})
    if column in ("case", "defence", "defence_settings"):
        book.learning([0.5, 0.6], **{column: HOSTILE})
    book.show("t", [30.0], client=HOSTILE)
    expect = (Expectation(HOSTILE, "psnr", 20.0, source='"><img src=x>'),)
    verdicts = gate(book.frame, Policy((Limit(HOSTILE, at_most=1.0, case=HOSTILE),)))
    page = Page(render(index("t", name=HOSTILE, expect=expect), book.frame, book.pictures, verdicts))
    assert page.open == []
    assert len(page.scripts) == 5
    assert HOSTILE in json.dumps(json.loads(page.scripts[0]))
    assert "<" not in page.scripts[0]
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))


def test_the_same_input_gives_the_same_page(full: Any) -> None:
    first = render(index("t"), full.frame, full.pictures, (), {"t": {"seconds": 1.0}})
    assert first == render(index("t"), full.frame.copy(), dict(full.pictures), (), {"t": {"seconds": 1.0}})
    assert first != render(index("t"), full.frame, full.pictures, (), {"t": {"seconds": 2.0}})


def test_an_empty_table_is_a_page_that_says_so(book: Any) -> None:
    page = Page(render(index("t"), book.frame, {}))
    assert page.open == []
    assert "Nothing was measured" in page.text
    assert "1 of 1 trial has not run yet" in page.text
    assert not page.all("table")


def test_missing_metrics_are_a_dash(book: Any) -> None:
    book.add("psnr", 15.0)
    page = Page(render(index(), book.frame, {}))
    assert "15.0" in page.text
    assert "–" in page.text
    assert "nan" not in page.text.lower()
    assert "LPIPS" not in page.text
    book.add("lpips", 0.25)
    assert "LPIPS" in Page(render(index(), book.frame, {})).text


@pytest.mark.parametrize("outcome", ["error: out of memory: no room", "not applicable: hidden"])
def test_failures_alone_are_shown_with_their_words(book: Any, outcome: str) -> None:
    book.failure(outcome)
    book.failure("error: diverging", attack="none", threat="none")
    page = Page(render(index(), book.frame, {}))
    assert outcome in page.text
    assert "small, learning, no defence" in page.text
    assert "No attack could be measured" in page.text


def test_a_case_that_is_not_complete_is_marked(book: Any) -> None:
    book.images([30.0], trial="1")
    planned = Planned("small", "inverting-gradients", "none", 3)
    half = replace(index("1", "2", "3", expect=(Expectation("small", "psnr", 30.0),)), plan=(planned,))
    text = Page(render(half, book.frame, {})).text
    assert "fashion-mnist, lenet, so far 1 of 3 trials" in text
    assert "as reported, so far (1 of 3 trials)" in text
    whole = replace(half, trials=("1",), plan=(replace(planned, trials=1),))
    assert "so far" not in Page(render(whole, book.frame, {})).text


def test_rows_of_tables_are_told_in_cells(book: Any) -> None:
    book.table_rows([0.8, 0.6], case="adult")
    book.failure("not applicable: hidden", case="adult", **NOISE)
    page = Page(render(index(), book.frame, {}))
    for words in ("Cells that came back", "Cells found", "Whole rows", "70 %", "+50.0"):
        assert words in page.text
    for words in ("PSNR", "Features found", "85 %"):  # the last is the share of features, of which zeros are easy
        assert words not in page.text


def test_cells_that_a_guess_finds_too_are_no_leak_but_not_nothing(book: Any) -> None:
    book.table_rows([0.2, 0.21])
    text = Page(render(index(), book.frame, {})).text
    assert "No more came back than a guess finds" in text
    assert "Nothing came back" not in text


def test_numbers_that_are_no_table_have_features_and_an_error(book: Any) -> None:
    book.arrays([0.8, 0.6], case="series")
    book.failure("not applicable: hidden", case="series", **NOISE)
    page = Page(render(index(), book.frame, {}))
    for words in ("Features found", "Mean error", "70 %", "+50.0"):
        assert words in page.text
    assert "PSNR" not in page.text


def test_every_guess_without_a_leak_stands_beside_the_number(book: Any) -> None:
    book.images([30.0])
    book.add("psnr_of_class_mean", 12.0)
    page = Page(render(index(), book.frame, {}))
    assert "one colour 10.0, class mean 12.0" in page.text
    assert "+18.0" in page.text


def test_trials_of_one_line_share_a_strip_and_the_rest_is_counted(book: Any) -> None:
    for client, trial in (("0", "t"), ("1", "u")):
        book.images([30.0] * 8, client=client, trial=trial)
        book.show(trial, [30.0] * 8, client=client)
    page = Page(render(index(), book.frame, book.pictures))
    assert len(page.all("article")) == 1
    shown = [pair for pair in page.all("li") if pair.get("data-client")]
    assert len(page.all("img")) == 2 * len(shown) + 2  # with the worst case on top
    assert [sum(pair["data-rank"] == rank for pair in shown) for rank in ("best", "median", "worst")] == [6, 3, 3]
    assert f"and {16 - len(shown)} more" in page.text


def test_of_too_many_strips_those_that_leaked_most_are_shown(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips_module, "MOST_STRIPS", 2)
    for number, psnr in enumerate((9.0, 30.0, 31.0)):
        case = {"case": f"case {number}", "trial": f"t{number}"}
        book.images([psnr], **case)
        book.show(f"t{number}", [psnr])
    page = Page(render(index(), book.frame, book.pictures))
    assert len(page.all("article")) == 2
    assert "1 further strip without pictures" in page.text
    assert "case 0: no defence, inverting-gradients as honest-server: 0 of 1 came back, mean 9.0 dB" in page.text


def test_long_settings_are_folded_and_namesakes_told_apart(book: Any) -> None:
    long = "lr=0.1, steps=4800, starts=1, signed=True, schedule=drops"
    book.images([30.0], attack_settings=f"tv=0.1, {long}")
    book.images([25.0], attack_settings=f"tv=0.2, {long}")
    page = Page(render(index(), book.frame, {}))
    assert "inverting-gradients (tv=0.2)" in page.text
    assert {"class": "settings"} in page.all("details")


def test_a_threat_model_of_the_users_own_is_described_from_the_notes(book: Any) -> None:
    book.images([30.0], threat="insider")
    assert "the table alone does not say what it grants" in Page(render(index(), book.frame, {})).text
    threat = {"kind": "ThreatModel", "name": "insider", "facts": ["count", "labels"], "about": "knows a lot"}
    text = Page(render(index(), book.frame, {}, (), {"t": {"trial": {"threat": threat}}})).text
    assert "Knows a lot." in text
    assert "how often each label occurs" in text
    refused = text[text.index("Not granted") : text.index("How to read this, and how sure")]
    hidden = [fact.value for fact in Fact if fact.value not in threat["facts"]]
    assert re.findall(r"(?:granted|;) ([a-z ]+) :", refused) == hidden


def test_one_round_and_crowded_rounds_are_drawn(book: Any) -> None:
    book.images([30.0])
    book.learning([0.5])
    book.learning([0.5 + i / 1000 for i in range(200)], case="long")
    page = Page(render(index(), book.frame, {}))
    assert page.open == []
    assert len(page.all("circle")) < 20


def test_accuracy_that_is_not_a_number_is_left_out_of_the_chart(book: Any) -> None:
    book.images([30.0])
    book.learning([math.nan, math.nan])
    page = Page(render(index(), book.frame, {}))
    assert not page.all("svg")
    assert "nan" not in page.text.lower()


def test_why_data_did_not_come_back_is_said_beside_the_pictures_and_in_the_tables(book: Any) -> None:
    book.images([31.0], client="0", diagnosis="recovered")
    book.images([9.0], client="1", diagnosis="labels-wrong+stuck")
    book.images([8.0], client="2", diagnosis="stuck")
    book.images([7.0, 6.0], client="0", trial="n", diagnosis="defended", **NOISE)
    book.show("t", [31.0, 9.0, 8.0])
    book.show("n", [7.0, 6.0])
    page = Page(render(index("t", "n"), book.frame, book.pictures))
    assert page.open == []
    assert (
        f"Why not more: search stopped short (2 of 3). {Cause.STUCK.sentence} Also: wrong labels (1 of 3)." in page.text
    )
    assert f"Why not recovered: defended by gaussian-noise. {Cause.DEFENDED.sentence}" in page.text
    assert "brings no more back" not in page.text
    assert "why not all: search stopped short (2 of 3); wrong labels (1 of 3)" in page.text
    assert f"search stopped short 2 {Cause.STUCK.sentence}" in page.text
    assert f"defended 1 {Cause.DEFENDED.sentence}" in page.text


def test_a_defence_gets_no_praise_for_an_attack_that_fails_without_it_too(book: Any) -> None:
    book.images([9.0], diagnosis="stuck")
    book.images([8.0], trial="n", diagnosis="defended", **NOISE)
    book.show("n", [8.0])
    assert (
        "Without the defence the same attack brings no more back"
        in Page(render(index("t", "n"), book.frame, book.pictures)).text
    )


def test_where_all_came_back_there_is_nothing_to_explain(book: Any) -> None:
    book.images([31.0], diagnosis="recovered")
    book.show("t", [31.0])
    text = Page(render(index("t"), book.frame, book.pictures)).text
    assert "Why" not in text
    assert "why not" not in text


def test_labels_alone_have_a_table_of_their_own_and_no_pictures(book: Any) -> None:
    book.labels(0.75, wrong=1.0, client="0", diagnosis="labels-wrong")
    book.labels(1.0, wrong=0.0, client="1", diagnosis="recovered")
    book.failure("not applicable: hidden", attack="count-labels", attack_settings="method=auto", threat="eavesdropper")
    page = Page(render(index("t"), book.frame, {}))
    assert page.open == []
    for words in (
        "Labels were found",
        "Labels found",
        "88 %",
        "0.5 of 4",
        "0.75",
        "why not all: wrong labels (1 of 2)",
    ):
        assert words in page.text, words
    for words in ("PSNR", "Pictures", "Came back", "Accuracy", "SSIM", "nan"):
        assert words not in page.text, words
    assert not page.all("img")


def test_bounds_of_a_share_stay_inside_of_what_a_share_can_be(book: Any) -> None:
    book.labels(0.75, wrong=1.0, client="0")
    book.labels(1.0, wrong=0.0, client="1")
    text = Page(render(index("t"), book.frame, {})).text
    assert "[0.0, 100.0]" in text


def test_every_mean_of_images_has_an_interval_and_n(book: Any) -> None:
    for client, psnr in (("0", [30.0, 10.0]), ("1", [24.0, 8.0]), ("2", [9.0, math.nan])):
        book.images(psnr, client=client)
        book.add("label_accuracy", 1.0, client=client, item="all")
    text = Page(render(index("t"), book.frame, {})).text
    assert "[0, 100]" in text  # of images that came back: of two clients half, of one none
    assert "[44, 100]" in text  # all labels of three clients: Wilson's interval, since there is no spread
    assert "n is the number of clients" in text


def test_what_enters_a_layer_is_shown_as_an_error(book: Any) -> None:
    book.features([0.0625, 0.1875], diagnosis="recovered")
    page = Page(render(index("t"), book.frame, {}))
    for words in ("Relative error", "0.125", "1 of 2", "Examples whose features came back"):
        assert words in page.text, words
    for words in ("PSNR", "Pictures"):
        assert words not in page.text, words


def test_a_clients_own_model_is_shown_as_an_error_beside_the_last_answer(book: Any) -> None:
    book.model(0.0625, diagnosis="recovered")
    page = Page(render(index("t"), book.frame, {}))
    for words in ("Relative error", "Last answer", "0.75", "1 of 1", "Clients whose own models came back"):
        assert words in page.text, words
    for words in ("PSNR", "Pictures"):
        assert words not in page.text, words


def test_columns_and_sources_have_a_table_each(book: Any) -> None:
    book.attribute(0.9, diagnosis="recovered")
    book.attribute(0.5, **NOISE)
    book.source(0.25)
    page = Page(render(index("t"), book.frame, {}))
    for words in ("Sensitive values", "90.0 %", "62.5 %", "Sources of records", "25.0 %", "12.5 %", "were traced"):
        assert words in page.text, words
    for words in ("PSNR", "Pictures"):
        assert words not in page.text, words


def test_classes_have_a_table(book: Any) -> None:
    book.classes(0.5)
    page = Page(render(index("t"), book.frame, {}))
    for words in ("Likeness of classes", "50.0 %", "37.5 %", "the mean of public data"):
        assert words in page.text, words


def test_images_and_labels_have_a_table_each(book: Any) -> None:
    book.images([30.0])
    book.labels(1.0, wrong=0.0, trial="l")
    book.show("t", [30.0])
    page = Page(render(index("t", "l"), book.frame, book.pictures))
    captions = [words.strip() for words in page.words]
    assert "Images" in captions
    assert "Labels" in captions
    assert len(page.all("article")) == 1
    assert "Data came back" in page.text


def test_the_cost_of_a_defence_is_drawn_for_labels_too(book: Any) -> None:
    book.labels(1.0, wrong=0.0)
    book.labels(0.5, wrong=2.0, trial="n", **NOISE)
    book.learning([0.5, 0.8])
    book.learning([0.4, 0.7], **NOISE)
    page = Page(render(index("t", "n"), book.frame, {}))
    assert "labels that were found, %" in page.text
