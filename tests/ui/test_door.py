"""Who is let in, and what of the disk is shown."""

from __future__ import annotations

import http.client
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from typer.testing import CliRunner

from seepage.cli import app
from seepage.ui import command

TOKEN = "a-token-that-nobody-guesses"


def ask(served: Any, path: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str, dict[str, str]]:
    """As a program would, with the path and the headers as they are."""
    kind = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
    with closing(http.client.HTTPConnection(urlsplit(served.address).netloc, timeout=60)) as connection:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in {**kind, **headers, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}


def test_the_token_opens_and_nothing_else_does(served: Any) -> None:
    assert ask(served, f"/{TOKEN}/")[0] == 200
    for path in ("/", "/ui.css", "/run/first", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", "//", f"/{TOKEN.upper()}/run/first"):
        status, text, _ = ask(served, path)
        assert status == 404, path
        assert "first" not in text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7"])
def test_another_name_for_this_machine_is_refused(served: Any, host: str) -> None:
    assert ask(served, f"/{TOKEN}/", Host=host)[0] == 400
    assert ask(served, f"/{TOKEN}/", Host="localhost:1234")[0] == 200


def test_a_form_of_another_site_is_refused(served: Any) -> None:
    body = urlencode({"spec": "", "folder": "x"})
    assert ask(served, f"/{TOKEN}/start", "POST", body, Origin="http://evil.example")[0] == 403
    assert ask(served, f"/{TOKEN}/start", "POST", body, Origin="null")[0] == 403
    assert ask(served, f"/{TOKEN}/start", "POST", body, Origin=served.address)[0] == 400  # let in, and empty


def test_nothing_outside_of_the_folder_is_shown(served: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "experiment.json").write_text((served.root / "first" / "experiment.json").read_text())
    (secret / "audit.log").write_text("what nobody is to see")
    (served.root / "link").symlink_to(secret)
    for name in ("../secret", "..%2fsecret", "first/../../secret", "link", quote(str(secret)), "%00", "nothing", ".."):
        for page in ("", "/report", "/state"):
            status, text, _ = ask(served, f"/{TOKEN}/run/{name}{page}")
            assert status == 404, name
            assert "nobody is to see" not in text
    assert "run/link" not in ask(served, f"/{TOKEN}/")[1]
    assert ask(served, f"/{TOKEN}/compare?before=first&after=../secret")[0] == 400


def test_pages_may_ask_this_server_alone_and_names_are_words(served: Any) -> None:
    _, text, headers = ask(served, f"/{TOKEN}/")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "same-origin"
    assert "&lt;b&gt;first&lt;/b&gt;" in text
    assert "<b>first" not in text


def test_a_form_that_is_too_long_is_refused(served: Any) -> None:
    assert ask(served, f"/{TOKEN}/new", "POST", "x" * 200_000)[0] == 413


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "first", "x" * 81, "a\nb"])
def test_a_new_run_is_a_new_folder_right_there(served: Any, name: str) -> None:
    spec = 'accuracy = true\n[data]\nname = "fashion-mnist"\n'
    before = sorted(served.root.rglob("*"))
    assert ask(served, f"/{TOKEN}/start", "POST", urlencode({"spec": spec, "folder": name}))[0] == 400
    assert sorted(served.root.rglob("*")) == before


def test_the_command_listens_on_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    seen: list[Any] = []

    def run(self: Any, sockets: list[Any]) -> None:
        seen.append(sockets[0].getsockname())

    monkeypatch.setattr(uvicorn.Server, "run", run)
    outcomes = [CliRunner().invoke(app, ["ui", str(tmp_path)]) for _ in range(2)]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert {host for host, _ in seen} == {"127.0.0.1"}
    addresses = [outcome.stderr.split()[1] for outcome in outcomes]
    tokens = {urlsplit(address).path.strip("/") for address in addresses}
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    outcome = CliRunner().invoke(app, ["ui", str(tmp_path)])
    assert outcome.exit_code == 2
    assert "pip install 'seepage[ui]'" in outcome.stderr
    assert "expected the package uvicorn" in outcome.stderr


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["ui", str(tmp_path / "nothing")])
    assert outcome.exit_code == 2
    assert "expected a folder" in " ".join(outcome.stderr.split())
    assert command.__doc__
