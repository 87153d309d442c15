"""Read and write report.json, the report of a finished run, or describe it as JSON Schema."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.json_schema import Schema, describe_type, name_schema
from serve_eval.schema import Report
from serve_eval.shell_words import quote_path
from serve_eval.storage.file_names import PAGES, PLAN_FILE, REPORT_FILE
from serve_eval.storage.journal import Record
from serve_eval.storage.json_files import (
    FOLDER_FORMAT,
    Versioned,
    check_format,
    pretty_json,
    refuse_newer,
    write_private,
)
from serve_eval.storage.story_files import explain_missing_run

REPORT_SCHEMA = 2
"""The version of report.json that this serve-eval writes, and the newest that it reads."""


def has_report(run: Path) -> bool:
    """Return True if a run finished."""
    return (run / REPORT_FILE).exists()


def read_report(run: Path) -> Report:
    """Return the report of a finished run.

    Raises RunFolderError if it is missing or damaged, or if a newer serve-eval wrote it.
    """
    check_format(run)
    file = run / REPORT_FILE
    try:
        data = file.read_bytes()
        try:
            report = msgspec.json.decode(data, type=Report)
        except msgspec.ValidationError:
            refuse_newer(
                file, msgspec.json.decode(data, type=Versioned).schema_version, REPORT_SCHEMA
            )
            raise
    except FileNotFoundError as error:
        if not (run / PLAN_FILE).exists():
            raise explain_missing_run(run) from error
        raise RunFolderError(
            f"{run} holds no finished run: there is no {REPORT_FILE}",
            hint=f"Finish the run first: serve-eval run --resume {quote_path(run)}",
        ) from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}",
            hint=f"Write it again: serve-eval run --resume {quote_path(run)}",
        ) from error
    refuse_newer(file, report.schema_version, REPORT_SCHEMA)
    return report


def find_report(run: Path) -> Report | None:
    """Return the report of a run, or None if the run has not finished.

    Raises RunFolderError as `read_report` does.
    """
    if has_report(run):
        return read_report(run)
    check_format(run)
    return None


def write_report(run: Path, report: Report) -> None:
    """Write the report of a run. Raises RunFolderError, and JournalError for a full disk."""
    write_private(run / REPORT_FILE, pretty_json(report))


def drop_report(run: Path) -> None:
    """Remove the report and its pages, which describe an earlier state."""
    for name in (REPORT_FILE, *PAGES):
        (run / name).unlink(missing_ok=True)


def describe_report_file() -> Schema:
    """Return the schema of report.json. Readers must accept keys that it does not list."""
    return name_schema(
        describe_type(Report), "report", REPORT_SCHEMA, "report.json of a run of serve-eval"
    )


def describe_journal() -> Schema:
    """Return the schema of a line of samples/<task>.jsonl."""
    return name_schema(
        describe_type(Record), "journal", FOLDER_FORMAT, "A line of samples/<task>.jsonl"
    )
