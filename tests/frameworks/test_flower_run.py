"""The app in `examples/flower`, by Flower's own commands: simulated on Ray, and deployed over loopback."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from common.pages import blocks, commands, shown
from seepage.capture import examine
from seepage.frameworks.arrange import arrange, find_captures, find_secrets

pytest.importorskip("flwr", reason="pip install 'seepage[flower]'")
pytest.importorskip("ray", reason="pip install 'flwr[simulation]'")

APP = Path(__file__).parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
Start = Callable[..., None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "RAY_ADDRESS": "local",  # and no cluster that somebody else started on this machine
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "WARD_FOLDER": str(tmp_path),
    }


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a process of its own session, and ends the session afterwards."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*command: str) -> None:
        with (tmp_path / f"log-{len(running)}").open("wb") as log:
            running.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path)
            )

    yield begin
    for process in reversed(running):
        process.terminate()
    for process in running:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(port: int) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"no SuperLink answers on port {port}")


def the_page_shows_what_the_commands_print(home: Path) -> None:
    """`seepage doctor` and `seepage attack` of docs/flower.md on what was captured, the latter searching less."""
    shutil.copy(APP / "recipe.toml", home)
    ran = []
    for block in blocks("docs/flower.md"):
        for command, lines in commands(block.text) if block.kind == "console" else ():
            words = shlex.split(command)
            if words[0] != "seepage":
                continue
            short = ("--effort", "quick") if words[1] == "attack" else ()
            done = subprocess.run(
                [sys.executable, "-m", *words, *short],
                cwd=home,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(APP), "COLUMNS": "80"},
                capture_output=True,
                timeout=600,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            # Names of nodes are drawn anew in each run.
            shown(lines, done.stdout, f"docs/flower.md:{block.line}")
            ran.append(words[1])
    assert ran == ["doctor", "attack", "attack"]


@pytest.mark.federation
@pytest.mark.parametrize("deployed", [False, True], ids=["simulated on Ray", "deployed"])
def test_a_real_app_is_captured_on_both_sides(
    deployed: bool, start: Start, environment: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "flwr" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    here = ("--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1", "--port", str(port))
    start("flower-superlink", *here, *(() if deployed else ("--simulation",)))
    wait_for(port)
    for ward in range(2 if deployed else 0):
        near = ("--port", str(free_port()), "--node-config", f"partition-id={ward}")
        start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *near)
    done = subprocess.run(
        ["flwr", "run", str(APP), "here", "--stream"],
        env=environment,
        capture_output=True,
        timeout=600,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    sys.path.insert(0, str(APP))
    try:
        from ward.model import examples, network, task  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(APP))
    at_client = {c.client: c for c in find_captures(tmp_path / "captures")}
    at_server = {c.client: c for c in find_captures(tmp_path / "server-captures")}
    secrets = find_secrets(tmp_path / "secrets")
    assert len(at_client) == 2, done.stdout
    assert set(at_client) == set(at_server) == set(secrets)
    for name, capture in at_client.items():
        (sent,), (seen,) = capture.exchanges, at_server[name].exchanges
        torch.testing.assert_close(sent.answer, seen.answer, rtol=0, atol=0)
        torch.testing.assert_close(sent.before, seen.before, rtol=0, atol=0)
        assert (sent.round, sent.examples) == (1, 2)
        assert [p for p in examine(arrange(capture, task()), task()) if p.fatal] == []
        # The secret is what the update was made of.
        model = network()
        model.load_state_dict(sent.before)
        data = secrets[name].examples
        nn.functional.cross_entropy(model(data.x), data.y).backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(sent.update[key], 0.01 * parameter.grad, rtol=1e-2, atol=1e-7)
    if not deployed:
        the_page_shows_what_the_commands_print(tmp_path)
    held = torch.cat([secret.examples.x for secret in secrets.values()])
    both = torch.cat([examples(0).x, examples(1).x])
    assert held.sum() == pytest.approx(float(both.sum()), rel=1e-5)
