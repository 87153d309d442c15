"""Make the document of a diagnosis, and give all that it says as lines."""

from __future__ import annotations

from pathlib import Path

from serve_eval.report.document import Document, list_statements
from serve_eval.workflows.diagnose.document import make_document
from serve_eval.workflows.diagnose.judged import list_outcomes, read_folder
from serve_eval.workflows.diagnose.story import diagnose_read


def make_document_of(folder: Path) -> Document:
    """Return the document of the diagnosis of a folder."""
    answers = read_folder(folder)
    return make_document(diagnose_read(answers), list_outcomes(answers), folder)


def list_lines(folder: Path) -> list[str]:
    """Return the statements of that document, each behind its label, and its next commands."""
    document = make_document_of(folder)
    rows = [f"{row.label}: {row.text}" for row in list_statements(document)]
    return [*rows, *(f"next: {command}" for command in document.commands)]
