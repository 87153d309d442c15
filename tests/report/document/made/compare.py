"""Documents of a comparison: B worse than A, as good, asked twice, of several tasks."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import (
    Agreement,
    ComparedSide,
    ComparedTask,
    Comparison,
    FirstDifference,
    Flip,
    SelfFlips,
    Spec,
    Traffic,
    VerdictOutcome,
)
from serve_eval.workflows.compare.document import make_document
from tests.report.summary.made import PAIRED, RESULT, VERDICT

AGREED = Agreement(prompts=500, identical=291, same_answer=20, different=189)
TRAFFIC = Traffic(
    attempts=500,
    retries={},
    not_streamed=0,
    latency_s={"p50": 0.5, "p99": 2.0},
    ttft_s={},
    tpot_s={},
    prompt_tokens=5000,
    completion_tokens=9000,
)


def make_documents(text="some text"):
    """Return a document for each kind, with `text` where a server or a model wrote it."""
    passed = replace(
        VERDICT,
        outcome=VerdictOutcome.PASS,
        evaluated=83.4,
        paired=replace(PAIRED, interval=(-1.2, 0.4), difference=-0.4, p=0.25, finding="PASS"),
    )
    red, green = _compare(text), replace(_compare(text), verdict=passed, flips=())
    comparisons = {
        "FAIL": _join([red], text, 1),
        "PASS": _join([green], text, 0),
        "not asked twice": _join(
            [replace(green, itself=None, unmeasured="no repeats share a seed")], text, 0
        ),
        "several": _join([replace(green, task="gsm8k"), red], text, 1),
        "rehearsal": replace(_join([green], text, 3), rehearsal=True),
    }
    return {
        name: replace(
            make_document(one, Path("out"), {"word_problems": text} if one.exit_code == 1 else {}),
            make_page_blocks=tuple,
        )
        for name, one in comparisons.items()
    }


def make_itself(**changes):
    """Return the counts of A asked twice, which B differs from far more."""
    counts = SelfFlips(
        endpoint="A",
        prompts=200,
        own=0,
        other=20,
        only_own=0,
        only_other=20,
        p=1e-5,
        alpha=0.01,
        more=True,
        agreement=replace(AGREED, prompts=200, identical=200, same_answer=0, different=0),
        measure="text",
        own_texts=0,
        other_texts=27,
    )
    return replace(counts, **changes)


def _compare(text):
    flip = Flip(
        id="test-1",
        scores=(1.0, 0.0),
        answers=("12", text),
        target="12",
        texts=(f"The answer is 12 {text}", text),
        first_difference=FirstDifference(character=4, word=1, a="answer", b=text),
    )
    return ComparedTask(
        task="word_problems",
        a=replace(RESULT, value=83.8),
        b=RESULT,
        traffic=(TRAFFIC, TRAFFIC),
        verdict=replace(VERDICT, rule="paired"),
        worse=191,
        better=18,
        agreement=AGREED,
        apart_s=0.1,
        itself=make_itself(),
        flips=(flip, replace(flip, id="test-2")),
        warnings=(text,),
    )


def _join(tasks, text, exit_code):
    a = ComparedSide(
        folder="out/a",
        model=text,
        base_url="http://a:8000/v1",
        version="1.2.0",
        per_second=20.0,
        servers={"context": text},
    )
    return Comparison(
        schema_version=1,
        a=a,
        b=replace(a, folder="out/b", base_url="http://b:8000/v1", version=None, servers={}),
        rule=Spec(name="paired"),
        tasks=tuple(tasks),
        exit_code=exit_code,
        started_at="2026-11-27T00:00:00Z",
        wall_s=1.0,
        warnings=(text,),
    )
