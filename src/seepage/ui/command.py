"""`seepage ui`."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["ui"]

say = Console(stderr=True, highlight=False)


def ui(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, each a folder of results.")] = Path("."),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="To listen on; 0 takes a free one.")] = 0,
) -> None:
    """Browse, watch, start and compare audits in a browser on this machine.

    Prints an address with a secret part. Only this machine can reach it, and only who knows that part.
    """
    try:
        import uvicorn

        from seepage.ui.app import make_app
        from seepage.ui.jobs import Jobs
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("seepage"):
            raise
        say.print(
            f"[bold red]error:[/bold red] seepage ui: expected the package {escape(error.name)}, got none; "
            "install it with `pip install 'seepage\\[ui]'`",
            soft_wrap=True,
        )
        raise typer.Exit(2) from None
    if not folder.is_dir():
        say.print(f"[bold red]error:[/bold red] {escape(str(folder))}: expected a folder, got none; make it first")
        raise typer.Exit(2)
    token = secrets.token_urlsafe(24)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            say.print(f"[bold red]error:[/bold red] --port: expected a free one, got {port}: {error}")
            raise typer.Exit(2) from None
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
        say.print(f"Open [bold]{address}[/bold]\nCtrl-C ends this page; audits go on.", soft_wrap=True)
        # Addresses hold the token, so they are not logged.
        app = make_app(folder, token, Jobs())
        config = uvicorn.Config(app, access_log=False, log_level="warning", lifespan="off", ws="none")
        uvicorn.Server(config).run(sockets=[listening])
