"""Documents of one capsule, and of many."""

from pathlib import Path

from serve_eval.workflows.capsule import make_document


def make_documents(text="some text"):
    """Return the documents; `text` is that of a folder."""
    folders = [Path("out", f"{text.replace('/', '')}-{i}") for i in range(40)]
    return {
        "one": make_document(Path("out"), folders[:1]),
        "many": make_document(Path("out"), folders),
    }
