"""The data in the page, the tests between methods, where results come from, and the PDF."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from seepage.audit.summary import summarise
from seepage.audit.table import Table
from seepage.audit.values import SpecError
from seepage.cli import app
from seepage.metrics.intervals import METHOD_OF_SHARES, mean_interval
from seepage.report import explorer as explorer_module
from seepage.report.explorer import explorer, inline_json
from seepage.report.origin import Origin, recall, remember
from seepage.report.paired import contrasts
from seepage.report.pdf import find_browser, write_pdf
from seepage.report.words import distinguished

NOISE = {"defence": "gaussian-noise", "defence_settings": "std=0.01", "trial": "n"}


def data(book: Any, notes: Any = None) -> dict[str, Any]:
    lines = summarise(book.frame)
    labels = distinguished((line.attack, line.attack_settings) for line in lines)
    return json.loads(str(inline_json(explorer(book.frame, lines, [], labels, notes or {}, 20.0))))


def test_every_row_is_there_with_its_trial(book: Any) -> None:
    book.images([31.0, math.nan], client="ann", diagnosis="stuck")
    book.images([9.0], client="bob", **NOISE)
    found = data(book, {"t": {"seconds": 2.5, "trial": {"lr": math.inf}}})
    rows = found["rows"]
    for name in ("client", "item", "metric", "outcome", "diagnosis"):
        column = rows[name]
        assert [column["names"][code] for code in column["codes"]] == [row[name] for row in book.rows]
    assert [value is None for value in rows["value"]] == [math.isnan(row["value"]) for row in book.rows]
    assert [found["trials"][i]["digest"] for i in rows["trial"]] == [row["trial"] for row in book.rows]
    assert found["trials"][0]["settings"] == {"lr": "inf"}
    assert (found["trials"][0]["seed"], found["trials"][0]["seconds"]) == (7, 2.5)


def test_every_mean_has_n_interval_seed_and_digest(book: Any) -> None:
    values = {"ann": [31.0, 29.0], "bob": [20.0, 22.0], "cyd": [25.0, 24.0]}
    for client, psnr in values.items():
        book.images(psnr, client=client)
    found = data(book)
    (mean,) = [one for one in found["means"] if one["metric"] == "psnr"]
    clients = [sum(psnr) / 2 for psnr in values.values()]
    expected = mean_interval(clients)
    got = [mean[name] for name in ("mean", "low", "high")]
    assert got == pytest.approx([expected.mean, expected.low, expected.high], rel=1e-5)
    assert found["interval"] == METHOD_OF_SHARES
    assert (mean["n"], mean["per"], mean["seed"], mean["trial"]) == (3, "clients", "7", "t")


def test_of_too_many_rows_those_that_say_most_stay(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer_module, "MOST_ROWS", 5)
    book.images([31.0, 30.0, 29.0, 28.0])
    found = data(book)
    kept = [found["rows"]["metric"]["names"][code] for code in found["rows"]["metric"]["codes"]]
    assert kept == ["psnr", "psnr", "psnr", "psnr", "recovered"]
    assert found["rowsLeftOut"] == len(book.rows) - 5


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "&lt;", "\u2028", "\x00", "日本", '"}'])
def test_no_text_breaks_out_of_the_data(text: str) -> None:
    written = str(inline_json({text: text}))
    assert json.loads(written) == {text: text}
    assert not set(written) & set("<>&\u2028\u2029")


def test_methods_are_compared_on_the_same_clients(book: Any) -> None:
    for i in range(10):
        book.images([20.0 + i], client=str(i))
        book.images([15.0 + i], client=str(i), **NOISE)
        book.images([20.0 + i], client=str(i), attack="dlg", trial="d")
    lines = summarise(book.frame)
    labels = distinguished((line.attack, line.attack_settings) for line in lines)
    found, left = contrasts(book.frame, lines, labels)
    assert left == 0
    told = {(one.before, one.after): one for one in found}
    noise = told["no defence", "gaussian-noise (std=0.01)"]
    assert (noise.found.change.mean, noise.found.change.n, noise.found.paired) == (-5.0, 10, True)
    assert noise.found.verdict == "beyond chance"
    assert noise.under == "inverting-gradients as honest-server"
    assert told["inverting-gradients", "dlg"].found.verdict == "the same"


def test_where_results_come_from_is_remembered(tmp_path: Path) -> None:
    assert recall(tmp_path) is None
    remember(tmp_path / "new", ["seepage", "audit", "a b.toml"], "name = 1\n")
    assert recall(tmp_path / "new") == Origin(("seepage", "audit", "a b.toml"), "name = 1\n")
    for text in ("{", "[]", '{"command": 1}', '{"command": ["x"]}'):
        (tmp_path / "new" / "rerun.json").write_text(text)
        assert recall(tmp_path / "new") is None, text


def test_without_a_browser_the_pdf_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SEEPAGE_BROWSER", raising=False)
    with pytest.raises(SpecError, match=r"chromium.*install Chromium"):
        find_browser()
    monkeypatch.setenv("SEEPAGE_BROWSER", "no-such-browser")
    with pytest.raises(SpecError, match="no-such-browser"):
        find_browser()


def test_a_browser_that_does_not_print_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("SEEPAGE_BROWSER", str(fake))
    with pytest.raises(SpecError, match="exit code 3: no display"):
        write_pdf(tmp_path / "index.html", tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()


def test_the_command_holds_results_against_a_policy_and_names_a_missing_browser(
    book: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.images([31.0, 12.0])
    Table(tmp_path).write("t", book.rows, None, {})
    index = {"name": "a", "about": "", "threshold": 20.0, "expect": [], "trials": ["t"]}
    (tmp_path / "experiment.json").write_text(json.dumps(index))
    policy = tmp_path / "policy.toml"
    policy.write_text('[[limit]]\nmetric = "recovered"\nat_most = 0.1\n')
    monkeypatch.setenv("SEEPAGE_BROWSER", "no-such-browser")
    command = ["report", str(tmp_path), "--policy", str(policy), "--pdf", str(tmp_path / "a.pdf")]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 2
    assert "no-such-browser" in outcome.stderr
    assert "✗ Policy broken" in (tmp_path / "index.html").read_text()


def test_the_page_is_printed(tmp_path: Path) -> None:
    try:
        find_browser()
    except SpecError as error:
        pytest.skip(f"no browser: {error}")
    (tmp_path / "index.html").write_text("<!doctype html><title>x</title><p>Printed.")
    write_pdf(tmp_path / "index.html", tmp_path / "below" / "report.pdf")
    assert (tmp_path / "below" / "report.pdf").read_bytes().startswith(b"%PDF")
