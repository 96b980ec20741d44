"""Files that a coverage-guided fuzzer makes up: each is read, or refused by name. `make fuzz` runs it.

Needs atheris (`pip install atheris`). Options are libFuzzer's: `python tests/fuzz/fuzz_files.py -runs=20000`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

KINDS = (
    "capture.json",
    "state-0000.safetensors",
    "secret.safetensors",
    "gradient.pt",
    "gradient.npz",
    "recipe.toml",
    "policy.toml",
    "experiment.toml",
)
"""The first byte of an input says which file the others are."""


def main() -> None:
    """Fuzz in a process of its own, which libFuzzer ends without a word, and clear up after it."""
    with tempfile.TemporaryDirectory() as home:
        child = os.fork()
        if child == 0:
            fuzz(Path(home))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(code)


def fuzz(home: Path) -> None:
    """Run until libFuzzer's limits, or until something was neither read nor refused."""
    import atheris

    readers = ["capture", "untrusted", "inspect.command", "audit.values", "audit.gate", "audit.experiment"]
    with atheris.instrument_imports(include=[f"seepage.{reader}" for reader in readers]):
        from seepage import capture as captures
        from seepage.audit import experiment, gate
        from seepage.inspect import command
    import numpy as np
    import torch
    from torch import nn

    from seepage.audit.values import SpecError
    from seepage.spec import DataSpec, Examples
    from seepage.task import Task

    task = Task(nn.Linear(3, 2), DataSpec((3,), classes=2))
    state = dict(task.params)
    exchange = captures.Exchange(1, state, {n: t + 1 for n, t in state.items()}, "weights", {})
    captures.write_capture(home / "c", [captures.Capture("a", (exchange,))])
    sound, tensors = ((home / "c" / kind).read_bytes() for kind in KINDS[:2])

    def read(data: bytes) -> None:
        kind, content = KINDS[data[0] % len(KINDS)] if data else KINDS[0], data[1:]
        path = home / "c" / kind if kind in KINDS[:2] else home / kind
        path.write_bytes(content)
        try:
            if kind == "capture.json":
                (home / "c" / KINDS[1]).write_bytes(tensors)
                captures.read_capture(home / "c")
            elif kind == "state-0000.safetensors":
                header = json.loads(sound)
                header["sha256"][kind] = hashlib.sha256(content).hexdigest()
                (home / "c" / "capture.json").write_text(json.dumps(header))
                captures.read_capture(home / "c")
            elif kind == "secret.safetensors":
                captures.read_secret(path)
            elif kind == "recipe.toml":
                command._recipe(home, path)
            elif kind == "policy.toml":
                gate.read_policy(path)
            elif kind == "experiment.toml":
                experiment.read_experiment(path)
            else:
                captures.read_gradient(path, task)
        except (captures.CaptureError, SpecError):
            pass

    (home / "seeds").mkdir()
    captures.write_secret(home / KINDS[2], captures.Secret("a", Examples(torch.zeros(2, 3), torch.zeros(2))))
    torch.save({name: torch.ones_like(t) for name, t in state.items()}, home / KINDS[3])
    npz = io.BytesIO()
    np.savez(npz, **{name: np.ones(tuple(t.shape), np.float32) for name, t in state.items()})  # type: ignore[arg-type]
    (home / KINDS[4]).write_bytes(npz.getvalue())
    (home / KINDS[5]).write_text('[recipe]\nepochs = 2\noptimiser = { kind = "SGD", lr = 0.01 }\n')
    (home / KINDS[6]).write_text('[[limit]]\nmetric = "recovered"\nat_most = 0.0\nstatistic = "max"\n')
    (home / KINDS[7]).write_text('name = "e"\n[model]\nname = "lenet-zhu"\n[[attack]]\nname = "analytic"\n')
    for number, kind in enumerate(KINDS):
        path = home / "c" / kind if kind in KINDS[:2] else home / kind
        (home / "seeds" / kind).write_bytes(bytes([number]) + path.read_bytes())
    atheris.Setup([*sys.argv, "-max_len=8192", "-timeout=10", str(home / "seeds")], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
