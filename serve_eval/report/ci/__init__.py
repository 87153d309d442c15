"""Tell CI systems what a command found: a JUnit file, a summary in Markdown, annotations."""

from serve_eval.report.ci.annotations import list_annotations
from serve_eval.report.ci.ci_result import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    place_result,
    withhold_cases,
)
from serve_eval.report.ci.junit import write_junit
from serve_eval.report.ci.markdown import write_markdown

__all__ = [
    "CiCase",
    "CiResult",
    "CiState",
    "CiSuite",
    "CiTable",
    "list_annotations",
    "place_result",
    "withhold_cases",
    "write_junit",
    "write_markdown",
]
