"""Documents of a diagnosis: of a run, of a comparison, of a suite, of servers, of what ended."""

from dataclasses import replace
from pathlib import Path

from serve_eval.report.summary.figures import SummaryTask
from serve_eval.report.task_line import make_task_line
from serve_eval.schema import VerdictOutcome
from serve_eval.workflows.diagnose.breakdown import Breakdown, LostExample
from serve_eval.workflows.diagnose.document import make_document
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.judged import FolderOutcome, FolderOutcomes
from serve_eval.workflows.diagnose.story import DiagnosedRun, DiagnosedTask, Diagnosis
from tests.report.summary.made import RESULT, VERDICT

TASK = "word_problems"
RUN = Path("outputs/run")


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a model wrote it."""
    cut = _find("truncated", f"answers end at max_tokens: {text}", text, explains=30)
    slow = _find("worker", f"{text} has more wrong answers", text, explains=20)
    remark = replace(_find("retried", text, text, explains=0), p=None)
    ended = replace(_find("unfinished", f"ended by: {text}", text), task=None, log=(text,))
    red = _run("", _task(text), cut, slow, remark)
    stopped = _run("", replace(_task(text), outcome=None, breakdown=None), ended)
    judged = {
        outcome.value: _judge(outcome, text)
        for outcome in (VerdictOutcome.FAIL, VerdictOutcome.PASS, VerdictOutcome.INCONCLUSIVE)
    }
    sound = _run("", replace(_task(text), outcome="PASS", breakdown=None))
    outcomes = {
        "FAIL": (red, FolderOutcomes(judged=(judged["FAIL"],), model=text, page="report.html")),
        "PASS": (sound, FolderOutcomes(judged=(judged["PASS"],), model=text)),
        "INCONCLUSIVE": (red, FolderOutcomes(judged=(judged["INCONCLUSIVE"],))),
        "rehearsal": (red, FolderOutcomes(judged=(judged["FAIL"],), rehearsal=True)),
        "ERROR": (stopped, FolderOutcomes(judged=(_end("ERROR"),))),
        "INTERRUPTED": (stopped, FolderOutcomes(judged=(_end("INTERRUPTED"),))),
    }
    made = {
        name: make_document(_diagnose(run), found, RUN) for name, (run, found) in outcomes.items()
    }
    return made | _compare(text, cut, remark) | _make_others(text, cut, ended)


def _compare(text, cut, remark):
    """Return the document of a comparison whose B lost score, and of one without a result."""
    a = _run("A", replace(_task(text), outcome="NO REFERENCE", breakdown=None))
    b = _run("B", replace(_task(text), outcome="NO REFERENCE"), remark)
    found = replace(_diagnose(a, b), between=(cut,), compared=True)
    one = replace(_judge(VerdictOutcome.FAIL, text), run="B")
    asks = FolderOutcomes(judged=(one,), commands=("serve-eval check workers outputs/run/b",))
    lost = FolderOutcome(name="comparison", outcome="ERROR", run="B", why=f"ended by: {text}")
    return {
        "comparison": make_document(found, asks, RUN),
        "comparison that ended": make_document(
            found, FolderOutcomes(judged=(lost,), again="the same command"), RUN
        ),
    }


def _make_others(text, cut, ended):
    """Return the documents of a suite and of a verification."""
    runs = (
        _run("red", _task(text), cut),
        _run("gone", replace(_task(text), outcome=None, in_suite="ERROR"), ended),
    )
    judged = (
        replace(_judge(VerdictOutcome.FAIL, text), name=f"red/{TASK}", run="red"),
        replace(_end("ERROR"), name=f"gone/{TASK}", run="gone"),
        FolderOutcome(name="unstarted", outcome="ERROR", why=text, fix=text),
    )
    suite = FolderOutcomes(
        judged=judged,
        outcome="FAIL",
        counted_as="suite night: 1 FAIL, 2 ERROR",
        commands=("serve-eval run --resume outputs/run",),
    )
    servers = FolderOutcomes(
        judged=(
            FolderOutcome(name="http://b:8000/v1", outcome="FAULT OF SINGLE REQUESTS", why=text),
            FolderOutcome(name="http://c:8000/v1", outcome="IDENTICAL", why=text),
        ),
        noun="servers",
        commands=("serve-eval compare http://a:8000/v1 http://b:8000/v1 --tasks word_problems",),
    )
    return {
        "suite": make_document(_diagnose(*runs), suite, RUN),
        "servers": make_document(_diagnose(), servers, RUN),
    }


def _find(rule, told, text, explains=None):
    return Finding(
        rule=rule,
        told=told,
        change=(f"--set {TASK}.max_tokens=2048 {text}", f"serve-eval judge --rescore {RUN}"),
        count=30,
        of=40,
        explains=explains,
        lost=40,
        task=TASK,
        samples=("test-1", "test-2"),
        p=1e-12,
    )


def _task(text):
    return DiagnosedTask(
        task=TASK,
        outcome="FAIL",
        value=52.0,
        threshold=60.0,
        asked=100,
        wrong=38,
        missing=2,
        rule="classic",
        accused=(text,),
        breakdown=Breakdown(
            reference=83.0,
            kinds={"wrong": 38, "unanswered": 2},
            cut={},
            near=3,
            unread=2,
            examples=tuple(LostExample(id=f"test-{i}", answer=text, target=text) for i in range(3)),
            judge_errors=(text,),
            next=(
                f"serve-eval show {RUN} test-0",
                f"serve-eval show {RUN} --task {TASK} --capsule test-0",
                "serve-eval verify GOOD http://a:8000/v1",
            ),
        ),
    )


def _run(label, task, *findings):
    return DiagnosedRun(label=label, folder=str(RUN), tasks=(task,), findings=findings)


def _diagnose(*runs):
    return Diagnosis(schema_version=1, folder=str(RUN), runs=runs)


def _judge(outcome, text):
    summary = SummaryTask(result=RESULT, verdict=replace(VERDICT, outcome=outcome))
    return FolderOutcome(
        name=TASK,
        outcome=outcome.value,
        run="",
        task=TASK,
        summary=summary,
        line=make_task_line(summary, text),
    )


def _end(outcome):
    return FolderOutcome(name=TASK, outcome=outcome, run="", task=TASK)
