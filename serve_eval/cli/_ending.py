"""End a command: show its result on every face, and return the exit code.

Before a page is begun, the result is printed and every other file is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.schema import FailureKind, Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.cli._common_options import FaceOptions, ListOptions, ScreenOptions
    from serve_eval.report.document import Document
    from serve_eval.report.document.listing import Listing
    from serve_eval.report.page.content import PageContent
    from serve_eval.schema import Comparison, Report
    from serve_eval.workflows.diagnose import Leads


T = TypeVar("T")


def ask_in_folder(story: Coroutine[Any, Any, T], folder: Path, plan_file: str) -> T:
    """Run what a command asks, and return its result.

    If it is interrupted, or the endpoint is lost, the command says whether answers are kept, and
    how to go on. Raises typer.Exit with 130 after an interruption, and errors as they are.
    """
    from serve_eval.cli._async import Interrupted, end_early, run_async

    try:
        return run_async(story)
    except (Interrupted, ServeEvalError) as ending:
        raise typer.Exit(end_early(ending, folder, plan_file)) from None


def ask_and_end(
    command: str,
    ask: Callable[..., Coroutine[Any, Any, T]],
    make_document: Callable[[T, Path], Document],
    folder: Path,
    plan_file: str,
    faces: FaceOptions,
) -> int:
    """Ask, with progress on stderr and the result on stdout. Return the exit code."""
    from serve_eval.cli._progress import show_progress
    from serve_eval.cli._streams import say

    say(f"serve-eval {command}: folder {folder}")
    found = ask_in_folder(ask(progress=show_progress(), notify=say), folder, plan_file)
    return end(make_document(found, folder), faces, folder=folder)


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
    from serve_eval.report.document import make_page

    save_story_page(lambda: make_page(document), file)


class RedResult:
    """Explains a result if it is red. The answers in its folder are read once, if at all."""

    def __init__(self, out_dir: Path, exit_code: int, include_path: Sequence[str] = ()) -> None:
        from serve_eval.verdicts.exit_code import FAIL

        self._folder, self._include_path = out_dir, include_path
        self._red = exit_code == FAIL

    @cached_property
    def leads(self) -> Leads:
        """The causes and slices to print; none if the result is not red or cannot be read."""
        from serve_eval.workflows.diagnose import Leads

        if not self._red:
            return Leads()

        from serve_eval.workflows.diagnose.judged import read_folder
        from serve_eval.workflows.diagnose.story import find_leads

        try:
            return find_leads(read_folder(self._folder, self._include_path))
        except RunFolderError:
            return Leads()


def fail_undecided(
    result: Report | Comparison, code: int, *, strict: bool, most: float | None = None
) -> int:
    """Return the exit code: under `strict`, 1 for a PASS that decides nothing, after its reason."""
    from serve_eval.verdicts.exit_code import FAIL, PASS

    if not strict or code != PASS:
        return code

    from serve_eval.cli._streams import say
    from serve_eval.report.task_line import describe_undecided

    if not (reason := describe_undecided(result, most)):
        return code
    say(f"--strict: {reason}")
    return FAIL


class HalfWay:
    """Pass progress on, and call `act` once: when half of what is asked is done, or a task ends.

    So nothing delays the first request, and no process waits for hours during a long run.
    """

    def __init__(self, shown: Progress, act: Callable[[], object]) -> None:
        self._shown, self._act, self._acted = shown, act, False
        self._planned = self._before = 0
        self._done: dict[str, int] = {}

    def begin(self, task: str, planned: int, completed: int) -> None:
        self._shown.begin(task, planned, completed)
        self._planned, self._before = self._planned + planned, self._before + completed
        self._done[task] = completed

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        self._shown.update(task, done, failed, value)
        if not self._acted:
            self._done[task] = done + sum(failed.values())
            asked = self._planned - self._before
            if 2 * (sum(self._done.values()) - self._before) >= asked > 0:
                self._act_once()

    def end(self, task: str) -> None:
        self._shown.end(task)
        self._act_once()

    def _act_once(self) -> None:
        if not self._acted:
            self._acted = True
            self._act()


def save_story_page(make: Callable[[], PageContent], path: Path) -> None:
    """Write the page of another story, and tell where it is."""
    from serve_eval.cli._streams import say

    def write() -> None:
        from serve_eval.report.page.writer import save_page

        save_page(make(), path, say)
        say(f"page: {path}")

    save(write)


def save(write: Callable[[], object]) -> None:
    """Write a page; if that fails, warn and go on, since the result is known."""
    from serve_eval.cli._streams import say

    try:
        write()
    except KeyboardInterrupt:
        say("warning: the page was not written: interrupted")
    except ServeEvalError as error:
        say(f"warning: the page could not be written: {error}")
    except Exception as error:  # a page is made from texts of models, in any form
        say(f"warning: the page could not be written: {type(error).__name__}: {error}")
