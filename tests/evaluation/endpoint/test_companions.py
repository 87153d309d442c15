"""Test that a comparison does not take its own second answers for requests of other clients."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.client.questions import VLLM
from serve_eval.evidence.engine_counters import Companions, begin, end, remarks
from serve_eval.report.run.details import describe_engines
from serve_eval.schema import (
    Endpoint,
    EngineReport,
    Limits,
    Report,
    Request,
    SamplingParams,
    ServerInfo,
    Spec,
)
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.evaluation.endpoint.test_engine_counters import Engine, N, make_plan


def _compare(a: Engine, b: Engine, out: Path) -> list[Report]:
    """Compare two servers, each asked twice, and return the reports of all four runs."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            urls = {}
            for engine in {id(one): one for one in (a, b)}.values():
                urls[id(engine)] = await stack.enter_async_context(engine.server.serve())
            sides = [_side(urls[id(one)]) for one in (a, b)]
            rules = CompareRules(rule=Spec(name="paired"), again=N)
            await compare(*sides, rules, out, environ={}, show_flips=0)

    asyncio.run(main())
    return [read_report(out / name) for name in ("a", "b", "again", "again_b")]


def _side(url: str) -> CompareSide:
    external = Spec(name="external", options={"base_url": url})
    return CompareSide(plan=replace(make_plan(), launcher=external))


def _others(report: Report) -> list[str]:
    return [line for line in report.warnings if "other clients" in line]


def test_second_answers_are_no_other_clients(tmp_path: Path) -> None:
    for report in _compare(Engine(), Engine(), tmp_path):
        assert report.engine is not None
        [server] = report.engine.servers
        assert server.counts is not None
        # The counts of a run that starts late or ends early leave out some of the others'.
        assert N <= (server.counts.requests or 0) <= 2 * N
        assert report.engine.companions >= (server.counts.requests or 0) - N
        assert not _others(report)
    said = [
        line
        for report in _compare(Engine(), Engine(), tmp_path / "more")
        for line in describe_engines(report)
    ]
    assert any("requests of other runs of this command" in line for line in said)


def test_both_sides_may_be_one_server(tmp_path: Path) -> None:
    engine = Engine()
    assert [_others(report) for report in _compare(engine, engine, tmp_path)] == 4 * [[]]


def test_other_clients_are_still_told(tmp_path: Path) -> None:
    a, b, *_ = _compare(Engine(), Engine(others=20 * N), tmp_path)
    assert not _others(a)
    [line] = _others(b)
    assert "the runs of this command sent at most" in line


def test_requests_of_a_companion_that_are_under_way_at_a_reading_are_no_other_clients() -> None:
    """The engine counts them after the reading, and they were sent before it."""
    busy = 24

    async def story() -> EngineReport:
        engine = Engine(pause_s=0.3)
        async with engine.server.serve() as url:
            endpoint = Endpoint(base_url=url, model="m", info=ServerInfo(server=VLLM))
            async with Client(endpoint, Limits()) as client, Client(endpoint, Limits()) as other:
                companions = Companions()
                for one in (client, other):
                    companions.join(one)
                request = Request(
                    sample_id="1", prompt="Hi", sampling=SamplingParams(max_tokens=64)
                )
                under_way = [asyncio.create_task(other.send(request)) for _ in range(busy)]
                await asyncio.sleep(0.1)
                meter = await begin(endpoint, client, 0, companions)
                assert meter is not None
                await asyncio.gather(*under_way)
                return await end(meter, endpoint, client, 0, companions)

    report = asyncio.run(story())
    [server] = report.servers
    assert server.counts is not None
    assert server.counts.requests == busy
    assert report.companions >= busy
    assert remarks([report]) == []


def test_requests_that_keep_no_record_are_sent_too() -> None:
    """Such are those that count the tokens of answers."""

    async def story() -> EngineReport:
        engine = Engine()
        async with engine.server.serve() as url:
            endpoint = Endpoint(base_url=url, model="m", info=ServerInfo(server=VLLM))
            async with Client(endpoint, Limits()) as client:
                meter = await begin(endpoint, client, 0, Companions())
                assert meter is not None
                body = b'{"model": "m", "prompt": "Hi", "max_tokens": 64}'
                for _ in range(12):
                    await client.exchange("POST", "/v1/completions", body)
                return await end(meter, endpoint, client, 0, Companions())

    report = asyncio.run(story())
    assert report.sent == 12
    assert remarks([report]) == []
