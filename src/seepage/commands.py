"""What the commands of `seepage.cli` do."""

from __future__ import annotations

import importlib.resources
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from seepage.attacks import ATTACKS
from seepage.audit.differences import differences
from seepage.audit.experiment import Experiment, read_experiment
from seepage.audit.frontier import as_frame, bounds, cheapest, points, read_seeds, seed_folder, seeded, told_first
from seepage.audit.gate import Verdict, exit_code, gate, read_policy
from seepage.audit.live import LiveView
from seepage.audit.mirror import Mirror
from seepage.audit.pool import LocalPool, Pool
from seepage.audit.ray_pool import RayPool
from seepage.audit.run import WRONG, run
from seepage.audit.summary import Index, means, pool_seeds, read_rows
from seepage.audit.trackers import tracker
from seepage.audit.tune import print_tried, read_tuning, tune, tuned_table, write_tuned
from seepage.audit.values import SpecError, plain
from seepage.audit.verdicts import as_junit, as_markdown, as_sarif
from seepage.console import DataFolder, Device, DeviceOption, bar, clear_errors, pick_device, say
from seepage.data import DATASETS, FetchFailed, fetch
from seepage.defences import DEFENCES
from seepage.engine.progress import watching
from seepage.home import version
from seepage.inspect.command import app as inspect_app
from seepage.inspect.tags import tags
from seepage.metrics import METRICS
from seepage.models import MODELS, options
from seepage.report import write_report
from seepage.report.frontier import print_frontier, write_frontier
from seepage.report.origin import recall, remember
from seepage.report.pdf import write_pdf
from seepage.report.terminal import (
    print_comparison,
    print_differences,
    print_findings,
    print_unfinished,
    print_verdicts,
)
from seepage.spelling import meant
from seepage.threat import THREATS
from seepage.train.command import app as train_app
from seepage.ui.command import ui

__all__ = ["app"]

app = typer.Typer(rich_markup_mode="markdown")
app.add_typer(train_app, name="train")
app.add_typer(inspect_app)
app.command()(ui)
app.command()(tags)

MISTAKES = (*WRONG, FetchFailed)

Out = Annotated[Path, typer.Option("--out", help="Folder for results; finished trials in it are not run again.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON list of rows on stdout, and nothing else there.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random; default: the specification's.")]


class PoolName(StrEnum):
    """Where trials run."""

    LOCAL = "local"
    RAY = "ray"


PoolOption = Annotated[PoolName, typer.Option("--pool", help="Perform trials in this process, or on a Ray cluster.")]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Of the Ray cluster; default: $RAY_ADDRESS, or one started on this machine."),
]
GpuShare = Annotated[
    float | None,
    typer.Option("--gpu-share", min=0.01, max=1.0, help="Of a GPU for each trial on Ray; default: as measured."),
]
MirrorUrl = Annotated[
    str | None,
    typer.Option("--mirror", help="Copy results here as they are finished, and go on from it: s3://…, file:///…"),
]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Also tell tensorboard or mlflow; may be given several times.")
]


@app.command()
def audit(
    spec: Annotated[Path | None, typer.Argument(help="Experiment in TOML; default: the small embedded one.")] = None,
    out: Out = Path("seepage-report"),
    device: DeviceOption = Device.AUTO,
    policy: Annotated[Path | None, typer.Option("--policy", help="Limits to hold the results against.")] = None,
    data: DataFolder = None,
    seed: Seed = None,
    pool: PoolOption = PoolName.LOCAL,
    address: Address = None,
    gpu_share: GpuShare = None,
    mirror: MirrorUrl = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Attack a federation and report what leaks.

    Without SPEC: 200 clients with four Fashion-MNIST images each, two defences and none. Exit code: 0
    within the limits of --policy, if given, 1 a limit broken, 2 could not be measured.
    """
    with clear_errors(*MISTAKES):
        limits = None if policy is None else read_policy(policy)
        with _default_spec(spec) as path:
            experiment = read_experiment(path, seed=seed)
            text = path.read_text(encoding="utf-8")
        where = _pool(pool, address, gpu_share)
        _perform(experiment, out, device, data, pool=where, mirror=mirror, track=track)
        given = [str(spec)] if spec else []
        chosen = _given(out=out, device=device, policy=policy, data=data, seed=seed)
        remember(out, ["seepage", "audit", *given, *chosen], text)
        index, rows, _ = read_rows(out)
        verdicts = [] if limits is None else gate(rows, limits)
        page = write_report(out, verdicts)
        if as_json:
            _print_json(_with_progress(rows, index))
            print_verdicts(verdicts, say)
        else:
            _print_results(rows, index, verdicts)
            say.print(
                f"\nPictures and details: [bold]{escape(str(page))}[/bold]   "
                f"rows for machines: {escape(str(out / 'rows'))}",
                soft_wrap=True,
            )
        nothing_measured = rows["metric"].eq("none").all()
        raise typer.Exit(2 if nothing_measured else exit_code(verdicts))


@app.command("frontier")
def frontier_command(
    spec: Annotated[Path, typer.Argument(help="Experiment in TOML; a list in place of a defence's knob is a sweep.")],
    out: Out = Path("seepage-frontier"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Repeat everything with so many seeds.")] = 3,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="What leakage is measured in; default: the share of the data that came back."),
    ] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="Limits that the chosen setting must keep.")] = None,
    accuracy_of: Annotated[
        str | None, typer.Option("--accuracy-of", help="Take accuracy from this case, leakage from the others.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Run this case alone, by name; may be given several times.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Attack at most that many clients.")] = None,
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Draw leakage against accuracy at every strength of defences, and name the cheapest within a policy.

    Exit code: 0, or with --policy: 1 no setting keeps it, 2 could not be measured.
    """
    with clear_errors(*MISTAKES):
        limits = None if policy is None else read_policy(policy)
        if metric is not None and metric not in METRICS:
            raise SpecError(
                f"--metric: expected one that `seepage list metrics` names, got {metric!r}{meant(metric, METRICS)}"
            )
        experiments = seeded(read_experiment(spec, seed=seed), seeds, cases=case, accuracy_of=accuracy_of)
        for experiment in experiments:
            _perform(experiment, seed_folder(out, experiment), device, data, limit)
        rows, first = read_seeds(out, experiments), experiments[0]
        metric = metric or told_first(rows)
        proven = bounds(first, _device(device), data, metric)
        found = points(rows, metric, limits, proven, accuracy_of)
        attacked = rows[rows["attack"] != "none"].drop_duplicates(["seed", "client"])
        page = write_frontier(out, first.name, first.about, found, metric, seeds, len(attacked))
        if as_json:
            _print_json(as_frame(found))
        else:
            print_frontier(found, metric)
            say.print(f"\nChart and table: [bold]{escape(str(page))}[/bold]", soft_wrap=True)
        if limits is not None and None in cheapest(found).values():
            unmeasured = any(v.outcome == "unmeasured" for p in found for v in p.verdicts)
            raise typer.Exit(2 if unmeasured else 1)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name such as geiping2020/smoke, or your own TOML; without it, all are listed.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print its specification and stop, to copy and change it.")
    ] = False,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Run this case alone, by name; may be given several times.")
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option("--attack", help="Run this attack alone, by label; may be given several times.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Attack at most that many clients.")] = None,
    together: Annotated[
        int | None,
        typer.Option("--together", min=1, help="Most clients in one trial: less memory, and more to go on from."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="Begin no trial after so many; run again to go on.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for results; default: seepage-results/NAME.")
    ] = None,
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    seed: Seed = None,
    pool: PoolOption = PoolName.LOCAL,
    address: Address = None,
    gpu_share: GpuShare = None,
    mirror: MirrorUrl = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Run an experiment of a paper and print ours beside theirs."""
    with clear_errors(*MISTAKES):
        found = _experiments()
        if name is None:
            for known, path in found.items():
                listed = read_experiment(path)
                on = ", ".join(sorted({case.data.name for case in listed.cases}))
                sys.stdout.write(f"{known}  on {on}\n    {listed.about}\n")
            return
        path = found.get(name, Path(name))
        if name not in found and path.suffix != ".toml":
            raise SpecError(f"expected a name that `seepage reproduce` lists, got {name!r}{meant(name, found)}")
        experiment = read_experiment(path, seed=seed)
        if show:
            sys.stdout.write(path.read_text(encoding="utf-8"))
            return
        experiment = experiment if together is None else experiment.dealt(together)
        folder = out or Path("seepage-results") / (name if name in found else path.stem)
        where = _pool(pool, address, gpu_share)
        _perform(experiment, folder, device, data, limit, case, minutes, where, mirror, track, attack)
        narrowed = [f"--{key}={one}" for key, chosen in (("case", case), ("attack", attack)) for one in chosen or ()]
        narrowed += _given(limit=limit, together=together, out=out, device=device, data=data, seed=seed)
        remember(folder, ["seepage", "reproduce", name, *narrowed], path.read_text(encoding="utf-8"))
        index, rows, _ = read_rows(folder)
        page = write_report(folder, [])
        if as_json:
            _print_json(_with_progress(rows, index))
            return
        _print_results(rows, index)
        say.print(f"\nPictures and details: [bold]{escape(str(page))}[/bold]", soft_wrap=True)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of results.")],
    policy: Annotated[Path | None, typer.Option("--policy", help="Limits to hold the results against.")] = None,
    pdf: Annotated[Path | None, typer.Option("--pdf", help="Print it to this file, too; needs Chromium.")] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write every mean with its interval to this file, too.")
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Print means over the clients of this folder, too: the same with another --seed."),
    ] = None,
) -> None:
    """Print the results of a folder and write their report again."""
    with clear_errors(*MISTAKES):
        if others:
            if policy is not None or pdf is not None:
                raise SpecError("--with: expected no --policy or --pdf, which are of one folder; leave them out")
            index, rows = pool_seeds([folder, *others])
            _print_results(rows, index, [])
            _write_means(rows, csv)
            return
        limits = None if policy is None else read_policy(policy)
        index, rows, _ = read_rows(folder)
        verdicts = [] if limits is None else gate(rows, limits)
        page = write_report(folder, verdicts)
        _print_results(rows, index, verdicts)
        say.print(f"Wrote [bold]{escape(str(page))}[/bold]", soft_wrap=True)
        _miss_policy(folder, policy)
        _write_means(rows, csv)
        if pdf is not None:
            write_pdf(page, pdf)
            say.print(f"Wrote [bold]{escape(str(pdf))}[/bold]", soft_wrap=True)


def _write_means(rows: pd.DataFrame, path: Path | None) -> None:
    if path is not None:
        means(rows).to_csv(path, index=False)
        say.print(f"Wrote [bold]{escape(str(path))}[/bold]", soft_wrap=True)


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
    with clear_errors(*MISTAKES):
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


@app.command("tune")
def tune_command(
    spec: Annotated[Path, typer.Argument(help="Experiment in TOML with a table `[tune]`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for what was tried; a second call goes on.")] = Path(
        "seepage-tuned"
    ),
    device: DeviceOption = Device.AUTO,
    data: DataFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list of what was tried on stdout.")] = False,
) -> None:
    """Choose the knobs of an attack with Optuna, by what the attacker sees, and write the experiment with them."""
    with clear_errors(*MISTAKES):
        experiment, tuning, knobs, table = read_tuning(spec)
        if tuning.on_truth:
            say.print(f"[yellow]{tuning.on} looks at the truth: rows will say so.[/yellow]")
        with bar() as progress:
            task = progress.add_task("Tries", total=tuning.tries)
            tried = tune(experiment, tuning, knobs, out, _device(device), data, lambda _: progress.advance(task))
        page = write_tuned(out / "tuned.toml", tuned_table(table, experiment, tuning, tried[0]))
        if as_json:
            sys.stdout.write(json.dumps([asdict(one) for one in tried]) + "\n")
            return
        print_tried(tried, tuning.on)
        say.print(f"\nWrote [bold]{escape(str(page))}[/bold]; run `seepage audit {escape(str(page))}`", soft_wrap=True)


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
    with clear_errors(*MISTAKES):
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
    name: Annotated[str | None, typer.Argument(help="One of them, to read all about it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on stdout.")] = False,
) -> None:
    """List what there is, with what each needs."""
    entries = _entries(kind)
    if name is not None:
        with clear_errors(SpecError):
            known = [entry["name"] for entry in entries]
            if name not in known:
                raise SpecError(f"expected one of {known}, got {name!r}{meant(name, known)}")
        entries = [{**entry, **_details(kind, name)} for entry in entries if entry["name"] == name]
        if not as_json:
            _print_details(entries[0])
            return
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
    with clear_errors(*MISTAKES), bar() as progress:
        task = progress.add_task(f"Fetching {name}", total=None)
        for path in fetch(name, data, lambda address, done, total: progress.update(task, completed=done, total=total)):
            say.print(f"Wrote {escape(str(path))}", soft_wrap=True)


# What the commands are made of.


def _pool(name: PoolName, address: str | None, gpu_share: float | None) -> Pool:
    if name is PoolName.RAY:
        return RayPool(address, gpus=gpu_share)
    if address is not None or gpu_share is not None:
        raise SpecError("--address and --gpu-share: expected `--pool ray` beside them, got `--pool local`")
    return LocalPool()


def _perform(
    experiment: Experiment,
    out: Path,
    device: Device,
    data: Path | None,
    limit: int | None = None,
    cases: list[str] | None = None,
    minutes: float | None = None,
    pool: Pool | None = None,
    mirror: str | None = None,
    track: list[str] | None = None,
    attacks: list[str] | None = None,
) -> None:
    if out.exists() and not out.is_dir():
        raise SpecError(f"--out: expected a folder, or none yet, got the file {out}")
    chosen = _device(device, pool)
    trackers = [tracker(name, out, experiment.name) for name in track or ()]
    copy = None if mirror is None else Mirror(mirror, out)
    if copy is not None and (brought := copy.fetch()):
        say.print(f"{brought} finished trials came from {escape(str(mirror))}", soft_wrap=True)
    say.print(f"[bold]{escape(experiment.name)}[/bold]  {escape(experiment.about)}")
    view = LiveView(say)
    try:
        with view, watching(view.watch):
            run(
                experiment,
                out,
                device=chosen,
                data=data,
                limit=limit,
                cases=cases,
                attacks=attacks,
                minutes=minutes,
                listener=view.listen,
                pool=pool,
                after=[view.landed, *trackers, *([copy.landed] if copy else [])],
            )
    except KeyboardInterrupt:
        say.print(
            f"Stopped. Finished trials are kept in {escape(str(out))}; run the same command again to go on.",
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    if copy is not None:
        copy.close()
    if view.late:
        say.print(f"{view.late} of the trials are left for another run of the same command.", soft_wrap=True)


def _print_results(rows: pd.DataFrame, index: Index, verdicts: Sequence[Verdict] = ()) -> None:
    print_findings(rows, index.threshold)
    print_unfinished(rows, index)
    print_comparison(rows, index)
    print_verdicts(verdicts)


def _miss_policy(folder: Path, policy: Path | None) -> None:
    """Say that limits which the audit was held against are no longer on the page."""
    origin = recall(folder)
    held = [] if origin is None else [word for word in origin.command if word.startswith("--policy=")]
    if held and policy is None:
        say.print(f"Without limits, which the audit was held against: add {escape(held[0])} for them.", soft_wrap=True)


def _given(**options: object) -> list[str]:
    """Options as they were typed, without those that were not."""
    return [f"--{name}={value}" for name, value in options.items() if value not in (None, Device.AUTO)]


def _device(device: Device, pool: Pool | None = None) -> torch.device:
    if isinstance(pool, RayPool) and device is not Device.CPU:
        return pick_device(device, has_gpu=pool.has_gpus())
    return pick_device(device)


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


def _with_progress(rows: pd.DataFrame, index: Index) -> pd.DataFrame:
    """With how many trials of its case are finished, of how many, beside each row."""
    cases = index.case_progress(rows)
    return rows.assign(
        case_finished=[cases[case].finished for case in rows["case"]],
        case_planned=[cases[case].planned for case in rows["case"]],
    )


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


def _details(kind: Kind, name: str) -> dict[str, Any]:
    """The knobs of an attack or a defence with what each has unless told otherwise, its presets, and its whole text."""
    if kind not in (Kind.ATTACKS, Kind.DEFENCES):
        return {}
    thing: Any = (ATTACKS if kind is Kind.ATTACKS else DEFENCES)[name]
    return {
        "about": inspect.getdoc(thing) or "",
        "knobs": {one.name: _default(one) for one in fields(thing)},
        "presets": {preset: plain(dict(values)) for preset, values in thing.presets.items()},
    }


def _default(knob: Field[Any]) -> Any:
    if knob.default_factory is not MISSING:
        return plain(knob.default_factory())
    return "(must be given)" if knob.default is MISSING else plain(knob.default)


def _print_details(entry: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for key, value in entry.items():
        if isinstance(value, dict):
            console.print(f"[bold]{key}[/bold]" + ("" if value else ": none"))
            for name, one in value.items():
                console.print(f"  {escape(name)} = {escape(_as_toml(one))}", soft_wrap=True)
        else:
            console.print(f"[bold]{key}[/bold]: {escape(str(value))}", soft_wrap=True)


def _as_toml(value: Any) -> str:
    """A knob as an experiment has it; what is absent there is left out."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_as_toml(one)}" for name, one in value.items()) + " }"
    return "(left out)" if value is None else json.dumps(value, ensure_ascii=False)


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
