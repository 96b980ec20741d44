"""The command line."""

from __future__ import annotations

import importlib.resources
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from seepage.attacks import ATTACKS
from seepage.audit.differences import differences
from seepage.audit.experiment import Experiment, Trial, read_experiment
from seepage.audit.gate import exit_code, gate, read_policy
from seepage.audit.run import WRONG, defence_name, run, version
from seepage.audit.summary import read_rows
from seepage.audit.values import SpecError
from seepage.audit.verdicts import as_junit, as_markdown, as_sarif
from seepage.data import DATASETS, FetchFailed, fetch
from seepage.defences import DEFENCES
from seepage.engine.progress import watching
from seepage.inspect.command import app as inspect_app
from seepage.metrics import METRICS
from seepage.models import MODELS, options
from seepage.report import write_report
from seepage.report.terminal import print_comparison, print_differences, print_findings, print_verdicts
from seepage.threat import THREATS
from seepage.train.command import app as train_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="seepage",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="""Measures what federated learning gives away.

    Seepage takes the updates that clients send, attacks them as a curious server would, and says in pictures and
    numbers what came back. Run it on data that you own or simulate.

    First command to try, a small federation on real images, in about two minutes:

        seepage audit
    """,
)
app.add_typer(train_app, name="train")
app.add_typer(inspect_app)
say = Console(stderr=True, highlight=False)

Out = Annotated[Path, typer.Option("--out", help="Folder for results; finished trials in it are not run again.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder of data sets; default: $SEEPAGE_DATA.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON list of rows on stdout, and nothing else there.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random; default: the specification's.")]


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute; auto takes a GPU if there is one.")]


@app.callback(invoke_without_command=True)
def start(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Options that stand before any command."""
    if show_version:
        sys.stdout.write(f"seepage {version()}\n")
        raise typer.Exit


@app.command()
def audit(
    spec: Annotated[Path | None, typer.Argument(help="Experiment in TOML; default: the small embedded one.")] = None,
    out: Out = Path("seepage-report"),
    device: DeviceOption = Device.AUTO,
    policy: Annotated[Path | None, typer.Option("--policy", help="Limits to hold the results against.")] = None,
    data: DataFolder = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Attack a federation and report what leaks.

    Without SPEC: 200 clients with four Fashion-MNIST images each, two defences and none. Exit code: 0
    within the limits of --policy, if given, 1 a limit broken, 2 could not be measured.
    """
    with _clear_errors():
        limits = None if policy is None else read_policy(policy)
        with _default_spec(spec) as path:
            experiment = read_experiment(path, seed=seed)
        _perform(experiment, out, device, data)
        index, rows, _ = read_rows(out)
        verdicts = [] if limits is None else gate(rows, limits)
        page = write_report(out, verdicts)
        if as_json:
            _print_json(rows)
            print_verdicts(verdicts, say)
        else:
            print_findings(rows, index.threshold)
            print_verdicts(verdicts)
            say.print(
                f"\nPictures and details: [bold]{escape(str(page))}[/bold]   "
                f"rows for machines: {escape(str(out / 'rows'))}",
                soft_wrap=True,
            )
        nothing_measured = rows["metric"].eq("none").all()
        raise typer.Exit(2 if nothing_measured else exit_code(verdicts))


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name such as geiping2020/smoke; without it, all are listed.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Run this case alone, by name; may be given several times.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Attack at most that many clients.")] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="Begin no trial after so many; run again to go on.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for results; default: seepage-results/NAME.")
    ] = None,
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Run an experiment of a paper and print ours beside theirs."""
    with _clear_errors():
        found = _experiments()
        if name is None:
            for known, path in found.items():
                sys.stdout.write(f"{known:32} {read_experiment(path).about}\n")
            return
        if name not in found:
            raise SpecError(f"expected one of {sorted(found)}, got {name!r}")
        experiment = read_experiment(found[name], seed=seed)
        folder = out or Path("seepage-results") / name
        _perform(experiment, folder, device, data, limit, case, minutes)
        index, rows, _ = read_rows(folder)
        page = write_report(folder, [])
        if as_json:
            _print_json(rows)
            return
        print_findings(rows, index.threshold)
        print_comparison(rows, experiment.expect)
        say.print(f"\nPictures and details: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of results.")]) -> None:
    """Write the report of a folder of results again."""
    with _clear_errors():
        say.print(f"Wrote [bold]{escape(str(write_report(folder, [])))}[/bold]", soft_wrap=True)


@app.command("gate")
def gate_command(
    folder: Annotated[Path, typer.Argument(help="Folder of results.")],
    policy: Annotated[Path, typer.Argument(help="Limits in TOML.")],
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the verdicts as JUnit XML here.")] = None,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", help="Write limits that are not kept as SARIF 2.1.0 here.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Add them as a table here, such as $GITHUB_STEP_SUMMARY.")
    ] = None,
) -> None:
    """Hold results against a policy: exit 0 within limits, 1 a limit broken, 2 could not be measured."""
    with _clear_errors():
        limits = read_policy(policy)
        index, rows, table = read_rows(folder)
        left = len(set(index.trials) - table.finished())
        if left:
            raise SpecError(
                f"{folder}: expected all {len(index.trials)} trials of {index.name!r} to be finished, "
                f"got {left} that are not; run the same `seepage audit` again to go on"
            )
        verdicts = gate(rows, limits)
        if junit is not None:
            junit.write_text(as_junit(verdicts, index.name), encoding="utf-8")
        if sarif is not None:
            text = policy.read_text(encoding="utf-8")
            sarif.write_text(as_sarif(verdicts, policy, text, version(), index.name), encoding="utf-8")
        if markdown is not None:
            with markdown.open("a", encoding="utf-8") as file:
                file.write(as_markdown(verdicts, index.name))
        print_verdicts(verdicts)
        raise typer.Exit(exit_code(verdicts))


@app.command("compare")
def compare_command(
    before: Annotated[Path, typer.Argument(help="Folder of results.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Look at this one; may be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
) -> None:
    """Say what changed between two folders of results, and whether beyond chance."""
    with _clear_errors():
        sides = [read_rows(folder)[1] for folder in (before, after)]
        known = sorted(set(sides[0]["metric"]) | set(sides[1]["metric"]))
        for name in metric or []:
            if name not in known:
                raise SpecError(f"--metric: expected one of {', '.join(known)}, got {name!r}")
        found = differences(sides[0], sides[1], metric)
        if as_json:
            frame = pd.DataFrame([{**asdict(d), "verdict": d.verdict} for d in found])
            sys.stdout.write(frame.to_json(orient="records", double_precision=15) + "\n")
            return
        print_differences(found)


class Kind(StrEnum):
    """What can be listed."""

    ATTACKS = "attacks"
    DEFENCES = "defences"
    MODELS = "models"
    DATA = "data"
    METRICS = "metrics"
    THREATS = "threats"


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
) -> None:
    """List what there is, with what each needs."""
    entries = _entries(kind)
    if as_json:
        sys.stdout.write(json.dumps(entries) + "\n")
        return
    grid = Grid(box=None, pad_edge=False, show_header=True, header_style="bold")
    for column in entries[0]:
        if column != "presets":
            grid.add_column(column, no_wrap=column == "name")
    for entry in entries:
        presets = entry.pop("presets", "")
        cells = [escape(str(value)) for value in entry.values()]
        if presets:  # under the last column: one of their own would leave eighty characters too few for the others
            cells[-1] += f"\n[dim]presets: {escape(presets)}[/dim]"
        grid.add_row(*cells)
    Console(highlight=False).print(grid)


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A data set, or `lpips` for the weights of the perceptual metric.")],
    data: DataFolder = None,
) -> None:
    """Download a public data set, once, where there is internet."""
    with _clear_errors(), _bar() as progress:
        task = progress.add_task(f"Fetching {name}", total=None)
        for path in fetch(name, data, lambda address, done, total: progress.update(task, completed=done, total=total)):
            say.print(f"Wrote {escape(str(path))}", soft_wrap=True)


# What the commands are made of.


def _perform(
    experiment: Experiment,
    out: Path,
    device: Device,
    data: Path | None,
    limit: int | None = None,
    cases: list[str] | None = None,
    minutes: float | None = None,
) -> None:
    left = 0
    chosen = _device(device)
    if out.exists() and not out.is_dir():
        raise SpecError(f"--out: expected a folder, or none yet, got the file {out}")
    say.print(f"[bold]{escape(experiment.name)}[/bold]  {escape(experiment.about)}")
    with _bar() as progress:
        whole = progress.add_task("Trials", total=None)
        inner = progress.add_task("", total=None, visible=False)

        def listen(number: int, count: int, trial: Trial, event: str) -> None:
            nonlocal left
            left += event == "late"
            if event.startswith("note: "):
                say.print(f"[dim]{escape(event)}[/dim]", soft_wrap=True)
                return
            if event == "start":
                progress.update(whole, completed=number, total=count)
                progress.reset(inner, description=escape(f"  {_name(trial)}"), visible=True, total=None)
                return
            progress.update(whole, completed=number + 1, total=count)
            if event.startswith(("error", "not applicable", "unsound")):
                say.print(f"[yellow]{escape(_name(trial))}: {escape(event)}[/yellow]", soft_wrap=True)

        def watch(step: int, steps: int, value: float) -> None:
            progress.update(inner, completed=step, total=steps)

        try:
            with watching(watch):
                run(
                    experiment,
                    out,
                    device=chosen,
                    data=data,
                    limit=limit,
                    cases=cases,
                    minutes=minutes,
                    listener=listen,
                )
        except KeyboardInterrupt:
            progress.stop()
            say.print(
                f"Stopped. Finished trials are kept in {escape(str(out))}; run the same command again to go on.",
                soft_wrap=True,
            )
            raise typer.Exit(130) from None
    if left:
        say.print(f"{left} of the trials are left for another run of the same command.", soft_wrap=True)


def _name(trial: Trial) -> str:
    what = "accuracy per round" if trial.attack is None else trial.label or trial.attack.name
    return f"{trial.case}: {what}, defence {defence_name(trial.defence)}"


def _device(device: Device) -> torch.device:
    if device is Device.CUDA and not torch.cuda.is_available():
        raise SpecError("--device: expected a CUDA device, got none that torch can see; use --device cpu")
    cuda = device is Device.CUDA or (device is Device.AUTO and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=say,
        transient=True,
    )


@contextmanager
def _default_spec(spec: Path | None) -> Iterator[Path]:
    if spec is not None:
        yield spec
        return
    with importlib.resources.as_file(importlib.resources.files("seepage.audit") / "default.toml") as path:
        yield path


def _experiments() -> dict[str, Path]:
    """The experiments beside the source tree, or those that were installed with the package."""
    here = Path(__file__).parent
    for folder in (here / "experiments", here.parent.parent / "experiments"):
        if folder.is_dir():
            return {p.relative_to(folder).with_suffix("").as_posix(): p for p in sorted(folder.rglob("*.toml"))}
    return {}


def _print_json(rows: pd.DataFrame) -> None:
    sys.stdout.write(rows.to_json(orient="records", double_precision=15) + "\n")


def _entries(kind: Kind) -> list[dict[str, Any]]:
    if kind is Kind.ATTACKS:
        return [
            {
                "name": n,
                "needs": ", ".join(sorted(a.needs)) or "nothing",
                "about": _first_line(a),
                "presets": ", ".join(a.presets),
            }
            for n, a in ATTACKS.items()
        ]
    if kind is Kind.DEFENCES:
        return [{"name": n, "about": _first_line(d), "presets": ", ".join(d.presets)} for n, d in DEFENCES.items()]
    if kind is Kind.MODELS:
        return [{"name": n, "options": ", ".join(f"{k}={v}" for k, v in options(n).items())} for n in MODELS]
    if kind is Kind.DATA:
        return [{"name": n, "about": _first_line(loader)} for n, loader in DATASETS.items()]
    if kind is Kind.METRICS:
        return [{"name": n, "unit": m.unit, "about": m.about} for n, m in METRICS.items()]
    return [{"name": n, "knows": ", ".join(sorted(t.facts)) or "nothing", "about": t.about} for n, t in THREATS.items()]


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What a person did wrong is said in a sentence; a traceback is for what Seepage did wrong."""
    try:
        yield
    except (*WRONG, FetchFailed) as error:
        say.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say.print("Stopped.")
        raise typer.Exit(130) from None


def main() -> None:
    """Entry point of the `seepage` command."""
    app()
