"""The document of a result, which every story makes once, and one file for each of its faces."""

from serve_eval.report.document.ci import make_ci_result
from serve_eval.report.document.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    name_state,
    rank_outcome,
)
from serve_eval.report.document.json_form import (
    describe_document,
    describe_document_form,
    write_document,
)
from serve_eval.report.document.page import make_page
from serve_eval.report.document.statements import list_statements
from serve_eval.report.document.terminal import print_document

__all__ = [
    "Block",
    "Conclusion",
    "Depth",
    "Document",
    "Statement",
    "describe_document",
    "describe_document_form",
    "list_statements",
    "make_ci_result",
    "make_header",
    "make_page",
    "name_state",
    "print_document",
    "rank_outcome",
    "write_document",
]
