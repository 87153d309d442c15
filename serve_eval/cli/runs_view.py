"""Run `runs view`: show the runs of a folder: what fails, by how much, and since when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote

import typer

from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._streams import emit, say
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = (
    ("Look at all runs, with trends:", "serve-eval runs view"),
    (
        "Keep the map, the table and the trends in one file:",
        "serve-eval runs view outputs -o runs.html",
    ),
    ("Only print how each series ended, as JSON:", "serve-eval runs view outputs --json"),
)


@freeze
class ViewOptions:
    """Choose where the pages are served, or the file that is written."""

    title: ClassVar[str] = "Page"
    port: Annotated[int, Setting("Port (default: a free one).", metavar="N")] = 0
    output: Annotated[
        Path | None,
        Setting(
            "Write the index as one file instead of serving it.",
            flags=("--output", "-o"),
            metavar="FILE",
        ),
    ] = None


@command(examples=EXAMPLES)
def runs_view(
    asked: ViewOptions,
    faces: FaceOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that holds the run folders, at any depth.")
    ] = Path("outputs"),
) -> None:
    """Show the finished runs below a folder: what fails since when, trends, any two side by side.

    The pages are served to this machine only, read-only, until Ctrl-C; not with -o or --json.
    Nothing is judged again.

    Exit codes: 0 whatever the verdicts, also after Ctrl-C; 2 usage or no finished run.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.errors import PlanError
    from serve_eval.report.page.writer import save_page
    from serve_eval.workflows.view.document import make_document, make_index, write_series
    from serve_eval.workflows.view.overview import read_folder

    if not 0 <= asked.port <= 65535:
        raise PlanError("--port must be from 0 to 65535")
    file = asked.output
    if file is not None and not file.absolute().parent.is_dir():
        raise PlanError(f"-o: {file.absolute().parent} is not a folder")
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    found = read_folder(folder)
    if file is None:
        document = make_document(found, served=True)
    else:
        place = os.path.relpath(folder.resolve(), file.absolute().parent.resolve())
        document = make_document(found, at="" if place == "." else f"{quote(place)}/")

    def show() -> None:
        figures = write_series(found) if faces.as_json else b""
        if code := end(document, faces, about=folder, figures=figures):
            raise typer.Exit(code)

    if file is None and not faces.as_json:
        _serve(show, folder, asked.port)
        return
    show()
    if file is not None:
        save_page(make_index(document, folder), file, say)
        say(f"page: {file}")


def _serve(show: Callable[[], None], folder: Path, port: int) -> None:
    """Show the document, then serve until the user or a scheduler ends the process."""
    import asyncio

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.report.page.writer import render_page
    from serve_eval.workflows.view.server import serve_folder

    with serve_folder(folder, render_page, port=port) as server:
        show()
        emit(f"{server.url}\n")
        say("Press Ctrl-C to stop.")
        try:
            run_async(asyncio.Event().wait())
        except Interrupted:
            say("Stopped.")
