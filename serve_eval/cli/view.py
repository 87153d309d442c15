"""Run `serve-eval view`: show the runs of a folder in a browser, with trends and comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._options import command
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.report.page.content import PageContent

MOST_TOLD = 20
"""Failures and alarms that are printed; the page has all of them."""
EXAMPLES = (
    ("Look at all runs, with trends:", "serve-eval view outputs"),
    ("Keep the table and the trends in one file:", "serve-eval view outputs --write runs.html"),
)


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Choose where the pages are served, or the file that is written."""

    title: ClassVar[str] = "Output"
    address: Annotated[
        str, Setting("Address of the loopback (default 127.0.0.1).", metavar="ADDRESS")
    ] = "127.0.0.1"
    port: Annotated[int, Setting("Port (default: a free one).", metavar="N")] = 0
    write: Annotated[
        Path | None, Setting("Write the index as one file instead of serving it.", metavar="FILE")
    ] = None


@command(examples=EXAMPLES)
def view(
    asked: ViewOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that holds the run folders, at any depth.")
    ],
) -> None:
    """Show the finished runs below a folder: a table, trends, and any two runs side by side.

    The pages are served to this machine only, read-only, until Ctrl-C. Nothing is judged again.

    Exit codes: 0 written, or stopped by Ctrl-C; 2 usage or no finished run.
    """
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.report.page.writer import save_page
    from serve_eval.report.text import clean
    from serve_eval.workflows.view.index import make_index

    if not 0 <= asked.port <= 65535:
        raise PlanError("--port must be from 0 to 65535")
    if asked.write is None:
        _serve(folder, asked.address, asked.port)
        return
    if not asked.write.absolute().parent.is_dir():
        raise PlanError(f"--write: {asked.write.absolute().parent} is not a folder")
    index = make_index(folder, served=False)
    save_page(index, asked.write, say)
    say(*_tell(index))
    emit(clean(f"{asked.write}\n"))


def _tell(index: PageContent) -> list[str]:
    """Return the first line of the page, and what failed or alarms."""
    told = ("ALARM", "INTERRUPTED", "KILLED", "ERROR")
    red = [row for row in index.rows if row.state == "fail" or row.label in told]
    lines = [f"{row.label} {row.text}" for row in red[:MOST_TOLD]]
    more = len(red) - MOST_TOLD
    return [index.headline, *lines, *([f"and {more} more"] if more > 0 else [])]


def _serve(folder: Path, address: str, port: int) -> None:
    """Serve until the user or a scheduler ends the process."""
    import asyncio

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import emit, say
    from serve_eval.cli._wrapping import find_width, wrap
    from serve_eval.report.text import clean
    from serve_eval.workflows.view.index import make_index
    from serve_eval.workflows.view.server import serve_folder

    index = make_index(folder, served=True)
    with serve_folder(folder, address, port) as server:
        width = find_width()
        finished = index.badge.replace(" run", " finished run", 1)
        for line in (f"{finished} of {folder}", *_tell(index)):
            emit(clean(f"{wrap(line, width, first=0, others=2)}\n"))
        emit(f"{server.url}\n")
        say("Press Ctrl-C to stop.")
        try:
            run_async(asyncio.Event().wait())
        except Interrupted:
            say("Stopped.")
