"""What a build server reads."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from seepage.audit.gate import Limit, Verdict
from seepage.audit.verdicts import as_junit, as_markdown, as_sarif

VERDICTS = [
    Verdict(Limit("psnr", at_most=20.0), 15.0, "within", "15"),
    Verdict(Limit("recovered", at_most=0.0, attack="<script>|*"), 0.5, "broken", "0.5 is above 0 & more\x00"),
    Verdict(Limit("ssim", at_most=0.1), math.nan, "unmeasured", "no row of 'ssim' matches"),
]


def test_junit_counts_and_names_every_limit() -> None:
    suite = ElementTree.fromstring(as_junit(VERDICTS, "nightly"))
    assert suite.attrib == {"name": "nightly", "tests": "3", "failures": "1", "errors": "1"}
    within, broken, unmeasured = suite.findall("testcase")
    assert [(part.tag, part.text) for part in within] == [("system-out", VERDICTS[0].why)]
    failure = broken.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "0.5 is above 0 & more "
    assert "<script>|*" in broken.attrib["name"]
    assert unmeasured.find("error") is not None


def test_markdown_has_a_row_for_every_limit_and_no_tags_of_others() -> None:
    lines = as_markdown(VERDICTS, "nightly").splitlines()
    assert lines[2] == "3 limits: 1 broken, 1 unmeasured."
    assert len([line for line in lines if line.startswith("|")]) == 2 + 3
    assert "<script>" not in as_markdown(VERDICTS, "<script>")
    assert as_markdown(VERDICTS[:1]).splitlines()[2] == "1 limits: all within."


POLICY = """# what we accept
[[limit]]
metric = "psnr"
at_most = 20.0

[[limit]]
metric = "recovered"
at_most = 0.0

[[limit]]
metric = "ssim"
at_most = 0.1
"""


@pytest.fixture
def log() -> Any:
    return json.loads(as_sarif(VERDICTS, Path("our policy.toml"), POLICY, "1.2.3", "nightly"))


def test_sarif_has_the_fields_that_version_2_1_0_requires(log: Any) -> None:
    """Those marked as required in its schema, for every object that is written here."""
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "seepage"
    assert all(rule["id"] for rule in driver["rules"])
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])  # unique, as the schema asks
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        place = result["locations"][0]["physicalLocation"]
        assert re.fullmatch(r"[!-~]+", place["artifactLocation"]["uri"])  # a reference has neither spaces nor umlauts
        assert place["region"]["startLine"] >= 1


def test_sarif_has_one_result_per_limit_that_is_not_kept(log: Any) -> None:
    broken, unmeasured = log["runs"][0]["results"]
    assert (broken["ruleId"], broken["level"]) == ("leakage/recovered", "error")
    assert (unmeasured["ruleId"], unmeasured["level"]) == ("leakage/ssim", "warning")
    lines = [result["locations"][0]["physicalLocation"]["region"]["startLine"] for result in (broken, unmeasured)]
    assert [POLICY.splitlines()[line - 1] for line in lines] == ["[[limit]]"] * 2
    assert lines == [6, 10]
    assert "0.5 is above 0 & more " in broken["message"]["text"]
    assert "nightly" in broken["message"]["text"]


def test_sarif_points_to_the_first_line_where_limits_are_written_otherwise() -> None:
    text = 'limit = [{ metric = "recovered", at_most = 0.0 }]\n'
    log = json.loads(as_sarif(VERDICTS[1:2], Path("policy.toml"), text, "1"))
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


def test_the_gate_writes_all_three(tmp_path: Path) -> None:
    from seepage.audit.table import Table
    from seepage.cli import app

    row = {
        "trial": "t", "experiment": "e", "case": "c", "attack": "a", "attack_settings": "", "defence": "none",
        "defence_settings": "", "threat": "honest-server", "data": "d", "model": "m", "client": "0", "item": "0",
        "metric": "psnr", "value": 30.0, "seed": 0, "outcome": "reduced", "device": "cpu", "seepage": "0", "torch": "2",
        "diagnosis": "",
    }  # fmt: skip
    Table(tmp_path).write("t", [row], None, {})
    (tmp_path / "experiment.json").write_text(
        '{"name": "e", "about": "", "threshold": 20.0, "expect": [], "trials": ["t"]}'
    )
    (tmp_path / "policy.toml").write_text('[[limit]]\nmetric = "psnr"\nat_most = 20.0\n')
    (tmp_path / "summary.md").write_text("before\n")
    files = ["--junit", str(tmp_path / "junit.xml"), "--markdown", str(tmp_path / "summary.md")]
    files += ["--sarif", str(tmp_path / "leakage.sarif")]
    done = CliRunner().invoke(app, ["gate", str(tmp_path), str(tmp_path / "policy.toml"), *files])
    assert done.exit_code == 1, done.output
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().attrib["failures"] == "1"
    assert len(json.loads((tmp_path / "leakage.sarif").read_text())["runs"][0]["results"]) == 1
    assert (tmp_path / "summary.md").read_text().startswith("before\n### Leakage gate: e")
