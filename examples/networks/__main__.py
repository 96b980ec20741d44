"""Record each network in a training loop, ask the doctor, attack, and print one line about it.

cd examples && python -m networks
"""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import seepage as sp
from networks import models
from seepage.audit.summary import read_rows
from seepage.cli import app
from seepage.recipe import SGD, Recipe


@dataclass(frozen=True)
class Case:
    """A client of one network.

    Args:
        title: for the table.
        factory: in `networks.models`.
        count: examples, all in one batch.
        steps: of local training.
    """

    title: str
    factory: str
    count: int
    steps: int = 1


CASES = (
    Case("ResNet, train-mode BatchNorm", "resnet", 2),
    Case("ViT", "vit", 1),
    Case("ViT, batch", "vit", 4),
    Case("text transformer", "text", 2),
    Case("text transformer, dropout 0.1", "text_dropout", 2),
    Case("text transformer, 3 local steps", "text", 2, steps=3),
    Case("LSTM on text", "text_lstm", 2),
    Case("LSTM on series", "series_lstm", 1),
    Case("tabular MLP", "tabular", 4),
)
RATE = 0.05


def record(case: Case, home: Path) -> None:
    """One client's local training, as anybody would write it, inside of `record`."""
    task: sp.Task = getattr(models, case.factory)()
    model = task.module.train()
    x, y = models.batch(task.spec, case.count, seed=1)
    recipe = Recipe(SGD(RATE), epochs=case.steps, sends="weights")
    with sp.record(model, home / "capture", client="ward", secret=home / "secret.safetensors", recipe=recipe) as rec:
        rec.seal(x, y)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        torch.manual_seed(0)  # of dropout
        for _ in range(case.steps):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()


def call(*words: str) -> tuple[int, str]:
    """A command of Seepage: its exit code and what it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        try:
            app(list(words), standalone_mode=False)
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, printed.getvalue()


def attack(case: Case, home: Path, effort: str = "quick") -> tuple[list[dict[str, str]], pd.DataFrame]:
    """What the doctor says about the recorded client, and the rows of `seepage attack`."""
    model = ("--model", f"networks.models:{case.factory}", "--secret", str(home / "secret.safetensors"))
    _, said = call("doctor", str(home / "capture"), *model, "--json")
    (examination,) = json.loads(said)
    call("attack", str(home / "capture"), *model, "--out", str(home / "out"), "--effort", effort, "--device", "cpu")
    return [*examination["checks"], *examination["reasons"]], read_rows(home / "out")[1]


def doubts(said: list[dict[str, str]]) -> str:
    """What of the doctor's words speaks against a leak, or against the capture."""
    notable = [one for one in said if one.get("leakage") == "less" or one.get("status") == "problem"]
    return "; ".join(f"{one['name']}: {one['got']}" for one in notable) or "nothing speaks against a leak"


def outcome(rows: pd.DataFrame) -> list[str]:
    """One sentence per attack: its best measure, or why it has none."""
    shares = {
        "exact_match": "of the values came back",
        "token_accuracy": "of the tokens came back in place",
        "token_bag": "of the occurring tokens named",
        "label_accuracy": "of the labels found",
    }
    said = []
    for name, part in rows.groupby("attack", sort=False):
        values = part.groupby("metric", sort=False)["value"].mean()
        if "psnr" in values:
            said.append(f"`{name}`: {values['psnr']:.1f} dB, {values['recovered']:.0%} of the images came back")
        elif "feature_error" in values:
            said.append(f"`{name}`: what enters the last layer, with a relative error of {values['feature_error']:.1g}")
        elif found := [metric for metric in shares if metric in values]:
            said.append(f"`{name}`: {values[found[0]]:.0%} {shares[found[0]]}")
        else:
            said.append(f"`{name}`: {part['outcome'].iloc[0].partition(', got')[0]}")
    return said


def main() -> None:
    """Print the table."""
    print("| network | what the doctor notes | attacks and what they brought back |\n|---|---|---|")  # noqa: T201
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            record(case, Path(folder))
            said, rows = attack(case, Path(folder))
        size = f"{case.count} example{'s' if case.count > 1 else ''}"
        print(f"| {case.title}, {size} | {doubts(said)} | {'; '.join(outcome(rows))} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
