"""The pictures of a run show its answers in the order in which their requests started."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from serve_eval.report.pictures.chosen_pictures import draw_answers
from serve_eval.report.samples.sample_index import DrawnAnswer, SampleIndex
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import (
    Attempt,
    Failure,
    FailureKind,
    Metric,
    Outcome,
    Response,
    TaskReport,
    TaskResult,
    Traffic,
    Usage,
    Verdict,
    VerdictOutcome,
)
from serve_eval.schema.plan import Spec
from serve_eval.storage.journal import Record
from serve_eval.storage.scores import ScoreRecord, encode
from tests.report.document.stories import HOSTILE


def _attempt(start_s: float, failure: FailureKind | None = None) -> Attempt:
    return Attempt(
        start_s=start_s, end_s=start_s + 1.0, failure=failure, status=None, request_id="r"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lost = Failure(
        kind=FailureKind.TIMEOUT,
        message="",
        attempts=(_attempt(1.0, FailureKind.TIMEOUT), _attempt(9.0, FailureKind.TIMEOUT)),
    )
    records = [
        Record(
            id="late",
            response=Response(
                text="ab",
                finish_reason="stop",
                latency_s=2.0,
                ttft_s=0.5,
                usage=Usage(completion_tokens=7),
                attempts=(_attempt(5.0),),
            ),
        ),
        Record(id="lost", failure=lost),
        Record(
            id="early",
            response=Response(
                text="abc", finish_reason="stop", reasoning="de", attempts=(_attempt(0.5),)
            ),
        ),
    ]
    (tmp_path / "samples").mkdir()
    (tmp_path / "scores").mkdir()
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    (tmp_path / "samples/t.jsonl").write_bytes(lines)
    score = ScoreRecord(id="late", outcome=Outcome.WRONG, value=0.0, target="x")
    (tmp_path / "scores/t.jsonl").write_bytes(encode(score) + b"\n")
    return tmp_path


def test_answers_are_read_in_the_order_of_their_first_attempts(run: Path) -> None:
    index = SampleIndex(SampleSource(run=run, task="t"))
    assert index.drawn == [
        DrawnAnswer(outcome=None, started_s=0.5, latency_s=0.0, characters=5),
        DrawnAnswer(outcome=None, started_s=1.0),
        DrawnAnswer(
            outcome="wrong", started_s=5.0, latency_s=2.0, ttft_s=0.5, tokens=7, characters=2
        ),
    ]
    assert (index.answers, index.requests) == (3, 3)
    assert SampleIndex(SampleSource(run=run, task="none")).drawn == []


def test_times_that_no_answer_has_and_few_answers_have_no_picture() -> None:
    answers = [
        DrawnAnswer(outcome="correct", started_s=float(i), latency_s=1.0, characters=3)
        for i in range(20)
    ]
    drawn = [picture.title for picture in draw_answers(_task(), answers, 20)]
    assert len(drawn) == 3
    assert [title.rpartition(": ")[2] for title in drawn] == [
        "outcomes in the order of starts",
        "latency",
        "length of answers by outcome",
    ]
    assert list(draw_answers(_task(), answers[:19], 19)) == []


def _task() -> TaskReport:
    result = TaskResult(
        task=HOSTILE,
        metric=Metric(),
        planned=20,
        scored=20,
        failed=0,
        truncated=0,
        stopped_in_reasoning=0,
        outcomes={},
        failures={},
        value=100.0,
        bounds=None,
        parts={},
        breakdown={},
    )
    return TaskReport(
        spec=Spec(name="t"),
        version=1,
        dataset={},
        fingerprint={},
        result=result,
        traffic=Traffic(
            attempts=20,
            retries={},
            not_streamed=0,
            latency_s={},
            ttft_s={},
            tpot_s={},
            prompt_tokens=0,
            completion_tokens=0,
        ),
        reference=None,
        verdict=Verdict(task="t", outcome=VerdictOutcome.PASS, rule="none", evaluated=100.0),
    )
