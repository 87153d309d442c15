"""Documents of answers that were scored again, by outcome."""

from pathlib import Path

import msgspec

from serve_eval.workflows.rescore import Changed, Rescored, RescoreSummary
from serve_eval.workflows.rescore.document import make_document


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the model wrote it."""
    same = _make_rescored()
    before = RescoreSummary(outcome="correct", value=1.0, answer=text)
    after = RescoreSummary(outcome="unparsed", value=0.0)
    changed = msgspec.structs.replace(
        same,
        after=70.0,
        options={"filter": ("mean", text)},
        moves=[("correct", "unparsed", 60)],
        changed=[Changed(f"{text}-{i}", text, before, after) for i in range(60)],
        notes=[text],
    )
    judged = msgspec.structs.replace(
        changed, verdict_before="PASS", verdict_after="FAIL", reference=75.0
    )
    empty = msgspec.structs.replace(same, answered=0, before=None, after=None)
    run, new = Path("outputs/run"), Path("outputs/new")
    again = "serve-eval judge --rescore outputs/run -o outputs/run_rescored"
    found = {
        "UNCHANGED": make_document([same], run, exit_code=0, again=again),
        "CHANGED": make_document([changed], run, exit_code=0, again=again),
        "judged": make_document([judged], run, exit_code=0, to=new),
        "NOT SCORED": make_document([empty], run, exit_code=5),
        "several": make_document([same, changed, judged, empty], run, exit_code=0, again=again),
    }
    assert found["several"].verdict == "NOT SCORED"
    return found


def _make_rescored():
    return Rescored(
        task="gsm8k",
        planned=100,
        answered=100,
        before=75.0,
        after=75.0,
        reported=75.0,
        parts={},
        options={},
        moves=[],
        changed=[],
        notes=[],
    )
