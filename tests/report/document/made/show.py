"""Documents of samples that were chosen: a list, one sample, several, and those of two runs."""

from dataclasses import replace

import msgspec

from serve_eval.report.samples.samples import HIDDEN, SampleRow, ShownSample
from serve_eval.schema import Attempt, Cut, Failure, FailureKind, Message, Response
from serve_eval.workflows.show.document import make_document
from serve_eval.workflows.show.story import ShownRun, pair_samples


def make_documents(text="some text"):
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
    return {name: make_document(one) for name, one in shown.items()}


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
