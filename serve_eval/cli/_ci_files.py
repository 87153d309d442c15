"""Write the result of a command for CI systems and chat, into files and to GitHub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_eval.report.ci_result import CiResult

STANDARD_OUTPUT = Path("-")
"""The file of --notify-text that stands for standard output."""


def save_ci_files(
    describe: Callable[[], CiResult],
    exit_code: int,
    *,
    folder: Path | None,
    junit: Path | None,
    notify_text: Path | None,
    about: Path | None,
) -> int:
    """Write junit.xml and summary.md into a folder, and the files asked for. Return the exit code.

    In GitHub Actions, the summary is also added to that of the job, and each test that did not
    pass is an annotation. Only a file that was asked for with --junit or --notify-text changes the
    exit code if it cannot be written. `about` is the folder that the line names, if nothing is
    written there.
    """
    from serve_eval.client.connection import SecretMask
    from serve_eval.report.ci import (
        add_to_job_summary,
        find_place,
        is_github,
        list_annotations,
        write_junit,
        write_markdown,
    )
    from serve_eval.report.ci_result import place_result
    from serve_eval.schema import Connection
    from serve_eval.storage.file_names import JUNIT_FILE, SUMMARY_FILE
    from serve_eval.storage.json_files import write_private

    step_summary, in_github = os.environ.get("GITHUB_STEP_SUMMARY"), is_github(os.environ)
    if not (folder or junit or notify_text or step_summary or in_github):
        return exit_code
    mask = SecretMask(Connection(), os.environ)
    result = place_result(describe(), find_place(folder or about, os.environ), mask)
    text, summary = write_junit(result), write_markdown(result)
    if folder is not None:
        _try(lambda: write_private(folder / JUNIT_FILE, _encode(text)), folder / JUNIT_FILE)
        _try(lambda: write_private(folder / SUMMARY_FILE, _encode(summary)), folder / SUMMARY_FILE)
    if step_summary:
        _try(lambda: add_to_job_summary(step_summary, summary), "GITHUB_STEP_SUMMARY")
    if in_github:
        _print_annotations(list(list_annotations(result)))
    if junit is not None:
        exit_code = _save_asked("--junit", junit, text, exit_code)
    if notify_text is not None:
        exit_code = _save_asked("--notify-text", notify_text, f"{result.said}\n", exit_code)
    return exit_code


@contextmanager
def tell_ending(command: str, about: str, asked: Mapping[str, Any]) -> Iterator[None]:
    """Write the files that were asked for also if a command ends without a result.

    An error or an interruption is their content then. The folder gets them too if the command has
    begun in it; one that was refused stays as it is, and so does one with a result if the command
    itself was wrong. `about` is what the command is about, and `asked` are its options by name.
    """
    import typer

    from serve_eval.errors import RunFolderError, ServeEvalError
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, INTERRUPTED, UNDECIDED, USAGE

    junit, notify_text = asked.get("junit"), asked.get("notify_text")
    given = asked.get("resume") or asked.get("output_dir")
    folder = None if given is None else Path(given)

    def save(kind: str, message: str, hint: str, exit_code: int, *, refused: bool = False) -> None:
        from serve_eval.report.ci import describe_ending

        save_ci_files(
            lambda: describe_ending(
                command, about, kind, message, hint, rehearsal=bool(asked.get("rehearse"))
            ),
            exit_code,
            folder=None if refused or not _has_begun(folder) else folder,
            junit=junit,
            notify_text=notify_text,
            about=folder,
        )

    try:
        yield
    except typer.Exit as ending:
        if ending.exit_code == INTERRUPTED:
            again = "the same command resumes what it kept"
            save("INTERRUPTED", "ended by a signal before there was a result", again, INTERRUPTED)
        raise
    except Exception as error:
        code, message, hint = INFRASTRUCTURE, f"unexpected {type(error).__name__}: {error}", ""
        if isinstance(error, ServeEvalError):
            code, message, hint = error.exit_code, str(error), error.hint
        outcome = "INCONCLUSIVE" if code == UNDECIDED else "ERROR"
        refused = isinstance(error, RunFolderError) or (code == USAGE and _has_ended(folder))
        save(outcome, message, hint, code, refused=refused)
        raise


def check_asked(junit: Path | None, notify_text: Path | None, *, as_json: bool) -> None:
    """Raise PlanError if a file that was asked for could not be written at the end."""
    from serve_eval.errors import PlanError

    for flag, file in (("--junit", junit), ("--notify-text", notify_text)):
        if file is not None and not file.absolute().parent.is_dir():
            raise PlanError(f"{flag}: {file.absolute().parent} is not a folder")
    if notify_text == STANDARD_OUTPUT and as_json:
        raise PlanError(
            "--notify-text -: standard output holds JSON already",
            hint="Name a file, such as --notify-text line.txt.",
        )


def _has_begun(folder: Path | None) -> bool:
    """Return True if a folder holds the plan of a command."""
    from serve_eval.storage.story_files import STORIES

    return folder is not None and any(one.plan and one.has_plan(folder) for one in STORIES)


def _has_ended(folder: Path | None) -> bool:
    """Return True if a folder holds the result of a command."""
    from serve_eval.storage.story_files import STORIES

    return folder is not None and any(
        one.result and (folder / one.result).is_file() for one in STORIES
    )


def _save_asked(flag: str, file: Path, text: str, exit_code: int) -> int:
    from serve_eval.cli._streams import emit, path_of, say
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, worst
    from serve_eval.whole_file import write_named_file

    if flag == "--notify-text" and file == STANDARD_OUTPUT:
        emit(text)
        return exit_code
    try:
        write_named_file(path_of(file), _encode(text))
    except OSError as error:
        say(f"error: {flag}: {file} cannot be written: {error.strerror}")
        return worst([exit_code, INFRASTRUCTURE])
    return exit_code


def _try(write: Callable[[], object], what: object) -> None:
    """Write a file; if that fails, warn and go on, since the result is already saved."""
    from serve_eval.cli._streams import say
    from serve_eval.errors import ServeEvalError

    try:
        write()
    except (OSError, ServeEvalError) as error:
        say(f"warning: {what} could not be written: {error}")


def _encode(text: str) -> bytes:
    """Return UTF-8, with half of a surrogate pair escaped."""
    return text.encode(errors="backslashreplace")


def _print_annotations(lines: list[str]) -> None:
    """Print workflow commands on standard error, where GitHub finds them next to any output."""
    from serve_eval.cli._streams import say

    for line in lines:
        say(line)
