"""The workflow for GitHub Actions in docs/ci.md: valid by GitHub's schema, and its `seepage` steps run as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import seepage
from common.pages import blocks

WORKFLOW, POLICY = (next(b.text for b in blocks("docs/ci.md") if b.kind == kind) for kind in ("yaml", "toml"))
AUDIT = """
[clients]
count = 2
examples = 1
[watch]
clients = 2
[model]
name = "mlp"
[recipe]
sends = "gradient"
[[attack]]
name = "analytic"
"""


@pytest.mark.parametrize(("change", "valid"), [(("", ""), True), (("runs-on", "run-on"), False)])
def test_it_is_a_workflow_by_githubs_schema(change: tuple[str, str], valid: bool, tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="needs the dependency group dev")
    path = tmp_path / "leakage.yml"
    path.write_text(WORKFLOW.replace(*change), encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) == valid, done.stdout + done.stderr


def test_its_commands_run_and_leave_what_later_steps_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the shell that GitHub runs steps with; that the package can be installed is for the registry to say."""
    monkeypatch.chdir(tmp_path)
    Path("audit.toml").write_text(AUDIT, encoding="utf-8")
    Path("policy.toml").write_text(POLICY, encoding="utf-8")
    here = {
        **os.environ,
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(seepage.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    (job,) = yaml.safe_load(WORKFLOW)["jobs"].values()
    codes = []
    for step in job["steps"]:
        if step.get("run", "").startswith("seepage"):
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            codes.append(subprocess.run(command, env=here, capture_output=True).returncode)
    assert codes == [0, 1], "both images of a linear first layer come back, which the policy forbids"
    uploads = [step["with"] for step in job["steps"] if "upload" in step.get("uses", "")]
    assert [one.get("sarif_file") or one["path"] for one in uploads] == ["leakage.sarif", "leakage.xml"]
    assert json.loads(Path("leakage.sarif").read_text())["version"] == "2.1.0"
    assert list(ElementTree.parse("leakage.xml").getroot().iter("failure"))
    assert "recovered" in Path("summary.md").read_text()
