"""The command line: its commands by name and one line each, so that help comes before PyTorch does."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from seepage.home import version

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "audit": "Attack a federation and report what leaks.",
    "doctor": "Say whether a capture is sound, and whether it should leak.",
    "attack": "Attack what was captured, and report what leaks.",
    "report": "Print the results of a folder and write their report again.",
    "gate": "Hold results against a policy: exit 0 within limits, 1 a limit broken, 2 could not be measured.",
    "compare": "Say what changed between two folders of results, and whether beyond chance.",
    "frontier": "Draw leakage against accuracy at every strength of defences, and name the cheapest within a policy.",
    "ui": "Browse, watch, start and compare audits in a browser on this machine.",
    "list": "List what there is, with what each needs.",
    "reproduce": "Run an experiment of a paper and print ours beside theirs.",
    "tune": "Choose the knobs of an attack with Optuna, by what the attacker sees, and write the experiment with them.",
    "fetch": "Download a public data set, once, where there is internet.",
    "train": "Train what attacks bring with them.",
    "tags": "Show which tags the metric `tag_jaccard` goes by, and how often they are right.",
}
"""What `seepage --help` says of each command of `seepage.commands`."""


class _Later(TyperCommand):
    """A command that is imported when it is called."""

    def make_context(self, info_name: str | None, *args: Any, **more: Any) -> click.Context:
        """The context of the command itself, to which all else then belongs."""
        group = typer.main.get_group(importlib.import_module("seepage.commands").app)
        return group.commands[str(self.name)].make_context(info_name, *args, **more)


class _Commands(TyperGroup):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.suggest_commands = False  # newer versions of click do it as well
        self.commands = {name: _Later(name, help=line) for name, line in COMMANDS.items()}


app = typer.Typer(
    cls=_Commands,
    name="seepage",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="Measures what federated learning gives away.\n\n"
    "Seepage takes the updates that clients send, attacks them as a curious server would, and says in pictures and "
    "numbers what came back. Run it on data that you own or simulate.\n\n"
    "First command to try, a small federation on real images, in about two minutes:\n\n"
    "    seepage audit",
)


@app.callback(invoke_without_command=True)
def start(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Options that stand before any command."""
    if show_version:
        sys.stdout.write(f"seepage {version()}\n")
        raise typer.Exit


def main() -> None:
    """Entry point of the `seepage` command."""
    app()
