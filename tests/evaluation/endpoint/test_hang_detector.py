"""Test that hangs and other clients of an endpoint are noticed, but not its own requests."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from serve_eval.client.client import Client
from serve_eval.client.preflight import short
from serve_eval.client.questions import VLLM
from serve_eval.errors import EndpointError
from serve_eval.evaluation.hang_detector import HangDetector, ProbedServer
from serve_eval.evidence.engine_counters import Companions, begin, end, remarks
from serve_eval.report.run.document import describe_engines
from serve_eval.schema import (
    Endpoint,
    Limits,
    Request,
    Response,
    SamplingParams,
    ServerInfo,
    Spec,
)
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.clock import run_counted
from tests.evaluation.endpoint.test_engine_counters import Engine, N, make_plan
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    stall,
    stream,
    when,
)

SHORT_S, LONG_S = 0.4, 2.0
"""Time limits in seconds: for requests that are never answered, and for answers that must arrive in
time even on a busy machine.
"""
LONG = Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=100))
AT_ONCE, HANG = answer("1"), stall()


def is_short(request):
    """Return True if a request only checks if the server hangs."""
    return request.max_tokens < 10


def late():
    """Answer nothing until the probe arrives."""
    asked = asyncio.Event()

    def reply(request):
        if is_short(request):
            asked.set()
        return when(asked, AT_ONCE)

    return reply


def ping(request):
    """Start every stream immediately and send comments forever; never answer a short request."""

    async def pings():
        while True:
            yield b": ping\n\n"
            await asyncio.sleep(0.02)

    return stream(pings()) if request.body.get("stream") else stall()


def run(
    *responders,
    stall_s,
    log=None,
    stream=False,
):
    """Send four long requests through the first server while the hang detector watches.

    The first server is the front end of the others. Also return the messages.
    """
    told = []
    limits = Limits(stall_timeout_s=stall_s, sample_timeout_s=60, stream=stream)
    once = replace(limits, max_attempts=1, sample_timeout_s=stall_s, stream=False)

    async def main():
        async with AsyncExitStack() as stack:
            servers = [
                ScriptedServer(responder, paths=["/v1/completions"]) for responder in responders
            ]
            urls = [await stack.enter_async_context(server.serve()) for server in servers]
            clients = [partial(Client, Endpoint(base_url=url), once) for url in urls]
            asked = [
                ProbedServer(f"server_{i}", client, question(), log)
                for i, client in enumerate(clients)
            ]
            client = await stack.enter_async_context(Client(Endpoint(base_url=urls[0]), limits))
            try:
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(
                        HangDetector(client, asked[0], asked[1:], told.append).watch()
                    )
                    sent = [group.create_task(client.send(LONG)) for _ in range(4)]
                    await asyncio.wait(sent)
                    watch.cancel()
            except* EndpointError as errors:
                assert not client.retries
                raise errors.exceptions[0] from None
            return [task.result() for task in sent]

    return asyncio.run(main()), told


def question():
    return short(chat=False, sampling=SamplingParams(max_tokens=1), extra={})


def attempts(results):
    assert all(isinstance(result, Response) for result in results)
    return [len(result.attempts) for result in results]


class Silence:
    """The times at which data comes, for a detector in counted time."""

    def __init__(self, *at):
        self._at, self._noted, self.held = at, 0.0, False

    def heard_at(self):
        now = asyncio.get_running_loop().time()
        return max(self._noted, *(at for at in (0.0, *self._at) if at <= now))

    def silent_s(self):
        return asyncio.get_running_loop().time() - self.heard_at()

    def heard(self):
        self._noted = asyncio.get_running_loop().time()


class Late(ProbedServer):
    """A server that answers a short request after a time, or is given up."""

    def __init__(self, after_s, told):
        super().__init__("x", None, None)
        self._after_s, self._told = after_s, told

    async def answer(self):
        await asyncio.sleep(self._after_s)
        return self._told


SENT, SLOW = "no data for 100 s: sending a short request to x", "all answered: the endpoint is slow"


@pytest.mark.parametrize(
    ("data_at", "after_s", "answered", "told"),
    [
        ((50, 100, 150, 200), 100, None, []),
        ((130,), 100, None, [SENT, SENT]),
        ((130,), 10, "answered", [SENT, SLOW, SENT, SLOW]),
        ((), 10, "answered", [SENT, SLOW, SENT, SLOW]),
    ],
    ids=["data comes", "data comes meanwhile", "both", "the short request is answered"],
)
def test_a_server_hangs_only_without_data_and_without_an_answer(data_at, after_s, answered, told):
    heard = []

    async def main():
        client = SimpleNamespace(
            limits=Limits(stall_timeout_s=100), patience=(patience := Silence(*data_at))
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(250):
                await HangDetector(client, Late(after_s, answered), notify=heard.append).watch()
        assert not patience.held

    run_counted(main())
    assert [line.split(" but ")[0] for line in heard] == told


def test_a_server_without_data_and_without_an_answer_hangs():
    async def main():
        client = SimpleNamespace(limits=Limits(stall_timeout_s=100), patience=Silence())
        await HangDetector(client, Late(100, None)).watch()

    with pytest.raises(EndpointError, match="x hangs: no data for"):
        run_counted(main())


def test_a_server_that_answers_nothing_ends_the_run_before_any_attempt_is_given_up(
    tmp_path,
):
    (log := tmp_path / "log").write_text("loading\nstuck in all_reduce\n")
    began = time.monotonic()
    with pytest.raises(EndpointError) as caught:
        run(HANG, stall_s=SHORT_S, log=log)
    assert time.monotonic() - began > 2 * SHORT_S
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("server_0 hangs: no data for")
    assert rest[-1] == "    stuck in all_reduce"
    assert str(log) in caught.value.hint
    assert caught.value.exit_code == 4


def test_which_of_them_hangs_is_told():
    with pytest.raises(EndpointError) as caught:
        run(HANG, AT_ONCE, HANG, stall_s=LONG_S)
    first, front, other = str(caught.value).splitlines()
    assert first.startswith("server_2 hangs: no data for")
    assert front == "  server_0 does not answer either"
    assert other.startswith("  server_1 answered a short request after")


def test_a_front_door_that_hangs_alone_is_told_apart():
    with pytest.raises(
        EndpointError, match=r"(?s)server_0 hangs: .*server_1 answered.*cannot reach each other"
    ):
        run(HANG, AT_ONCE, stall_s=LONG_S)


def test_a_loaded_server_that_answers_late_is_not_hung():
    """Short requests wait as long as all others."""
    results, told = run(late(), stall_s=LONG_S)
    assert attempts(results) == [1] * 4
    assert [line.split(":")[0] for line in told][:1] == [f"no data for {LONG_S:g} s"]


def test_a_server_that_answers_anything_does_not_hang_whatever_becomes_of_the_probe():
    """The first probe lets one long request have its answer; all others come at the second."""
    probes, seen = [asyncio.Event(), asyncio.Event()], {True: 0, False: 0}

    def forget_probes(request):
        place = min(seen[is_short(request)], 1)
        seen[is_short(request)] += 1
        if is_short(request):
            probes[place].set()
            return HANG
        return when(probes[place], AT_ONCE)

    results, told = run(forget_probes, stall_s=SHORT_S)
    assert attempts(results)[0] == 1
    assert {line.split(":")[0] for line in told} == {f"no data for {SHORT_S:g} s"}


def test_comments_that_keep_streams_open_do_not_hide_that_a_server_hangs():
    with pytest.raises(EndpointError, match="server_0 hangs: no data for"):
        run(ping, stall_s=SHORT_S, stream=True)


@pytest.mark.parametrize("refuses", [False, True])
def test_requests_that_are_lost_by_a_server_that_answers_others_are_asked_again(
    refuses,
):
    lost = 4

    def lose_some(request):
        nonlocal lost
        if is_short(request) and refuses:
            return fail(503)
        if not is_short(request) and lost:
            lost -= 1
            return HANG
        return AT_ONCE

    results, told = run(lose_some, stall_s=LONG_S)
    assert attempts(results) == [2] * 4
    assert told[-1] == "all answered: the endpoint is slow but does not hang"


async def test_silence_counts_only_while_something_is_awaited():
    limits = Limits(stall_timeout_s=LONG_S)
    async with (
        ScriptedServer(AT_ONCE).serve() as url,
        Client(Endpoint(base_url=url), limits) as client,
    ):
        told = []
        watch = asyncio.create_task(
            HangDetector(
                client, ProbedServer("x", lambda: client, question()), notify=told.append
            ).watch()
        )
        for _ in range(2):
            assert isinstance(await client.send(LONG), Response)
            await asyncio.sleep(1.2 * LONG_S)
        assert not told
        watch.cancel()


def _compare(a, b, out):
    """Compare two servers, each asked twice, and return the reports of all four runs."""

    async def main():
        async with AsyncExitStack() as stack:
            urls = {}
            for engine in {id(one): one for one in (a, b)}.values():
                urls[id(engine)] = await stack.enter_async_context(engine.server.serve())
            sides = [_side(urls[id(one)]) for one in (a, b)]
            rules = CompareRules(rule=Spec(name="paired"), again=N)
            await compare(*sides, rules, out, environ={}, show_flips=0)

    asyncio.run(main())
    return [read_report(out / name) for name in ("a", "b", "again", "again_b")]


def _side(url):
    external = Spec(name="external", options={"base_url": url})
    return CompareSide(plan=replace(make_plan(), launcher=external))


def _others(report):
    return [line for line in report.warnings if "other clients" in line]


def test_second_answers_are_no_other_clients(tmp_path):
    for report in _compare(Engine(), Engine(), tmp_path):
        [server] = report.engine.servers
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


def test_both_sides_may_be_one_server(tmp_path):
    engine = Engine()
    assert [_others(report) for report in _compare(engine, engine, tmp_path)] == 4 * [[]]


def test_other_clients_are_still_told(tmp_path):
    a, b, *_ = _compare(Engine(), Engine(others=20 * N), tmp_path)
    assert not _others(a)
    [line] = _others(b)
    assert "the runs of this command sent at most" in line


async def test_requests_of_a_companion_that_are_under_way_at_a_reading_are_no_other_clients():
    """The engine counts them after the reading, and they were sent before it."""
    busy = 24
    engine = Engine(pause_s=0.3)
    async with engine.server.serve() as url:
        endpoint = Endpoint(base_url=url, model="m", info=ServerInfo(server=VLLM))
        async with Client(endpoint, Limits()) as client, Client(endpoint, Limits()) as other:
            companions = Companions()
            for one in (client, other):
                companions.join(one)
            request = Request(sample_id="1", prompt="Hi", sampling=SamplingParams(max_tokens=64))
            under_way = [asyncio.create_task(other.send(request)) for _ in range(busy)]
            await asyncio.sleep(0.1)
            meter = await begin(endpoint, client, 0, companions)
            assert meter is not None
            await asyncio.gather(*under_way)
            report = await end(meter, endpoint, client, 0, companions)
    [server] = report.servers
    assert server.counts.requests == busy
    assert report.companions >= busy
    assert remarks([report]) == []


async def test_requests_that_keep_no_record_are_sent_too():
    """Such are those that count the tokens of answers."""
    engine = Engine()
    async with engine.server.serve() as url:
        endpoint = Endpoint(base_url=url, model="m", info=ServerInfo(server=VLLM))
        async with Client(endpoint, Limits()) as client:
            meter = await begin(endpoint, client, 0, Companions())
            assert meter is not None
            body = b'{"model": "m", "prompt": "Hi", "max_tokens": 64}'
            for _ in range(12):
                await client.exchange("POST", "/v1/completions", body)
            report = await end(meter, endpoint, client, 0, Companions())
    assert report.sent == 12
    assert remarks([report]) == []
