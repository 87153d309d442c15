"""Documents of a run: as it ended, scored again, shown, as capsules and diagnosed."""

from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.report.run.document import make_run_document
from serve_eval.report.samples.samples import HIDDEN, SampleRow, ShownSample
from serve_eval.report.summary.figures import SummaryTask
from serve_eval.report.task_line import make_task_line
from serve_eval.schema import (
    Attempt,
    Cut,
    Failure,
    FailureKind,
    Message,
    Response,
    VerdictOutcome,
    WrongExample,
)
from serve_eval.workflows.capsule import make_document as make_capsule_document
from serve_eval.workflows.diagnose.breakdown import Breakdown, LostExample
from serve_eval.workflows.diagnose.document import make_document as make_diagnose_document
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.judged import FolderOutcome, FolderOutcomes
from serve_eval.workflows.diagnose.story import DiagnosedRun, DiagnosedTask, Diagnosis
from serve_eval.workflows.rescore import Changed, Rescored, RescoreSummary
from serve_eval.workflows.rescore.document import make_document as make_rescore_document
from serve_eval.workflows.show.document import make_document as make_show_document
from serve_eval.workflows.show.story import ShownRun, pair_samples
from tests.report.summary.made import EARLY, RESULT, VERDICT, make_report, named, task


def make_run_documents(text="some text"):
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


def make_rescore_documents(text="some text"):
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
        "UNCHANGED": make_rescore_document([same], run, exit_code=0, again=again),
        "CHANGED": make_rescore_document([changed], run, exit_code=0, again=again),
        "judged": make_rescore_document([judged], run, exit_code=0, to=new),
        "NOT SCORED": make_rescore_document([empty], run, exit_code=5),
        "several": make_rescore_document(
            [same, changed, judged, empty], run, exit_code=0, again=again
        ),
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


def make_show_documents(text="some text"):
    """Return a document for each kind of choice, with `text` where others wrote it."""
    wrong, long = _make_sample(text), _make_sample("\n".join([text] * 60))
    failure = Failure(kind=FailureKind.HTTP_ERROR, message=text, status=400)
    failed = msgspec.structs.replace(
        wrong, outcome="failed", value=None, response=None, failure=failure, extracted=None
    )
    chat = msgspec.structs.replace(
        long,
        prompt=(Message(role="system", content=text), Message(role=text, content=text)),
        choices=(text, text),
    )
    hidden = msgspec.structs.replace(
        wrong, prompt=None, prompt_note=HIDDEN, expected=None, extracted=None
    )
    right = msgspec.structs.replace(wrong, outcome="right", value=1.0, extracted="5")
    rows = tuple(_make_row(text, i) for i in range(60))
    listed = ShownRun(
        run="outputs/a", asked=60, found=60, outcomes={"wrong": 30, "right": 30}, rows=rows
    )
    both = replace(listed, a="outputs/b", fell=60, rose=0, rows_of_a=rows)
    two_tasks = (*rows[:2], replace(rows[2], task="gsm8k"))
    shown = {
        "list": listed,
        "list of two tasks": replace(listed, rows=two_tasks),
        "none": replace(listed, found=0, outcomes={}, rows=()),
        "empty": replace(listed, asked=0, found=0, outcomes={}, rows=()),
        "wrong": replace(listed, found=1, rows=rows[:1], samples=(wrong,)),
        "one of many": replace(listed, rows=rows[:1], samples=(wrong,)),
        "long": replace(listed, found=1, rows=rows[:1], samples=(long,)),
        "failed": replace(listed, found=1, rows=rows[:1], samples=(failed,)),
        "chat": replace(listed, found=1, rows=rows[:1], samples=(chat,)),
        "hidden": replace(listed, found=1, rows=rows[:1], samples=(hidden,)),
        "several": replace(listed, samples=(wrong, long, failed)),
        "flips": replace(both, pairs=(pair_samples(right, wrong), pair_samples(right, long))),
        "pair": replace(both, found=1, rows=rows[:1], pairs=(pair_samples(right, long),)),
    }
    return {name: make_show_document(one) for name, one in shown.items()}


def _make_row(text, i):
    outcome = "right" if i % 2 else "wrong"
    return SampleRow(
        task="t", id=f"{text}-{i}", outcome=outcome, value=0.0, expected=text, extracted=text
    )


def _make_sample(text):
    return ShownSample(
        task="word_problems",
        id=text.split("\n")[0],
        outcome="wrong",
        value=0.0,
        cut_off=True,
        cut=Cut.MAX_TOKENS,
        expected=text,
        extracted=text,
        place=None,
        prompt=text,
        prompt_note="",
        choices=(),
        response=Response(text=text, reasoning=text, finish_reason=text),
        failure=None,
        attempts=(Attempt(start_s=1.0, end_s=2.0, failure=None, status=200, request_id="1"),),
        servers=None,
        parts={"strict": 0.0},
        mode=text,
    )


def make_capsule_documents(text="some text"):
    """Return the documents; `text` is that of a folder."""
    folders = [Path("out", f"{text.replace('/', '')}-{i}") for i in range(40)]
    return {
        "one": make_capsule_document(Path("out"), folders[:1]),
        "many": make_capsule_document(Path("out"), folders),
    }


TASK = "word_problems"
RUN = Path("outputs/run")


def make_diagnose_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a model wrote it."""
    cut = _find("truncated", f"answers end at max_tokens: {text}", text, explains=30)
    slow = _find("worker", f"{text} has more wrong answers", text, explains=20)
    remark = replace(_find("retried", text, text, explains=0), p=None)
    ended = replace(_find("unfinished", f"ended by: {text}", text), task=None, log=(text,))
    red = _run("", _task(text), cut, slow, remark)
    stopped = _run("", replace(_task(text), outcome=None, breakdown=None), ended)
    judged = {
        outcome.value: _judge_folder(outcome, text)
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
        name: make_diagnose_document(_diagnose(run), found, RUN)
        for name, (run, found) in outcomes.items()
    }
    return made | _compare(text, cut, remark) | _make_others(text, cut, ended)


def _compare(text, cut, remark):
    """Return the document of a comparison whose B lost score, and of one without a result."""
    a = _run("A", replace(_task(text), outcome="NO REFERENCE", breakdown=None))
    b = _run("B", replace(_task(text), outcome="NO REFERENCE"), remark)
    found = replace(_diagnose(a, b), between=(cut,), compared=True)
    one = replace(_judge_folder(VerdictOutcome.FAIL, text), run="B")
    asks = FolderOutcomes(judged=(one,), commands=("serve-eval check workers outputs/run/b",))
    lost = FolderOutcome(name="comparison", outcome="ERROR", run="B", why=f"ended by: {text}")
    return {
        "comparison": make_diagnose_document(found, asks, RUN),
        "comparison that ended": make_diagnose_document(
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
        replace(_judge_folder(VerdictOutcome.FAIL, text), name=f"red/{TASK}", run="red"),
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
        "suite": make_diagnose_document(_diagnose(*runs), suite, RUN),
        "servers": make_diagnose_document(_diagnose(), servers, RUN),
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


def _judge_folder(outcome, text):
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
