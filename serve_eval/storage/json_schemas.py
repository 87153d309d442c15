"""Describe files of a run folder as JSON Schema: report.json, and the lines of a journal."""

from __future__ import annotations

from serve_eval.json_schema import Schema, describe_type, name_schema
from serve_eval.schema import Report
from serve_eval.storage.folder_format import FOLDER_FORMAT
from serve_eval.storage.journal import Record
from serve_eval.storage.reports.report_file import REPORT_SCHEMA


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
