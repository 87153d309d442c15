"""Documents of collected results: of runs and logs, and of a folder without any."""

from pathlib import Path

from serve_eval.workflows.collect.document import CollectedRow, make_document


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a run or a log has it."""
    rows = [
        CollectedRow(source="outputs/a", kind="run", task=text, verdict="PASS", value=80.0),
        CollectedRow(
            source="outputs/b", kind="run", task=text, verdict="PASS", suite_verdict="FAIL",
            reason=text, value=40.0,
        ),
        CollectedRow(source="t.log", kind="trtllm-test", test=text, verdict="FAIL", value=1.0),
        CollectedRow(source="t.log", kind="trtllm-eval", metric=text, value=1.0),
    ]  # fmt: skip
    places, table = [Path("outputs"), Path("t.log")], Path("results.csv")
    return {
        "WRITTEN": make_document(rows, [f"warning: {text}", "b", "c"], places, table),
        "printed": make_document(rows[2:], [], places, None),
        "NOTHING FOUND": make_document([], [text], places, table),
    }
