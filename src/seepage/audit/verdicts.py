"""Verdicts of the gate for machines that review changes: as tests (JUnit), findings (SARIF) or a summary (Markdown)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from seepage.audit.gate import Limit, Verdict
from seepage.metrics import METRICS

__all__ = ["as_junit", "as_markdown", "as_sarif", "limit_name"]

_MARKS = {"within": "✅ within", "broken": "❌ broken", "unmeasured": "⚠️ unmeasured"}


def limit_name(limit: Limit) -> str:
    """A limit in one line.

    Example:
        >>> limit_name(Limit("psnr", at_most=20.0, statistic="p95", threat="honest-*"))
        'p95 psnr at most 20 (threat honest-*)'
    """
    bounds = [f"at least {limit.at_least:g}"] if limit.at_least is not None else []
    bounds += [f"at most {limit.at_most:g}"] if limit.at_most is not None else []
    where = [f"{c} {getattr(limit, c)}" for c in ("case", "attack", "defence", "threat") if getattr(limit, c) != "*"]
    return f"{limit.statistic} {limit.metric} {' and '.join(bounds)}" + (f" ({', '.join(where)})" if where else "")


def as_junit(verdicts: Sequence[Verdict], name: str = "seepage") -> str:
    """One test case per limit: a broken one is a failure, an unmeasured one an error.

    Example:
        >>> as_junit([Verdict(Limit("psnr", at_most=20.0), 25.0, "broken", "25 is above 20")]).count("<failure")
        1
    """
    counts = {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in _MARKS}
    suite = ElementTree.Element(
        "testsuite",
        name=_printable(name),
        tests=str(len(verdicts)),
        failures=str(counts["broken"]),
        errors=str(counts["unmeasured"]),
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname="seepage.gate", name=_printable(limit_name(verdict.limit))
        )
        if verdict.outcome != "within":
            kind = "failure" if verdict.outcome == "broken" else "error"
            ElementTree.SubElement(case, kind, message=_printable(verdict.why))
        else:
            ElementTree.SubElement(case, "system-out").text = _printable(verdict.why)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def as_markdown(verdicts: Sequence[Verdict], name: str = "seepage") -> str:
    """A table for the summary of a pull request.

    Example:
        >>> print(as_markdown([Verdict(Limit("psnr", at_most=20.0), 15.0, "within", "15")]).splitlines()[-1])
        | ✅ within | mean psnr at most 20 | 15 | 15 |
    """
    broken = sum(v.outcome == "broken" for v in verdicts)
    unmeasured = sum(v.outcome == "unmeasured" for v in verdicts)
    said = f"{broken} broken, {unmeasured} unmeasured" if broken or unmeasured else "all within"
    lines = [f"### Leakage gate: {_cell(name)}", "", f"{len(verdicts)} limits: {said}.", ""]
    lines += ["| outcome | limit | measured | why |", "|---|---|---|---|"]
    for v in verdicts:
        value = "–" if math.isnan(v.value) else f"{v.value:.4g}"
        lines.append(f"| {_MARKS[v.outcome]} | {_cell(limit_name(v.limit))} | {value} | {_cell(v.why)} |")
    return "\n".join(lines) + "\n"


def as_sarif(verdicts: Sequence[Verdict], policy: Path, text: str, version: str, name: str = "seepage") -> str:
    """Static analysis results (SARIF 2.1.0): one result per limit that is broken or unmeasured, one rule per metric.

    Args:
        verdicts: of all limits, in the order of the policy.
        policy: its file, which is where a result points to.
        text: what is written in it.
        version: of Seepage.
        name: of the audit.

    Example:
        >>> broken = Verdict(Limit("psnr", at_most=20.0), 25.0, "broken", "25 is above 20")
        >>> json.loads(as_sarif([broken], Path("policy.toml"), "[[limit]]", "1.0"))["runs"][0]["results"][0]["ruleId"]
        'leakage/psnr'
    """
    metrics = list(dict.fromkeys(verdict.limit.metric for verdict in verdicts))
    lines = _limit_lines(text, len(verdicts))
    results = [
        _sarif_result(verdict, metrics.index(verdict.limit.metric), policy, line, name)
        for verdict, line in zip(verdicts, lines, strict=True)
        if verdict.outcome != "within"
    ]
    driver = {"name": "seepage", "version": version, "rules": [_sarif_rule(metric) for metric in metrics]}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }
    return json.dumps(log, indent=2) + "\n"


def _sarif_rule(metric: str) -> dict[str, Any]:
    about = METRICS[metric].about if metric in METRICS else f"the measure {metric!r}"
    return {
        "id": f"leakage/{metric}",
        "shortDescription": {"text": f"Limit on {metric}"},
        "fullDescription": {"text": about},
        "defaultConfiguration": {"level": "error"},
    }


def _sarif_result(verdict: Verdict, rule: int, policy: Path, line: int, name: str) -> dict[str, Any]:
    said = limit_name(verdict.limit)
    place = {"artifactLocation": {"uri": quote(policy.as_posix())}, "region": {"startLine": line}}
    return {
        "ruleId": f"leakage/{verdict.limit.metric}",
        "ruleIndex": rule,
        # What could not be measured is no proof of a leak, and no reason to go on either.
        "level": "error" if verdict.outcome == "broken" else "warning",
        "message": {"text": _printable(f"{name}: {said}: {verdict.outcome}, {verdict.why}")},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"limit/v1": said},
    }


def _limit_lines(text: str, count: int) -> list[int]:
    """The line of each `[[limit]]`; the first one for all of them where the policy is written in another way."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.replace(" ", "").startswith("[[limit]]")]
    return lines if len(lines) == count else [1] * count


def _cell(text: str) -> str:
    """Names come from outside: neither a cell nor a tag must end or begin with them."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return " ".join(text.split())


def _printable(text: str) -> str:
    """XML has no place for control characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
