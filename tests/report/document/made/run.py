"""Documents of a run, by outcome: of one task, of several, of a rehearsal."""

from dataclasses import replace
from pathlib import Path

from serve_eval.report.run.document import make_run_document
from serve_eval.schema import VerdictOutcome, WrongExample
from tests.report.summary.made import EARLY, RESULT, VERDICT, make_report, named, task


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a model wrote it."""
    example = WrongExample(id="test-198", answer=text, target="#### 80")
    red = task(verdict=replace(VERDICT, warnings=(text,)), example=example)
    green = _judge(VerdictOutcome.PASS)
    tasks = {
        "FAIL": (red,),
        "PASS": (green,),
        "NO REFERENCE": (_judge(VerdictOutcome.NO_REFERENCE, text),),
        "INCONCLUSIVE": (_judge(VerdictOutcome.INCONCLUSIVE, text),),
        "ERROR": (_judge(VerdictOutcome.ERROR, text),),
        "UNSUPPORTED": (_judge(VerdictOutcome.UNSUPPORTED, text),),
        "early": (task(RESULT, replace(VERDICT, early=EARLY, outcome=VerdictOutcome.PASS)),),
        "several": (named("gsm8k", green), named("mmlu", red)),
        "many": tuple(named(f"task_{i}", red if i % 5 == 0 else green) for i in range(40)),
    }
    reports = {name: make_report(*of) for name, of in tasks.items()}
    reports["rehearsal"] = replace(
        make_report(_judge(VerdictOutcome.INCONCLUSIVE)), rehearsal=True, exit_code=3
    )
    codes = {"PASS": 0, "early": 0, "NO REFERENCE": 3, "INCONCLUSIVE": 3, "UNSUPPORTED": 3}
    found = {}
    for name, report in reports.items():
        report = replace(
            report, exit_code=codes.get(name, report.exit_code), warnings=(text, "b", "c")
        )
        causes = {"mmlu": text, "word_problems": text} if report.exit_code == 1 else {}
        found[name] = make_run_document(report, Path("out"), causes)
        found[name] = replace(found[name], make_page_blocks=tuple)
    return found


def _judge(outcome, *reasons):
    """Return a task with this outcome; reasons and figures are those of the outcome."""
    if outcome in (VerdictOutcome.PASS, VerdictOutcome.INCONCLUSIVE):
        return task(
            replace(RESULT, value=83.4, interval=(79.9, 86.4)),
            replace(VERDICT, outcome=outcome, evaluated=83.4, reasons=reasons),
        )
    bare = replace(VERDICT, outcome=outcome, paired=None, reasons=reasons)
    return task(RESULT, replace(bare, rule="none", reference=None, threshold=None))
