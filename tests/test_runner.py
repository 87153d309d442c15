from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from launchers._simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.client.client import Client
from serve_eval.errors import EndpointError
from serve_eval.journal import Journal
from serve_eval.prompt_hash import prompt_sha256
from serve_eval.runner import Lane, Session, ask
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Endpoint,
    Failure,
    FailureKind,
    Hypothesis,
    Limits,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.choice import prefix_match
from serve_eval.tally import Tally, replay, score_response
from serve_eval.watch import DEAD_AFTER, Watch


def _load(roots: DataRoots, wanted: int) -> Dataset:
    raise NotImplementedError


def _task(**more: Any) -> Task:
    fields: dict[str, Any] = {
        "name": "letters",
        "version": 1,
        "reference_file": "letters",
        "metric": Metric(),
        "hypothesis": Hypothesis(num_samples=10),
        "sampling": SamplingParams(max_tokens=5),
        "protocol": {},
        "load": _load,
        "score": lambda sample, response: prefix_match(response.text, sample.target),
        "answers": lambda sample: (" A", " B"),
    }
    return Task(**{**fields, **more})


def _samples(count: int) -> list[Sample]:
    return [Sample(id=f"s{i}", prompt=f"question {i}", target="A") for i in range(count)]


RIGHT, WRONG = (Response(text=text, finish_reason="stop") for text in ("A", "B"))
FAILED = Failure(kind=FailureKind.TIMEOUT, message="no byte")


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (Response(text="  \n", finish_reason="stop"), Outcome.EMPTY),
        (Response(text="", finish_reason="length", reasoning="hm"), Outcome.REASONING_ONLY),
        (Response(text="", finish_reason="stop", refusal="I will not"), Outcome.REFUSED),
        (Response(text="", finish_reason="content_filter"), Outcome.REFUSED),
        (Response(text="A", finish_reason="length"), Outcome.CORRECT),
        (Response(text="42", finish_reason="stop"), Outcome.UNPARSED),
    ],
)
def test_an_answer_without_a_text_scores_0_and_says_why(response: Response, outcome: Outcome) -> None:
    score = score_response(_task(), _samples(1)[0], response)
    assert score.outcome is outcome
    assert score.value == float(outcome is Outcome.CORRECT)


def test_a_failure_is_counted_never_scored() -> None:
    tally = Tally(_task(), _samples(4))
    for i, result in enumerate([RIGHT, WRONG, FAILED]):
        tally.add(i, result)
    result = tally.result()
    assert (result.planned, result.scored, result.failed) == (4, 2, 2)
    assert result.value == 50.0
    assert result.bounds == (25.0, 75.0)
    assert result.outcomes == {"correct": 1, "wrong": 1}
    assert result.failures == {"timeout": 1}


def test_a_failure_that_is_answered_later_no_longer_counts_but_never_the_other_way_round() -> None:
    tally = Tally(_task(), _samples(1))
    for result in (FAILED, FAILED, RIGHT, FAILED, WRONG):
        tally.add(0, result)
    assert (tally.scored, tally.failed, tally.result().value) == (1, 0, 100.0)


def test_a_task_without_an_answer_has_no_value() -> None:
    tally = Tally(_task(), _samples(2))
    tally.add(0, FAILED)
    result = tally.result()
    assert (result.value, result.bounds, result.scored) == (None, (0.0, 100.0), 0)


@given(st.lists(st.sampled_from(["right", "wrong", "partial", "failed"]), min_size=1, max_size=40), st.randoms())
def test_the_result_does_not_depend_on_the_order_of_the_answers(kinds: list[str], rng: random.Random) -> None:
    def score(sample: Sample, response: Response) -> Score:
        value = float(response.text)
        return Score(value=value, outcome=Outcome.PARTIAL, parts={"half": value / 2})

    answers = {"right": "1", "wrong": "0.1", "partial": "0.3333333333333333"}
    made = [FAILED if kind == "failed" else Response(text=answers[kind], finish_reason="length") for kind in kinds]
    order = list(range(len(made)))
    results = []
    for _ in range(2):
        tally = Tally(_task(score=score), _samples(len(made)))
        for i in order:
            tally.add(i, made[i])
        results.append(tally.result())
        rng.shuffle(order)
    assert results[0] == results[1]
    assert results[0].scored + results[0].failed == results[0].planned
    assert results[0].truncated == results[0].scored


def test_an_unbounded_metric_has_no_bounds_once_something_is_missing() -> None:
    tally = Tally(_task(metric=Metric(hi=None)), _samples(2))
    tally.add(0, RIGHT)
    assert tally.result().bounds is None
    tally.add(1, RIGHT)
    assert tally.result().bounds == (100.0, 100.0)


# ------------------------------------------------------------------------------------------ against a real socket


def _answers(path: Path, samples: list[Sample]) -> Path:
    entry = {"right": " A", "wrong": " B", "probability": 0.5}
    lines = [msgspec.json.encode({"sha256": prompt_sha256(sample.prompt), **entry}) for sample in samples]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def _run(app: web.Application, samples: list[Sample], journal_path: Path, concurrency: int = 16) -> Tally:
    async def main() -> Tally:
        limits = Limits(concurrency=concurrency)
        async with serve(app) as url, Client(Endpoint(base_url=url, model="simulated"), limits) as client:
            with Journal(journal_path) as journal:
                tally = Tally(_task(), samples)
                replay(journal, tally)
                session = Session(client, order_seed=0)
                lane = Lane("letters", tally, journal, list(tally.unanswered()))
                await ask(session, [lane], watch=Watch(answered=False))
                await ask(session, [Lane("letters", tally, journal, list(tally.worth_another_pass()))])
                return tally

    return asyncio.run(main())


def test_every_sample_gets_its_own_answer_and_is_asked_once(tmp_path: Path) -> None:
    samples = _samples(500)
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), latency_s=0.2))
    tally = _run(app, samples, tmp_path / "j", concurrency=64)
    with Journal(tmp_path / "j") as journal:
        records = {record.id: record.response for record in journal.records()}
    assert len(records) == 500
    stats = app[STATS]
    assert set(stats.requests.values()) == {1}
    assert stats.max_concurrent == 64
    assert 40 < (tally.result().value or 0) < 60
    again = Tally(_task(), samples)
    with Journal(tmp_path / "j") as journal:
        assert replay(journal, again) == 500
    assert again.result() == tally.result()


def test_what_failed_is_asked_once_more_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_eval.client.retry.BASE_S", 0.001)
    samples = _samples(200)
    faults: dict[str, Any] = {"failure_rate": 0.05, "failure_kind": "500", "failures_per_prompt": 5}
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), **faults))
    result = _run(app, samples, tmp_path / "j").result()
    assert (result.scored, result.failed) == (200, 0)
    assert set(app[STATS].requests.values()) == {1, 6}


def test_a_refused_sample_is_not_asked_again_at_the_end(tmp_path: Path) -> None:
    samples = _samples(200)
    faults: dict[str, Any] = {"failure_rate": 0.05, "failure_kind": "wrapped_400"}
    app = create_app(SimulatorConfig(answers=_answers(tmp_path / "a", samples), **faults))
    result = _run(app, samples, tmp_path / "j").result()
    assert 0 < result.failed < 30
    assert set(app[STATS].requests.values()) == {1}


def _broken(after: int, fail: Callable[[web.Request], web.Response]) -> tuple[web.Application, list[int]]:
    asked = [0]

    async def handler(request: web.Request) -> web.Response:
        asked[0] += 1
        if asked[0] > after:
            return fail(request)
        return web.json_response({"choices": [{"text": "A", "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    return app, asked


def _hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def test_an_endpoint_that_dies_in_the_middle_ends_the_run_and_keeps_what_was_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_eval.client.retry.BASE_S", 0.001)
    app, asked = _broken(100, _hang_up)
    with pytest.raises(EndpointError, match=r"12 of 112 samples failed.*Server disconnected"):
        _run(app, _samples(2000), tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        assert sum(record.response is not None for record in journal.records()) == 100
    assert asked[0] < 100 + 4 * (DEAD_AFTER + 16) + 16


def test_an_endpoint_that_refuses_everything_ends_the_run_with_the_one_cause(tmp_path: Path) -> None:
    app, asked = _broken(0, lambda request: web.json_response({"error": "no quota"}, status=403))
    with pytest.raises(EndpointError, match=r"refuses every request: 16 samples in a row failed.*no quota"):
        _run(app, _samples(2000), tmp_path / "j")
    assert asked[0] < 2 * DEAD_AFTER + 16


def test_refusals_among_answers_end_the_run_once_they_are_more_than_is_allowed(tmp_path: Path) -> None:
    app, asked = _broken(95, lambda request: web.json_response({"error": "too long"}, status=400))
    with pytest.raises(EndpointError, match=r"11 of 106 samples failed, more than the 10%.*as this one: .*too long"):
        _run(app, _samples(500), tmp_path / "j", concurrency=1)
    assert asked[0] == 106
    app, _ = _broken(95, lambda request: web.json_response({"error": "too long"}, status=400))
    result = _run(app, _samples(105), tmp_path / "j2", concurrency=1).result()
    assert (result.scored, result.failed) == (95, 10)
