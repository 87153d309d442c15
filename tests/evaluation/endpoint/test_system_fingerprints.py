"""Test what a run says of the configurations that its answers name, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.steps.report_run import merge_spans, remarks
from serve_eval.schema import AnswerSpan, Limits, Plan, Report, Spec, Traffic
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail, models

N = 12
A, B = "vllm-0.32.0-ce948131", "vllm-0.32.0-1d0fa0b7"


def _plan() -> Plan:
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="word_problems", options={"num_samples": N}),),
        limits=Limits(concurrency=1, max_attempts=1),
        no_reference=True,
    )


def _run(
    folder: Path,
    names: Callable[[int], str | None],
    *,
    refused: frozenset[int] = frozenset(),
    host: str = "127.0.0.1",
) -> Report:
    """Run one request at a time; `names` gives the fingerprint of the n-th, from 0."""
    count = iter(range(10 * N))

    def reply(request: HttpRequest) -> Reply:
        if request.body.get("max_tokens", 0) < 10:
            return answer("probe", body={"system_fingerprint": "of a probe"})
        n = next(count)
        if n in refused:
            return fail(400)
        return answer(f"#### {n}", body={"system_fingerprint": names(n)})

    async def main() -> Report:
        async with ScriptedServer(reply, routes={"/v1/models": models("m")}).serve() as url:
            options = {"base_url": url.replace("127.0.0.1", host)}
            plan = replace(_plan(), launcher=Spec(name="external", options=options))
            return await evaluate(plan, folder, environ={}, moved=True)

    return asyncio.run(main())


def _said(report: Report) -> list[str]:
    return [line for line in report.warnings if "fingerprint" in line]


@pytest.mark.parametrize("name", [A, None, "", 7])
def test_one_configuration_or_none_is_no_remark(name: str | None, tmp_path: Path) -> None:
    report = _run(tmp_path, lambda n: name)
    assert _said(report) == []
    counted = {key: one.answers for key, one in _spans(report).items()}
    assert counted == ({A: N} if name == A else {})
    stored = (tmp_path / "samples" / "word_problems.jsonl").read_text()
    assert stored.count("system_fingerprint") == (N if name == A else 0)


def _spans(report: Report) -> dict[str, AnswerSpan]:
    return dict(report.tasks[0].traffic.system_fingerprints)


def test_a_server_that_is_replaced_is_named_with_the_time(tmp_path: Path) -> None:
    report = _run(tmp_path, lambda n: A if n < 5 else B)
    spans = _spans(report)
    assert [(name, one.answers) for name, one in spans.items()] == [(A, 5), (B, 7)]
    assert spans[A].last_s <= spans[B].first_s
    [line] = _said(report)
    assert f"one after the other: {A} (5 answers), from " in line
    assert f" UTC on {B} (7 answers): the server was replaced" in line


def test_unlike_servers_behind_one_address_are_named(tmp_path: Path) -> None:
    [line] = _said(_run(tmp_path, lambda n: (A, B)[n % 2]))
    assert line.startswith("the answers carry 2 system_fingerprints, mixed from ")
    assert line.endswith(
        f" UTC on: {A} (6 answers), {B} (6 answers): servers of different configurations answer"
        " at one address"
    )


def test_a_run_that_goes_on_at_another_address_may_meet_another_server(tmp_path: Path) -> None:
    report = _run(tmp_path, lambda n: A, refused=frozenset({2, 3}))
    assert report.tasks[0].result.failed == 2
    again = _run(tmp_path, lambda n: B, host="localhost")  # the port may be that of before
    assert {name: one.answers for name, one in _spans(again).items()} == {A: N - 2, B: 2}
    assert _said(again) == []
    assert any("come from 2 addresses" in line for line in again.warnings)
    saved = json.loads((tmp_path / "report.json").read_text())["tasks"][0]["traffic"]
    assert saved["system_fingerprints"][B]["answers"] == 2


def _span(first_s: float, last_s: float, answers: int = 1) -> AnswerSpan:
    return AnswerSpan(answers=answers, first_s=first_s, last_s=last_s)


@pytest.mark.parametrize(
    ("spans", "addresses", "begins"),
    [
        ({A: (0, 9)}, 1, None),
        ({A: (0, 5), B: (5, 9)}, 1, "the answers carry 2 system_fingerprints, one after the other"),
        ({A: (0, 5), B: (5, 9)}, 2, None),
        (
            {A: (0, 5.1), B: (5, 9)},
            1,
            "the answers carry 2 system_fingerprints, mixed from 00:00:05",
        ),
        (
            {A: (0, 5.1), B: (5, 9)},
            2,
            "the answers carry 2 system_fingerprints, mixed from 00:00:05",
        ),
        ({A: (0, 2), B: (3, 5), "c": (4, 6)}, 1, "the answers carry 3 system_fingerprints, mixed"),
    ],
)
def test_spans_that_overlap_are_unlike_servers(
    spans: dict[str, tuple[float, float]], addresses: int, begins: str | None
) -> None:
    found = remarks(
        {name: _span(*times) for name, times in spans.items()},
        [f"http://{i}/v1" for i in range(addresses)],
    )
    assert [line[: len(begins or "")] for line in found] == ([] if begins is None else [begins])


def _traffic(**spans: AnswerSpan) -> Traffic:
    return Traffic(
        attempts=0,
        retries={},
        not_streamed=0,
        latency_s={},
        ttft_s={},
        tpot_s={},
        prompt_tokens=0,
        completion_tokens=0,
        system_fingerprints=spans,
    )


def test_the_spans_of_tasks_are_joined() -> None:
    found = merge_spans(
        [
            _traffic(a=_span(5, 6, 2)),
            _traffic(b=_span(3, 4), a=_span(1, 2, 3)),
            _traffic(),
        ]
    )
    assert list(found.items()) == [("a", _span(1, 6, 5)), ("b", _span(3, 4))]
