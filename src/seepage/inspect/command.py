"""`seepage doctor` and `seepage attack`."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from torch import nn

from seepage.audit.gate import exit_code, gate, read_policy
from seepage.audit.own_code import called, imported
from seepage.audit.summary import read_rows
from seepage.audit.values import SpecError, build, read_table
from seepage.capture import Capture, CaptureError, Problem, Secret
from seepage.console import Device, DeviceOption, bar, clear_errors, pick_device, say
from seepage.engine.progress import watching
from seepage.frameworks.arrange import find_captures, find_secrets
from seepage.frameworks.record import RECIPE
from seepage.inspect.attack import Target, attack_captures
from seepage.inspect.doctor import Check, Examination, doctor
from seepage.inspect.guessed_recipe import guess_recipe
from seepage.inspect.suite import Effort, choose
from seepage.recipe import Recipe
from seepage.report import write_report
from seepage.report.terminal import print_findings, print_verdicts
from seepage.spec import DataSpec
from seepage.streams import Stream
from seepage.task import ModuleError, Task
from seepage.threat import THREATS, Fact, ThreatModel
from seepage.untrusted import Refused, read_text

__all__ = ["app"]

EPOCHS = 10_000
app = typer.Typer()
KEPT = "Stopped. Finished attacks are kept; run the same command again to go on."
WRONG = (SpecError, CaptureError, ModuleError)

CapturePath = Annotated[Path, typer.Argument(help="Folder of a capture, or one that holds such folders.")]
Model = Annotated[
    str,
    typer.Option(
        "--model", help="Yours: package.module:factory or …:factory(8), which returns a seepage.Task or an nn.Module."
    ),
]
RecipePath = Annotated[
    Path | None,
    typer.Option("--recipe", help="TOML with a [recipe] table: how clients train; default: the capture's own, if any."),
]
SecretPath = Annotated[
    Path | None, typer.Option("--secret", help="Sealed examples, a file or a folder of them, for scoring alone.")
]
Shape = Annotated[
    str | None, typer.Option("--shape", help="Of one example, such as 3,32,32; for a factory that returns a module.")
]
Clients = Annotated[
    list[str] | None, typer.Option("--client", help="Look at this client alone; may be given several times.")
]
Round = Annotated[
    int | None, typer.Option("--round", help="Look at this round as the last; default: the last there is.")
]
Examples = Annotated[
    int | None, typer.Option("--examples", min=1, help="How many examples each client has, if the capture is silent.")
]
Words = Annotated[
    Path | None, typer.Option("--words", help="For text: a file with the token of each id, one per line, to read them.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Look at that many clients at most.")]


@app.command("doctor")
def doctor_command(
    capture: CapturePath,
    model: Model,
    recipe: RecipePath = None,
    secret: SecretPath = None,
    shape: Shape = None,
    client: Clients = None,
    number: Round = None,
    examples: Examples = None,
    limit: Limit = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list on stdout, and nothing else.")] = False,
) -> None:
    """Say whether a capture is sound, and whether it should leak.

    Every check has what was expected, what came and what to do. Exit code: 0 sound, 1 something would mislead an
    attack, 2 could not be read.
    """
    with clear_errors(*WRONG, stopped=KEPT):
        captures, secrets, task, told, _ = _gathered(
            capture, model, recipe, secret, shape, client, number, examples, limit
        )
        examinations = doctor(captures, task, told, secrets)
        if as_json:
            sys.stdout.write(json.dumps([_plain(examination) for examination in examinations]) + "\n")
        else:
            _print(examinations)
        raise typer.Exit(0 if all(examination.sound for examination in examinations) else 1)


@app.command("attack")
def attack_command(
    capture: CapturePath,
    model: Model,
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat", help="Who attacks; default: honest-server if told the recipe, else one who guesses it."
        ),
    ] = None,
    recipe: RecipePath = None,
    secret: SecretPath = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for results and the report.")] = Path("seepage-report"),
    effort: Annotated[Effort, typer.Option("--effort", help="How long to search.")] = Effort.STANDARD,
    policy: Annotated[Path | None, typer.Option("--policy", help="Limits to hold the results against.")] = None,
    words: Words = None,
    shape: Shape = None,
    client: Clients = None,
    number: Round = None,
    examples: Examples = None,
    limit: Limit = 8,
    device: DeviceOption = Device.AUTO,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
) -> None:
    """Attack what was captured, and report what leaks.

    Checks the capture, infers how its updates were made, runs the attacks that fit and writes the report. Without
    --secret images are shown unscored. Exit code: 0 within the limits of --policy, if given, 1 a limit broken, 2 could
    not be measured.
    """
    with clear_errors(*WRONG, stopped=KEPT):
        limits = None if policy is None else read_policy(policy)
        captures, secrets, task, told, ruler = _gathered(
            capture, model, recipe, secret, shape, client, number, examples, limit
        )
        examinations = doctor(captures, task, told, secrets)
        if not all(examination.nature for examination in examinations):
            _print(examinations)
            fit = [f"--client {examination.client}" for examination in examinations if examination.nature]
            if fit:
                say.print(f"The others can be attacked alone: {escape(' '.join(fit))}", soft_wrap=True)
            raise typer.Exit(2)
        _print_problems(examinations)
        natures = [examination.nature for examination in examinations if examination.nature is not None]
        exchanges = [examination.exchange for examination in examinations]
        used = told or guess_recipe(exchanges, natures, task, Stream.from_seed(seed) / "recipe")
        who = _threat(threat, told, used)
        known = told if told is not None and who.knows_training else None
        suite, left_out = choose(task, known, natures, effort, cut=Fact.RECIPE in who.facts)
        if not suite:
            raise SpecError(f"no attack fits: {left_out[0][1]}")
        name = capture.resolve().name
        tokens = None if words is None else _words(words, task.spec)
        target = Target(
            name, captures, secrets, task, model, used, told is not None, who, examinations, left_out, tokens, ruler
        )
        _run(target, suite, out, pick_device(device), seed)
        index, rows, table = read_rows(out)
        verdicts = [] if limits is None else gate(rows, limits)
        page = write_report(out, verdicts)
        print_findings(rows, index.threshold)
        _print_believed([table.note(trial) for trial in index.trials])
        print_verdicts(verdicts)
        say.print(f"\nPictures and details: [bold]{escape(str(page))}[/bold]", soft_wrap=True)
        raise typer.Exit(2 if rows["metric"].eq("none").all() else exit_code(verdicts))


# What the commands are made of.


def _gathered(
    path: Path,
    model: str,
    recipe: Path | None,
    secret: Path | None,
    shape: str | None,
    clients: list[str] | None,
    number: int | None,
    examples: int | None,
    limit: int,
) -> tuple[list[Capture], dict[str, Secret], Task, Recipe | None, DataSpec | None]:
    captures = find_captures(path)
    if clients:
        known = [capture.client for capture in captures]
        for name in clients:
            if name not in known:
                raise SpecError(f"--client: expected one of {known}, got {name!r}")
        captures = [capture for capture in captures if capture.client in clients]
    if number is not None:
        captures = [replace(c, exchanges=tuple(e for e in c.exchanges if e.round <= number)) for c in captures]
        captures = [c for c in captures if c.exchanges and c.exchanges[-1].round == number]
    captures = [capture for capture in captures if capture.exchanges][:limit]
    if not captures:
        what = "expected a client with an answer" + ("" if number is None else f" in round {number}")
        raise CaptureError([Problem(str(path), "exchanges", f"{what}, got none", "check --round, or capture again")])
    secrets = {} if secret is None else find_secrets(secret)
    if secret is not None and not any(capture.client in secrets for capture in captures):
        asked = [capture.client for capture in captures]
        raise SpecError(f"--secret: expected the examples of one of {asked}, got those of {sorted(secrets)}")
    captures = [_with_count(capture, secrets.get(capture.client), examples) for capture in captures]
    task, told = _task(model, shape, secrets)
    for client, held in secrets.items():
        _check_sealed(client, held, task.spec)
    return captures, secrets, task, _recipe(path, recipe), None if told else _ruler(task.spec, secrets)


def _ruler(spec: DataSpec, secrets: dict[str, Secret]) -> DataSpec | None:
    """By what range images are compared where nobody said what raw values are: that of the sealed ones.

    The attacker goes on with `spec`: this is the truth's.
    """
    if not spec.is_image:
        return None
    say.print(
        f"note: --model returns a module alone, so what pixels are worth is not known: attacks look between "
        f"{spec.low:g} and {spec.high:g}{', and PSNR goes by the range of the sealed examples' if secrets else ''}. "
        "Have it return seepage.Task(module, seepage.DataSpec(shape, classes=…, mean=…, std=…)) to say it.",
        soft_wrap=True,
    )
    ends = [float(end) for held in secrets.values() for end in (held.examples.x.min(), held.examples.x.max())]
    return replace(spec, low=min(ends), high=max(ends)) if ends and min(ends) < max(ends) else None


def _check_sealed(client: str, held: Secret, spec: DataSpec) -> None:
    """Sealed examples are held against the module before an attack trains on them to judge its answer."""
    x, labels = held.examples.x, held.examples.y
    start = f"--secret: client {client!r}:"
    if not spec.is_text and not x.is_floating_point():
        raise SpecError(
            f"{start} expected examples as the module eats them, in floating point, got {x.dtype}; "
            "seal what goes into the module, after pixels were divided and normalised"
        )
    if tuple(x.shape[1:]) != spec.shape:
        raise SpecError(
            f"{start} expected examples of shape {spec.shape}, got {tuple(x.shape[1:])}; "
            "seal what goes into the module, with channels before height and width, or correct the shape"
        )
    if spec.classes is None:
        return
    if labels.dtype != torch.long or labels.shape != (len(x),):
        raise SpecError(
            f"{start} expected labels as one whole number per example, torch.int64 of shape ({len(x)},), "
            f"got {labels.dtype} of shape {tuple(labels.shape)}; seal `y.long()`, after `y.argmax(1)` where there is a "
            "score for each class"
        )
    if len(labels) and int(labels.max()) >= spec.classes:
        raise SpecError(
            f"--model: expected at least {int(labels.max()) + 1} outputs, as the sealed examples of client {client!r} "
            f"have labels up to {int(labels.max())}, got {spec.classes}; name the network that the client trained, or "
            "seal its labels counted from 0"
        )


def _with_count(capture: Capture, secret: Secret | None, examples: int | None) -> Capture:
    """Where the capture is silent, what the command line or the auditor knows."""
    count = examples or (None if secret is None else len(secret.examples))
    exchanges = [
        e if e.examples is not None and examples is None else replace(e, examples=count) for e in capture.exchanges
    ]
    return replace(capture, exchanges=tuple(exchanges))


@dataclass(frozen=True)
class _Arguments:
    """With which a factory is called."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def _called(name: str) -> tuple[str, _Arguments]:
    """`package.module:factory(8, norm="batch")` as its name and arguments, which are literals: nothing is executed."""
    plain, bracket, _ = name.partition("(")
    if not bracket:
        return name, _Arguments()
    try:
        call = ast.parse(f"factory({name.partition('(')[2]}", mode="eval").body
        if not isinstance(call, ast.Call) or any(word.arg is None for word in call.keywords):
            raise ValueError("that is no call")
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
        return plain, _Arguments(tuple(ast.literal_eval(value) for value in call.args), given)
    except (SyntaxError, ValueError) as error:
        raise SpecError(
            f"--model: expected numbers, strings, lists and the like between brackets, got {name!r}: {error}"
        ) from error


def _task(name: str, shape: str | None, secrets: dict[str, Secret]) -> tuple[Task, bool]:
    """The user's task, or one around the user's module; and whether it was the user who said what its data are."""
    plain, arguments = _called(name)
    fix = f"write the arguments behind it, as in --model '{plain}(8, norm=\"batch\")', or name a function without any"
    try:
        made = called(imported(plain, "--model", "factory"), plain, "--model", fix, *arguments.args, **arguments.kwargs)
    except ModuleError as error:
        raise ModuleError(f"--model: {plain}: {error}") from error
    if isinstance(made, Task):
        return made, True
    if not isinstance(made, nn.Module):
        raise SpecError(f"--model: expected {name} to return a seepage.Task or an nn.Module, got {type(made).__name__}")
    held = next(iter(secrets.values()), None)
    if shape is None and held is None:
        raise SpecError(
            f"--shape: {name} returns a module alone; say what one example is like, as in --shape 3,32,32, "
            "or have it return a seepage.Task"
        )
    try:
        size = tuple(map(int, shape.split(","))) if shape is not None else tuple(held.examples.x.shape[1:])  # type: ignore[union-attr]
    except ValueError as error:
        raise SpecError(f"--shape: expected whole numbers such as 3,32,32, got {shape!r}") from error
    heads = [layer for layer in made.modules() if isinstance(layer, nn.Linear)]
    if not heads or heads[-1].out_features < 2:
        raise SpecError(f"--model: how many classes {name} has does not show; have it return a seepage.Task")
    classes, first = heads[-1].out_features, next(m for m in made.modules() if list(m.parameters(recurse=False)))
    if isinstance(first, nn.Embedding) and len(size) == 1:
        return Task(made, DataSpec(size, classes=classes, vocabulary=first.num_embeddings)), False
    # What pixels are worth is not known: an image may lie anywhere a normalised one usually does.
    return Task(made, DataSpec(size, classes=classes, low=-3.0, high=3.0)), False


def _words(path: Path, spec: DataSpec) -> list[str]:
    if not spec.is_text:
        raise SpecError(f"--words: expected a module that reads text, got one that reads numbers of shape {spec.shape}")
    try:
        words = read_text(path).splitlines()
    except Refused as refused:
        raise SpecError(f"--words: {path}: {refused}") from refused
    if len(words) != spec.vocabulary:
        raise SpecError(f"--words: {path}: expected {spec.vocabulary} lines, one per token id, got {len(words)}")
    return words


def _recipe(capture: Path, given: Path | None) -> Recipe | None:
    path = given or next(
        iter([capture / RECIPE] if (capture / RECIPE).exists() else sorted(capture.rglob(RECIPE))), None
    )
    if path is None:
        return None
    table = read_table(path, "a TOML file with a [recipe] table")
    if "recipe" not in table:
        raise SpecError(f"{path}: expected a [recipe] table, got only {sorted(table)}")
    recipe = build(Recipe, table["recipe"], f"{path}: recipe")
    if recipe.epochs > EPOCHS:  # every attack trains as the recipe says, and a capture may bring its own
        raise SpecError(f"{path}: recipe.epochs: expected at most {EPOCHS}, got {recipe.epochs}; correct the recipe")
    return recipe


def _threat(name: str | None, told: Recipe | None, used: Recipe | None) -> ThreatModel:
    if name is None and told is None and used is not None:
        rate = (
            ""
            if used.sends == "gradient"
            else f" of {type(used.optimiser).__name__} with learning rate {used.optimiser.lr:.3g}"
        )
        about = f"reads the messages on their way and takes every update for one step{rate}, which it reads off them"
        return ThreatModel("guessing-eavesdropper", frozenset({Fact.COUNT, Fact.RECIPE}), about)
    if name is None:
        name = "eavesdropper" if told is None else "honest-server"
    if name not in THREATS:
        raise SpecError(f"--threat: expected one of {sorted(THREATS)}, got {name!r}")
    if THREATS[name].knows_training and told is None:
        raise SpecError(
            f"--threat: {name} is told how clients train, and there is no recipe; "
            "give --recipe, or --threat eavesdropper"
        )
    return THREATS[name]


def _run(target: Target, suite: list[Any], out: Path, device: torch.device, seed: int) -> None:
    with bar() as progress:
        whole = progress.add_task("Attacks", total=len(suite))
        inner = progress.add_task("", total=None, visible=False)

        def listen(number: int, count: int, name: str, event: str) -> None:
            if event == "start":
                progress.reset(inner, description=f"  {name}", visible=True, total=None)
                return
            progress.update(whole, completed=number + 1, total=count)
            if event.startswith(("error", "not applicable")):
                say.print(f"[yellow]{escape(name)}: {escape(event)}[/yellow]", soft_wrap=True)

        with watching(lambda step, steps, value: progress.update(inner, completed=step, total=steps)):
            attack_captures(target, suite, out, device=device, seed=seed, listener=listen)


_MARKS = {"fine": "[green]fine[/green]", "note": "[yellow]note[/yellow]", "problem": "[red]PROBLEM[/red]"}
_LEAKS = {"more": "[red]more[/red]", "less": "[green]less[/green]", "open": "open"}


def _print(examinations: list[Examination]) -> None:
    console = Console(highlight=False)
    for examination in examinations:
        console.print(f"\n[bold]client {escape(examination.client)}, round {examination.exchange.round}[/bold]")
        for check in examination.checks:
            console.print(_line(check), soft_wrap=True)
        if examination.reasons:
            console.print("[dim]leakage to expect[/dim]")
        for reason in examination.reasons:
            said = f"{escape(reason.name)}: {escape(reason.got)}; {escape(reason.why)}"
            console.print(f"{_LEAKS[reason.leakage]}  {said}", soft_wrap=True)
        console.print(f"[bold]In short:[/bold] {escape(_in_short(examination))}", soft_wrap=True)


def _print_believed(notes: list[dict[str, Any]], most: int = 3) -> None:
    """What attacks believe in that fits into lines: label counts, and texts by the last attack that named any."""
    console = Console(highlight=False)
    labels: dict[str, dict[str, int]] = next((note["labels"] for note in notes if note.get("labels")), {})
    texts: dict[str, list[str]] = next((note["texts"] for note in reversed(notes) if note.get("texts")), {})
    clients = list(dict.fromkeys([*labels, *texts]))
    for client in clients[:most]:
        console.print(f"[bold]What client {escape(client)} is believed to have trained on:[/bold]", soft_wrap=True)
        if client in labels:
            counts = ", ".join(f"{count} × {label}" for label, count in labels[client].items())
            console.print(f"  labels: {escape(counts)}", soft_wrap=True)
        held = texts.get(client, [])
        for text in held[:most]:
            console.print(f"  text: {escape(text)}", soft_wrap=True)
        if len(held) > most:
            console.print(f"  and {len(held) - most} more")
    if len(clients) > most:
        console.print(f"and {len(clients) - most} more clients, in the report")


def _print_problems(examinations: list[Examination]) -> None:
    for examination in examinations:
        for check in examination.checks:
            if check.status == "problem":
                say.print(f"client {escape(examination.client)}: {_line(check)}", soft_wrap=True)


def _line(check: Check) -> str:
    remedy = f"\n         {escape(check.remedy)}" if check.remedy else ""
    if check.status == "fine":  # the answer first, as nothing is to be done
        said = f"{escape(check.got)} (expected {escape(check.expected)})"
    else:
        said = f"expected {escape(check.expected)}, got {escape(check.got)}" if check.expected else escape(check.got)
    return f"{_MARKS[check.status]}  {escape(check.name)}: {said}{remedy}"


def _in_short(examination: Examination) -> str:
    """The sentence for somebody who reads nothing else."""
    problems = [check.name for check in examination.checks if check.status == "problem"]
    if examination.nature is None:
        return "the capture cannot be attacked as it is; see the remedy of each problem."
    if problems:
        what = f"{len(problems)} problem{'s' if len(problems) > 1 else ''} ({', '.join(problems)})"
        return f"{what} would mislead every attack: correct the capture or the recipe first."
    sides = [
        f"{len(names)} {word} it ({', '.join(names)})" if names else f"none {word} it"
        for side, word in (("more", "for"), ("less", "against"))
        for names in [[reason.name for reason in examination.reasons if reason.leakage == side]]
    ]
    signs = f"Of {len(examination.reasons)} signs of a leak, {sides[0]} and {sides[1]}"
    return f"a sound capture. {signs}. `seepage attack` measures it."


def _plain(examination: Examination) -> dict[str, Any]:
    return {
        "client": examination.client,
        "round": examination.exchange.round,
        "sound": examination.sound,
        "nature": None if examination.nature is None else asdict(examination.nature),
        "checks": [asdict(check) for check in examination.checks],
        "reasons": [asdict(reason) for reason in examination.reasons],
    }
