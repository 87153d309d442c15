"""Find the stories with a document by walking the packages, and make their documents."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from serve_eval.report.document import Document

PACKAGE = Path(__file__).parents[3] / "serve_eval"
WORKFLOWS = PACKAGE / "workflows"


def find_stories() -> dict[str, Path]:
    """Return the folder of each story with a document, by its name, in alphabetic order."""
    files = [*WORKFLOWS.glob("*/document.py"), *PACKAGE.glob("report/*/document.py")]
    folders = {file.parent.name: file.parent for file in files if file.parent.name != "document"}
    return dict(sorted(folders.items()))


STORIES = tuple(find_stories())


def make_documents(story: str, text: str = "some text") -> Mapping[str, Document]:
    """Return the documents of a story by outcome, with `text` wherever others wrote it."""
    made = importlib.import_module(f"tests.report.document.made.{story}")
    documents: Mapping[str, Document] = made.make_documents(text)
    return documents
