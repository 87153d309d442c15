"""Documents of a smoke test, by outcome."""

from dataclasses import replace
from pathlib import Path

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.workflows.smoke import Smoke, make_document
from serve_eval.workflows.smoke.known import Deployment, KnownComparison

URL = "http://127.0.0.1:8000/v1"


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the model wrote it."""
    found = _make_smoke(text)
    sound = replace(found, rows=[row for row in found.rows if row.outcome != "FAIL"], exit_code=0)
    lost = CheckRow(name="stop", outcome=CheckOutcome.ERROR, told=text, time_s=0.1, curl="curl x")
    known = KnownComparison(
        file="known.json",
        mended=["n"],
        missing=["cancel"],
        unlisted=["seed"],
        unsupported=["tools"],
    )
    smokes = {
        "FAIL": found,
        "PASS": sound,
        "known": replace(found, known=known),
        "another deployment": replace(found, known=replace(known, other=f"is of {text}")),
        "many": replace(found, rows=[*found.rows, *_make_many(text)]),
        "stopped": replace(found, stopped=f"nothing is left: {text}", exit_code=4),
        "starting": replace(found, rows=[], stopped=text, exit_code=4),
        "died": replace(
            found,
            rows=[*found.rows, lost],
            died="stop",
            stopped=f"the server died during stop: no server listens there\nits log: {text}",
            exit_code=4,
        ),
        "rehearsal": replace(found, rehearsal=True, exit_code=0),
    }
    return {
        name: make_document(one, URL, folder=Path("outputs/smoke")) for name, one in smokes.items()
    }


def _make_smoke(text):
    """Return a smoke test with a row of each outcome."""
    rows = [
        CheckRow(name="chat", outcome=CheckOutcome.PASS, told="HTTP 200", time_s=0.1),
        CheckRow(
            name="json", outcome=CheckOutcome.FAIL, told=text, time_s=0.2, curl=f"curl {text}"
        ),
        CheckRow(name="health", outcome=CheckOutcome.KNOWN, told=text, time_s=0.2),
        CheckRow(name="tools", outcome=CheckOutcome.UNSUPPORTED, told=text, time_s=0.3),
    ]
    return Smoke(
        rows=rows,
        exit_code=1,
        stopped="",
        requests=9,
        generated=90,
        seconds=1.5,
        deployment=Deployment(model=text, server="vLLM", listed=True),
    )


def _make_many(text):
    """Return rows that fail with many words, and long requests."""
    return [
        CheckRow(
            name=f"check_{i}",
            outcome=CheckOutcome.FAIL,
            told=f"{text} " * 30,
            time_s=0.1,
            model=True,
            curl=f"curl {'x' * 3000}",
        )
        for i in range(30)
    ]
