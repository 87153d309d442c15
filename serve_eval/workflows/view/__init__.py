"""Serve the pages of a folder on the loopback, read-only, below a secret path.

Every user and every web page of this machine can reach a port of the loopback. A secret in the path
keeps other users out, and the check of the Host header keeps out a web page whose name was pointed
to this address (DNS rebinding).

Each part of a path is opened below the one before, and no link is followed, so that a folder of
another user cannot lead elsewhere, not even while it is read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import BinaryIO, Final
from urllib.parse import parse_qs, unquote, urlsplit

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.report.page.content import PageContent
from serve_eval.schema.media import EXTENSIONS
from serve_eval.series.read_runs import FinishedRun, read_runs
from serve_eval.workflows.view.document import make_document, make_index
from serve_eval.workflows.view.listing import COMPARE, Links, make_choice, make_side_by_side
from serve_eval.workflows.view.overview import read_folder

HOST = "127.0.0.1"
Render = Callable[[PageContent], str]
TIMEOUT_S = 30.0
"""Time for which a connection may be silent."""
POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline';"
    " style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""The Content-Security-Policy of every response. The sandbox gives each page an origin of its own,
so that the scripts of a page from another user cannot read other pages of this server. The pages
themselves have a narrower policy."""
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ViewServer(ThreadingHTTPServer):
    """The server of one folder. `render` turns the content of a page into HTML."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int, render: Render) -> None:
        self.folder, self.render = folder, render
        self.secret = secrets.token_urlsafe(16)
        self.lock = Lock()
        super().__init__((HOST, port), _Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.url = f"http://{HOST}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say in one line why an answer failed; a browser that is gone needs none."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            sys.stderr.write(f"A page could not be made: {type(error).__name__}: {error}\n")

    def make_page(self, name: str, query: str) -> PageContent:
        """Return a page that is made for a request.

        Raises FileNotFoundError if there is none of this name, and ServeEvalError if the folder
        cannot be read.
        """
        if name == "":
            found = read_folder(self.folder)
            return make_index(make_document(found, served=True), self.folder)
        if name != COMPARE:
            raise FileNotFoundError
        chosen = parse_qs(query)
        links = Links(folder=self.folder, served=True)
        runs, _ = read_runs(self.folder)
        by_name = {links.name(run.folder): run for run in runs}
        first = _find(by_name, chosen.get("a"))
        if "b" not in chosen:
            return make_choice(runs, first, links)
        return make_side_by_side(first, _find(by_name, chosen["b"]), links)


def _find(runs: dict[str, FinishedRun], names: list[str] | None) -> FinishedRun:
    if not names or names[0] not in runs:
        raise FileNotFoundError
    return runs[names[0]]


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = TIMEOUT_S
    server_version, sys_version = "serve-eval", ""

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "another Host than this server's")
            return
        address = urlsplit(self.path)
        secret, _, below = unquote(address.path).lstrip("/").partition("/")
        if not secrets.compare_digest(secret.encode(), self.server.secret.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "not found")
            return
        try:
            if below in ("", COMPARE):
                with self.server.lock:  # Pictures are drawn by one thread at a time.
                    page = self.server.render(self.server.make_page(below, address.query))
                self._send("text/html; charset=utf-8", page.encode())
            else:
                self._send_file(below.split("/"))
        except FileNotFoundError:
            self._refuse(HTTPStatus.NOT_FOUND, "not found")
        except ConnectionError:
            self.close_connection = True  # The browser is gone.
        except OSError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot be read: {error.strerror}")
        except ServeEvalError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    do_HEAD = do_GET  # noqa: N815

    def _send_file(self, parts: list[str]) -> None:
        file, kind = open_below(self.server.folder, parts)
        with file:
            self._begin(HTTPStatus.OK, kind, file.seek(0, 2))
            file.seek(0)
            if self.command == "GET":
                shutil.copyfileobj(file, self.wfile)

    def _send(self, kind: str, body: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._begin(status, kind, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send("text/plain; charset=utf-8", f"{why}\n".encode(errors="replace"), status)

    def _begin(self, status: HTTPStatus, kind: str, length: int) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *told: object) -> None:
        """Log nothing: the path has the secret."""


@contextmanager
def serve_folder(folder: Path, render: Render, port: int = 0) -> Iterator[ViewServer]:
    """Serve a folder until the block ends. Port 0 selects a free one.

    Raises PlanError for a port in use.
    """
    try:
        server = ViewServer(folder.resolve(), port, render)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "the largest port is 65535"
        raise PlanError(f"--port: {port} cannot be used: {why}") from error
    thread = Thread(target=server.serve_forever, name="view", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


KINDS: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".xml": "text/plain; charset=utf-8",
    **{f".{ending}": kind for kind, ending in EXTENSIONS.items()},
}
"""The types of the files that are served, by their suffixes."""


def open_below(folder: Path, parts: list[str]) -> tuple[BinaryIO, str]:
    """Return a file below a folder, opened for reading, and its content type.

    Raises FileNotFoundError for files of other types, names that begin with a dot, links and
    folders, which are not served.
    """
    if not parts or not all(map(_is_plain, parts)):
        raise FileNotFoundError
    kind = KINDS.get(Path(parts[-1]).suffix)
    if kind is None:
        raise FileNotFoundError
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = _open(part, os.O_DIRECTORY, here)
            os.close(here)
            here = below
        file = _open(parts[-1], os.O_NONBLOCK, here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError
    return os.fdopen(file, "rb"), kind


def _is_plain(part: str) -> bool:
    """Return True for the name of a file or folder that is not hidden."""
    return bool(part) and not part.startswith(".") and not set(part) & {"/", "\\", "\0"}


def _open(name: str, flags: int, parent: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=parent)
    except (OSError, ValueError) as error:
        raise FileNotFoundError from error
