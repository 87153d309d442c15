"""Write the result of a command for CI systems, into its folder and where GitHub asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.report.ci import CiResult


def save_ci_files(
    describe: Callable[[], CiResult],
    exit_code: int,
    *,
    folder: Path | None = None,
    junit: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Write junit.xml and summary.md into a folder, and the file of --junit. Return the exit code.

    In GitHub Actions, the summary is also added to that of the job, and each test that did not
    pass is an annotation. Only a file that was asked for with --junit changes the exit code if it
    cannot be written.
    """
    from serve_eval.evaluation.storage.file_names import JUNIT_FILE, SUMMARY_FILE
    from serve_eval.evaluation.storage.private_files import write_private
    from serve_eval.report.ci import list_annotations, write_junit, write_markdown

    step_summary = environ.get("GITHUB_STEP_SUMMARY")
    if folder is None and junit is None and not step_summary:
        return exit_code
    result = describe()
    text, summary = write_junit(result), write_markdown(result)
    if folder is not None:
        _try(lambda: write_private(folder / JUNIT_FILE, _encode(text)), folder / JUNIT_FILE)
        _try(lambda: write_private(folder / SUMMARY_FILE, _encode(summary)), folder / SUMMARY_FILE)
    if step_summary:
        _try(lambda: _append(Path(step_summary), summary), "GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") == "true":
        _print_annotations(list(list_annotations(result)))
    return exit_code if junit is None else _save_asked(junit, text, exit_code)


def check_junit(file: Path | None) -> None:
    """Raise PlanError if a JUnit file could not be written at the end."""
    from serve_eval.errors import PlanError

    if file is not None and not file.absolute().parent.is_dir():
        raise PlanError(f"--junit: {file.parent} is not a folder")


def _save_asked(junit: Path, text: str, exit_code: int) -> int:
    from serve_eval.cli._streams import path_of, say
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, worst
    from serve_eval.whole_file import write_named_file

    try:
        write_named_file(path_of(junit), _encode(text))
    except OSError as error:
        say(f"error: --junit: {junit} cannot be written: {error.strerror}")
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


def _append(file: Path, text: str) -> None:
    with file.open("ab") as out:
        out.write(_encode(f"{text}\n"))


def _encode(text: str) -> bytes:
    """Return UTF-8, with half of a surrogate pair escaped."""
    return text.encode(errors="backslashreplace")


def _print_annotations(lines: list[str]) -> None:
    """Print workflow commands on standard error, where GitHub finds them next to any output."""
    from serve_eval.cli._streams import say

    for line in lines:
        say(line)
