"""End a command: show its result on every face, say what is kept, and return the exit code."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from serve_eval.cli._common_options import FaceOptions, ListOptions, ScreenOptions
    from serve_eval.report.document import Document
    from serve_eval.report.document.listing import Listing

T = TypeVar("T")


def ask_in_folder(story: Coroutine[Any, Any, T], folder: Path, plan_file: str) -> T:
    """Run what a command asks, and return its result.

    If it is interrupted, or the endpoint is lost, the command says whether answers are kept, and
    how to go on. Raises typer.Exit with 130 after an interruption, and errors as they are.
    """
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._kept import end_early
    from serve_eval.errors import ServeEvalError

    try:
        return run_async(story)
    except (Interrupted, ServeEvalError) as ending:
        raise typer.Exit(end_early(ending, folder, plan_file)) from None


def end(
    document: Document,
    faces: FaceOptions,
    *,
    folder: Path | None = None,
    about: Path | None = None,
    figures: bytes = b"",
    page: Path | None = None,
    printed: bool = True,
) -> int:
    """Show a document on all its faces, the page last. Return the exit code.

    The order matters: the verdict is printed before anything is written that can fail. With a
    `folder` the files of CI and the page are written into it; `about` is the folder that the line
    names otherwise, and `page` the file of a page that belongs to no folder of its own, unless -o
    names another. `figures`
    are what JSON has as the result, in place of the document's file. Unless it is `printed`,
    standard output gets nothing.
    """
    from serve_eval.cli._ci_files import save_ci_files
    from serve_eval.report.document import make_ci_result
    from serve_eval.storage.file_names import PAGE_FILE

    if printed:
        print_result(document, faces, figures)
    code = save_ci_files(
        lambda: make_ci_result(document),
        document.exit_code,
        folder=folder,
        junit=faces.junit,
        notify_text=faces.notify_text,
        about=about,
    )
    if (file := getattr(faces, "output", None)) is not None:
        page = file
    elif page is None and folder is not None:
        page = folder / PAGE_FILE
    if page is not None:
        save_document_page(document, page)
    return code


def print_result(document: Document, faces: ScreenOptions, figures: bytes = b"") -> None:
    """Write a document to standard output, as JSON if that was asked for."""
    from serve_eval.cli._streams import draw, emit
    from serve_eval.report.document import print_document, write_document

    if not faces.as_json:
        first = 1 + (bool(document.notice and not document.header.rehearsal))
        draw(
            lambda console: print_document(
                document, console, verbose=faces.verbose, brief=faces.quiet
            ),
            conclusion=first,
        )
        return
    from serve_eval.storage.json_files import read_written_text

    if not figures and document.result is not None:
        figures = read_written_text(document.result).encode()
    emit(write_document(document, figures))


def print_list(listing: Listing, shown: ListOptions) -> None:
    """Write a list to standard output, as JSON if that was asked for."""
    from serve_eval.cli._streams import draw, emit
    from serve_eval.report.document.listing import print_listing, write_listing
    from serve_eval.report.text import escape_json

    if shown.as_json:
        emit(escape_json(write_listing(listing)))
        return
    draw(
        lambda console: print_listing(listing, console, verbose=shown.verbose, brief=shown.quiet),
        conclusion=len(listing.entries),
    )


def save_document_page(document: Document, file: Path) -> None:
    """Write the page of a document, and tell where it is."""
    from serve_eval.cli._page import save_story_page
    from serve_eval.report.document import make_page

    save_story_page(lambda: make_page(document), file)
