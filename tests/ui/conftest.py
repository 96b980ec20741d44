"""A folder of runs, and a server over it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from seepage.audit.table import Table

TOKEN = "a-token-that-nobody-guesses"


def add_run(folder: Path, values: dict[str, float], *, left: int = 0) -> None:
    """Results of one attack on so many clients."""
    common = {
        "trial": "t",
        "experiment": "e",
        "case": "all",
        "attack": "inverting-gradients",
        "attack_settings": "",
        "defence": "none",
        "defence_settings": "",
        "threat": "honest-server",
        "data": "fashion-mnist",
        "model": "mlp",
        "item": "0",
        "metric": "psnr",
        "seed": 0,
        "outcome": "reduced",
        "device": "cpu",
        "seepage": "0.1.0",
        "torch": "2",
        "diagnosis": "",
    }
    rows = [{**common, "client": client, "value": value} for client, value in values.items()]
    Table(folder).write("t", rows, None, {"seconds": 1.0})
    trials = ["t", *(f"left{i}" for i in range(left))]
    index = {"name": f"<b>{folder.name}</b>", "about": "", "threshold": 20.0, "expect": [], "trials": trials}
    (folder / "experiment.json").write_text(json.dumps(index))


@dataclass(frozen=True)
class Served:
    """A server and what it serves."""

    address: str
    root: Path

    @property
    def home(self) -> str:
        return f"{self.address}/{TOKEN}/"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    uvicorn = pytest.importorskip("uvicorn", reason="the extra seepage[ui] is not installed")
    from seepage.ui.app import make_app
    from seepage.ui.jobs import Jobs

    root = tmp_path / "runs"
    clients = "abcdefgh"
    add_run(root / "first", {c: 20.0 + i for i, c in enumerate(clients)})
    add_run(root / "below" / "second", {c: 25.0 + i for i, c in enumerate(clients)}, left=2)
    jobs = Jobs()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(make_app(root, TOKEN, jobs), log_level="error", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.02)
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", root)
        jobs.stop_all()
        server.should_exit = True
        thread.join(timeout=30)
