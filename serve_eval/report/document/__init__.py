"""The document of a result, which every story makes once, and one file for each of its faces."""

from serve_eval.report.document.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    list_statements,
    make_header,
    name_state,
    rank_outcome,
)
from serve_eval.report.document.faces import (
    describe_document,
    describe_document_form,
    make_ci_result,
    make_page,
    write_document,
)
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
