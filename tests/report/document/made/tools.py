"""Documents of a check of tool calls, by outcome."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import ToolCell, ToolCheck, ToolFinding, ToolProbe
from serve_eval.workflows.tools import make_document


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the model wrote it."""
    found = _make_check(text)
    sound = replace(found, findings=(), exit_code=0)
    checks = {
        "FAIL": found,
        "PASS": sound,
        "INCONCLUSIVE": replace(sound, exit_code=3),
        "ERROR": replace(sound, exit_code=5),
        "rehearsal": replace(sound, rehearsal=True),
    }
    return {name: make_document(one, Path("outputs/tools")) for name, one in checks.items()}


def _make_check(text):
    """Return a check with one finding."""
    cell = ToolCell(
        form="whole",
        load=8,
        scored=40,
        sound=30,
        failed=2,
        interval=(0.6, 0.86),
        faults={"invalid JSON": 10},
        kinds={"auto": (30, 40)},
        precision=1.0,
        recall=0.75,
        f1=None,
        in_flight=8,
        prompt_tokens=1000,
        completion_tokens=500,
        unreported=0,
        reasoned=0,
        wall_s=2.5,
    )
    finding = ToolFinding(
        fault="invalid JSON",
        cells=("whole at 8",),
        where="from 8 on",
        against="threshold",
        count=10,
        scored=40,
        p=1e-9,
        points_to="guided decoding was not applied",
        examples=(("auto-1", text),),
    )
    return ToolCheck(
        schema_version=1,
        model=text,
        base_url="http://host:8000/v1",
        fingerprint="40 requests",
        kinds=("auto",),
        unsupported=(ToolProbe(name="regex", outcome="UNSUPPORTED", said=text),),
        parameters=(ToolProbe(name="works: seed", outcome="PASS", said="it counts"),),
        cells=(cell,),
        findings=(finding,),
        remarks=(text,),
        reference=None,
        requests=42,
        exit_code=1,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=3.0,
    )
