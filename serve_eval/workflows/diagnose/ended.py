"""Say what ended a command without a result, and which command goes on."""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema import SuiteRunReport
from serve_eval.shell_words import quote_path
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.reports.story_results import find_suite_report
from serve_eval.storage.run_folder import holds_run
from serve_eval.storage.sessions import INTERRUPTED, find_session_end
from serve_eval.storage.story_files import COMPARE, SUITE, VERIFY


def find_end(run: Path) -> str:
    """Return what ended a run or comparison; for a side, what ended the other one if that did."""
    own = find_session_end(run)
    if own not in ("", INTERRUPTED):
        return own
    whole = run if COMPARE.has_plan(run) else run.absolute().parent
    if COMPARE.has_plan(whole):
        ends = [find_session_end(one) for one in sorted(whole.iterdir()) if holds_run(one)]
        return next((one for one in ends if one not in ("", INTERRUPTED)), max(ends, default=own))
    return own


def describe_end(end: str) -> str:
    """Return the end as a part of a sentence, "" if none is recorded."""
    if end == INTERRUPTED:
        return "it was interrupted"
    return f"ended by: {end}" if end else ""


def describe_again(run: Path) -> str:
    """Return in words what continues a side of a comparison, or "" for any other run.

    The run alone must not go on: the comparison would not know.
    """
    run = _name_parents(run)
    if not COMPARE.has_plan(run.absolute().parent):
        return ""
    return f"the same serve-eval compare command with -o {quote_path(run.parent)}"


def write_continue_command(run: Path, resume: str) -> str:
    """Return what continues a run; `resume` is the command for one that stands for itself."""
    run = _name_parents(run)
    parent = run.absolute().parent
    if parent.name == SUITE_RUNS and SUITE.has_plan(parent.parent):
        return f"serve-eval run --resume {quote_path(run.parent.parent)}"
    return resume


def _name_parents(folder: Path) -> Path:
    """Return a folder whose path has its parents, which "." and ".." have not."""
    return folder if len(folder.parts) > 2 and ".." not in folder.parts else folder.resolve()


def is_stopped_verify(folder: Path) -> bool:
    """Return True for the folder of a verification that ended without a result."""
    return (folder / VERIFY.plan).is_file() and not (folder / VERIFY.result).exists()


def list_unstarted(folder: Path) -> list[SuiteRunReport]:
    """Return the runs of a suite that an error ended before they had a folder.

    `folder` is that of the suite or of one such run.
    """
    alone = folder.absolute().parent.name == SUITE_RUNS
    suite = folder.absolute().parent.parent if alone else folder
    report = find_suite_report(suite) if (suite / SUITE.plan).exists() else None
    return [
        one
        for one in (() if report is None else report.runs)
        if one.error is not None
        and not holds_run(suite / SUITE_RUNS / one.name)
        and (not alone or one.name == folder.absolute().name)
    ]


def has_only_end(folder: Path) -> bool:
    """Return True if a folder has no run, but a verification, or what ended its command."""
    verified = (folder / VERIFY.result).is_file() or is_stopped_verify(folder)
    return not holds_run(folder) and (verified or bool(list_unstarted(folder)))
