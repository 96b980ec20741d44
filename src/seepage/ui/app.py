"""The pages, and who may see them: this machine, under an address that cannot be guessed."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seepage.audit.differences import Difference, differences
from seepage.audit.summary import read_rows
from seepage.audit.values import SpecError
from seepage.metrics.intervals import METHOD
from seepage.report import write_report
from seepage.report.pages import style
from seepage.ui.form import ABOUT, CHOICES, START, as_toml, checked
from seepage.ui.jobs import Jobs
from seepage.ui.runs import Run, find_run, find_runs, log_tail, new_folder, verdict_so_far

__all__ = ["make_app"]

HOSTS = ["127.0.0.1", "localhost"]
LONGEST = 100_000  # bytes of a form
# Pages of this server ask it alone, and no other site may frame them. A report brings a stricter policy of its own.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # else a link to elsewhere would give the token away
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def make_app(root: Path, token: str, jobs: Jobs) -> Starlette:
    """The application over a folder of runs.

    Args:
        root: the folder; nothing outside of it is shown.
        token: the first part of every address.
        jobs: the audits that are started here.
    """
    pages = _Pages(root, token, jobs)
    routes = [
        Route("/", pages.runs),
        Route("/ui.css", pages.asset),
        Route("/ui.js", pages.asset),
        Route("/new", pages.new, methods=["GET", "POST"]),
        Route("/start", pages.start, methods=["POST"]),
        Route("/compare", pages.compare),
        Route("/run/{name:path}/state", pages.state),
        Route("/run/{name:path}/report", pages.report),
        Route("/run/{name:path}/stop", pages.stop, methods=["POST"]),
        Route("/run/{name:path}", pages.run),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(_Door, token=token)]
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        SpecError: pages.refuse,
        HTTPException: pages.refuse,
    }
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class _Door:
    """Lets through what has the token in its address, and comes from this very site where it changes something."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(first.encode(), self.token):
            await PlainTextResponse("Not found: open the address that `seepage ui` printed.", 404)(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin")
        if scope["method"] not in ("GET", "HEAD") and origin and urlsplit(origin).netloc != headers.get("host"):
            await PlainTextResponse("Refused: this form was sent from another site.", 403)(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = {name for name, _ in message["headers"]}
                extra = [(n.lower().encode(), v.encode()) for n, v in HEADERS.items() if n.lower().encode() not in have]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await self.app({**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}, receive, sealed)


class _Pages:
    def __init__(self, root: Path, token: str, jobs: Jobs) -> None:
        self.root, self.base, self.jobs = root, f"/{token}", jobs
        loader = jinja2.DictLoader({name: _packaged(name) for name in PAGES})
        self.environment = jinja2.Environment(autoescape=True, loader=loader, undefined=jinja2.StrictUndefined)
        self.environment.filters["address"] = lambda name: quote(name)
        self.environment.globals.update(interval_method=METHOD, about=ABOUT)

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        text = self.environment.get_template(template).render(base=self.base, root=str(self.root), **values)
        return HTMLResponse(text, status)

    async def refuse(self, request: Request, error: Exception) -> Response:
        words = error.detail if isinstance(error, HTTPException) else str(error)
        return self.page("refused.html", getattr(error, "status_code", 400), words=words)

    async def asset(self, request: Request) -> Response:
        name = request.url.path.rsplit("/", 1)[-1]
        if name.endswith("css"):
            return Response(style("palette", "page") + _packaged(name), media_type="text/css")
        return Response(_packaged(name), media_type="text/javascript")

    async def runs(self, request: Request) -> Response:
        running = self.jobs.running()
        found = await run_in_threadpool(find_runs, self.root)
        return self.page("runs.html", runs=[(run, self.jobs.state(run, running)) for run in found])

    async def run(self, request: Request) -> Response:
        run, progress = await run_in_threadpool(self._progress, request)
        return self.page("run.html", run=run, **progress)

    async def state(self, request: Request) -> Response:
        _, progress = await run_in_threadpool(self._progress, request)
        return JSONResponse(progress)

    async def report(self, request: Request) -> Response:
        run = self._find(request)
        if run.index is None:
            raise HTTPException(404, "There is no report before the first trial.")
        text = await run_in_threadpool(_report, run)
        # The page's own policy is the stricter one, and knows the digests of its scripts.
        return HTMLResponse(text, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    async def stop(self, request: Request) -> Response:
        run = self._find(request)
        await run_in_threadpool(self.jobs.stop, run)
        return self._to(f"/run/{quote(run.name)}")

    async def new(self, request: Request) -> Response:
        if request.method == "GET":
            return self.page("new.html", form=START, choices=CHOICES, spec=None, error="")
        form, spec, wrong = await _fields(request), None, ""
        try:
            spec = as_toml(form)
            checked(spec)
        except SpecError as error:  # of what is written, a person may mend the rest by hand
            wrong = str(error)
        return self.page("new.html", 400 if wrong else 200, form=form, choices=CHOICES, spec=spec, error=wrong)

    async def start(self, request: Request) -> Response:
        form = await _fields(request)
        spec, name = form.get("spec", [""])[0].replace("\r\n", "\n"), form.get("folder", [""])[0].strip()
        try:
            checked(spec)
            folder = new_folder(self.root, name)
        except SpecError as error:
            values = {**START, "name": [name]}
            return self.page("new.html", 400, form=values, choices=CHOICES, spec=spec, error=str(error))
        await run_in_threadpool(self.jobs.start, folder, spec)
        return self._to(f"/run/{quote(name)}")

    async def compare(self, request: Request) -> Response:
        names = [request.query_params.get(side, "") for side in ("before", "after")]
        runs = await run_in_threadpool(find_runs, self.root)
        found = None
        if all(names):
            sides = [find_run(self.root, name).folder for name in names]
            found = await run_in_threadpool(_differences, *sides)
        return self.page("compare.html", runs=runs, names=names, found=found)

    def _find(self, request: Request) -> Run:
        try:
            return find_run(self.root, request.path_params["name"])
        except SpecError as error:
            raise HTTPException(404, str(error)) from error

    def _progress(self, request: Request) -> tuple[Run, dict[str, Any]]:
        running = self.jobs.running()
        run = self._find(request)
        return run, {
            "state": self.jobs.state(run, running),
            "done": run.done,
            "total": run.total,
            "log": log_tail(run),
            "verdict": verdict_so_far(run),
        }

    def _to(self, path: str) -> Response:
        return RedirectResponse(self.base + path, 303)


PAGES = ("base.html", "runs.html", "run.html", "new.html", "compare.html", "refused.html")


def _packaged(name: str) -> str:
    return (resources.files("seepage.ui") / "pages" / name).read_text(encoding="utf-8")


def _report(run: Run) -> str:
    """As it stands in the folder, or written again where trials were finished since."""
    page, rows = run.folder / "index.html", run.folder / "rows"
    if not page.exists() or (rows.is_dir() and rows.stat().st_mtime > page.stat().st_mtime):
        page = write_report(run.folder)
    return page.read_text(encoding="utf-8")


def _differences(before: Path, after: Path) -> list[Difference]:
    return differences(read_rows(before)[1], read_rows(after)[1])


async def _fields(request: Request) -> dict[str, list[str]]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST:
            raise HTTPException(413, f"Expected a form of at most {LONGEST} bytes.")
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=500)
