"""Make the document of capsules that were written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.report.document import Conclusion, Document, Statement, make_header
from serve_eval.shell_words import quote_path

HOLDS = "body.json is the request, curl.sh asks it again, README.md says what else is there"


def make_document(run: Path, folders: Sequence[Path]) -> Document:
    """Return the document of the folders, with the commands that ask their requests again."""
    return Document(
        story="capsule",
        command=f"serve-eval show {quote_path(run)} --capsule",
        header=make_header(0),
        conclusions=[Conclusion(name=str(one), outcome="WRITTEN") for one in folders],
        noun="capsules",
        statements=[Statement(label="holds", text=HOLDS)],
        commands=[f"sh {quote_path(one / 'curl.sh')}" for one in folders],
    )
