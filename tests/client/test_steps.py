"""Test connections out of step: no sample gets the answer to another, and every run ends."""

import asyncio
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest

from serve_eval.client.client import Client
from serve_eval.client.http1 import connection
from serve_eval.client.http1.connection import CHECK_EVERY
from serve_eval.client.http1.transport import Http1Transport
from serve_eval.client.request import RequestIds
from serve_eval.client.transport import StepLedger
from serve_eval.client.wire_format.reply import Reply
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LoadSession
from serve_eval.evaluation.engine.runner import CircuitBreaker, ask
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.task_run import replay
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Failure,
    FailureKind,
    Hypothesis,
    Limits,
    Metric,
    Outcome,
    Request,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.storage.answer_origins import Proofs
from serve_eval.storage.file_names import PROOFS_FILE
from serve_eval.storage.journal import Journal, Record, read
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.client.kept import FOREIGN, Doubling, DoublingServer, Heard, client_of, kept, whole
from tests.clock import until

MANY = 1000
IN_FLIGHT = 16
UNASKED = whole(f"to {FOREIGN}", {})


def task():
    """Return a task whose right answers name their prompts."""

    def score(sample, response):
        right = response.text == f"to {sample.prompt}"
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)

    return Task(
        name="named",
        version=1,
        reference_file="named",
        metric=Metric(name="accuracy"),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(max_tokens=8),
        protocol={},
        load=lambda roots, n: Dataset(samples=[], files=(), total=0),
        score=score,
        answers=lambda sample: ("", ""),
    )


def _checker(client):
    assert isinstance(client.transport, Http1Transport)
    return client.transport.steps


def samples(count):
    return [Sample(id=str(i), prompt=f"question {i}", target="") for i in range(count)]


class Run:
    """The result of a run against a server."""

    def __init__(
        self,
        accumulator,
        session,
        server,
        path,
        told,
    ):
        self.accumulator, self.session, self.server, self.path, self.told = (
            accumulator,
            session,
            server,
            path,
            told,
        )

    @property
    def wrong(self):
        """Return the samples that are recorded with the answer to another one."""
        prompts = {sample.id: sample.prompt for sample in self.accumulator.samples}
        records = [record for record in read(self.path) if record.response is not None]
        return [
            r.id
            for r in records
            if r.response is not None and r.response.text != f"to {prompts[r.id]}"
        ]


def run(how, folder, *, count=MANY, in_flight=IN_FLIGHT, **limits):
    """Run one session."""

    async def main():
        chosen = Limits(**{"concurrency": in_flight, "retry_budget": 10**6, **limits})
        told = []
        async with (
            DoublingServer(how) as server,
            client_of(server, chosen) as client,
        ):
            with Journal(folder / "named.jsonl") as journal:
                accumulator = ScoreAccumulator(task(), samples(count))
                replay(journal, accumulator)
                session = LoadSession(
                    client, order_seed=0, proofs=Proofs(folder / PROOFS_FILE), notify=told.append
                )
                lane = Lane("named", accumulator, journal, list(accumulator.list_unanswered()))
                await asyncio.wait_for(ask(session, [lane], watch=CircuitBreaker(answered=0)), 60)
                return Run(accumulator, session, server, journal.path, told)

    return asyncio.run(main())


def check(found):
    """Check that every sample is scored once, with its own answer."""
    result = found.accumulator.result()
    assert found.wrong == []
    assert (result.scored, result.failed, result.value) == (result.planned, 0, 100.0)
    assert (
        Counter(
            record.id for record in read(found.path) if record.response is not None
        ).most_common(1)[0][1]
        == 1
    )
    again = ScoreAccumulator(task(), found.accumulator.samples)
    with Journal(found.path) as journal:
        replay(journal, again)
    assert again.result() == result
    assert again.traffic.completion_tokens == found.accumulator.traffic.completion_tokens


ATTACKS = {
    "at once": Doubling(),
    "at once, each tenth": Doubling(every=10),
    "1 to 20 ms later": Doubling(delay_s=(0.001, 0.02)),
    "1 to 20 ms later, each fiftieth": Doubling(every=50, delay_s=(0.001, 0.02), slow_s=0.002),
    "behind the next request": Doubling(behind_next=True),
    "behind the next request, each thirtieth": Doubling(every=30, behind_next=True),
    "behind the next request, once in 400": Doubling(every=400, behind_next=True),
    "an unasked answer": Doubling(every=20, unasked=UNASKED, delay_s=(0.001, 0.01)),
    "an unasked answer behind the next request": Doubling(
        every=20, unasked=UNASKED, behind_next=True
    ),
    "garbage": Doubling(every=20, unasked=b"\x00\x01 garbage\r\n\r\n", delay_s=(0.001, 0.01)),
    "an unasked 200 without an answer": Doubling(
        every=20, unasked=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", behind_next=True
    ),
    "a keep-alive limit": Doubling(every=20, behind_next=True, most=12),
    "a silent keep-alive limit": Doubling(every=20, behind_next=True, most=30, announced=False),
    "no route for the models": Doubling(every=20, behind_next=True, models=False),
}


SLOW = {"at once", "at once, each tenth", "1 to 20 ms later, each fiftieth", "an unasked answer"}


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        pytest.param(
            name, stream, id=f"{name}, {mode}", marks=[pytest.mark.slow] * (name in SLOW or slow)
        )
        for mode, stream, slow in (("whole", False, False), ("stream", True, True))
        for name in ATTACKS
    ]
    + [pytest.param("1 to 20 ms later", True, id="1 to 20 ms later, stream, fast")],
)
def test_no_sample_gets_the_answer_to_another(name, stream, tmp_path):
    found = run(ATTACKS[name], tmp_path, stream=stream)
    check(found)
    assert found.server.asked.total() <= 2 * MANY + 100
    assert found.session.client.transport.ledger.out > 0


@pytest.mark.parametrize("ids", ["constant", "fresh", "request"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("at once", marks=pytest.mark.slow),
        "1 to 20 ms later",
        "behind the next request, each thirtieth",
    ],
)
def test_ids_of_any_kind_change_nothing(name, ids, tmp_path):
    check(run(replace(ATTACKS[name], ids=ids), tmp_path))


def test_a_sound_server_is_checked_rarely_and_nothing_is_withdrawn(tmp_path):
    found = run(Doubling(every=10**9), tmp_path, count=4000, in_flight=8)
    check(found)
    assert found.server.asked.total() == 4000
    assert 0 < found.server.checks <= 4000 // CHECK_EVERY + 3 * found.server.connections
    assert (found.session.withdrawn, found.told, found.session.proofs.out) == (0, [], 0)


def test_when_every_answer_is_doubled_the_run_soon_opens_a_connection_per_request_and_says_so_once(
    tmp_path,
):
    found = run(Doubling(), tmp_path)
    assert found.session.client.alone
    assert len([line for line in found.told if "each request uses its own connection" in line]) == 1
    assert len(found.told) == 2
    assert found.server.connections > 0.9 * MANY
    assert found.session.proofs.out <= 2 * IN_FLIGHT
    assert found.server.asked.total() < MANY + 8 * IN_FLIGHT


def test_a_session_after_one_with_evidence_opens_a_connection_per_request(tmp_path):
    run(Doubling(), tmp_path, count=100)
    found = run(Doubling(every=10**9), tmp_path, count=200)
    check(found)
    assert found.server.connections >= 100


def test_evidence_of_a_later_session_withdraws_what_an_earlier_one_left_unproven(
    tmp_path,
):
    """Connections whose end the server announces prove nothing; the test makes answers wrong."""
    proofs = run(Doubling(every=10**9, most=12), tmp_path, count=300).session.proofs
    records = [record for record in read(tmp_path / "named.jsonl") if record.response is not None]
    doubtful = [r for r in records if r.response is not None and proofs.is_unproven(r.response)]
    assert doubtful
    with Journal(tmp_path / "named.jsonl") as journal:
        for record in doubtful:
            assert record.response is not None
            journal.append(Record(id=record.id, withdrawn="for the test"))
            wrong = msgspec.structs.replace(record.response, text=f"to {FOREIGN}")
            journal.append(Record(id=record.id, response=wrong))
    check(run(Doubling(every=20, behind_next=True), tmp_path, count=1000))


@pytest.mark.parametrize("ids", ["none", "fresh"])
def test_without_who_takes_answers_back_each_request_has_a_connection_of_its_own(ids):
    async def main():
        how = replace(ATTACKS["behind the next request"], ids=ids)
        async with (
            DoublingServer(how) as server,
            client_of(server) as client,
        ):
            return [await client.send(_request(i)) for i in range(30)], server

    results, server = asyncio.run(main())
    assert [r.text for r in results if isinstance(r, Response)] == [
        f"to question {i}" for i in range(30)
    ]
    assert (server.connections, server.checks) == (30, 0)


def _request(number):
    return Request(
        sample_id=str(number), prompt=f"question {number}", sampling=SamplingParams(max_tokens=8)
    )


@pytest.mark.parametrize(
    ("how", "turns", "out"),
    [
        (Doubling(every=10**9), {1: 3}, 0),
        (Doubling(every=10**9, models=False), {1: 3}, 0),
        (Doubling(every=10**9, without=1), {}, 0),
        (Doubling(every=10**9, without=2), {}, 0),
        (Doubling(every=10**9, without=3), {1: 3}, 0),
        (Doubling(every=10**9, ids="request"), {1: 3}, 0),
        (Doubling(every=10**9, most=4), {1: 3}, 0),
        (Doubling(every=2, behind_next=True), {}, 1),
        (Doubling(every=3, unasked=UNASKED, delay_s=(0.001, 0.002)), {}, 1),
        (
            Doubling(
                every=3, unasked=b"HTTP/1.1 408 Request Timeout\r\n\r\n", delay_s=(0.001, 0.002)
            ),
            {},
            0,
        ),
        (Doubling(every=10**9, most=3, announced=False), {}, 0),
    ],
    ids=[
        "sound",
        "no models",
        "models after an error",
        "models after two errors",
        "models after all tries",
        "names requests",
        "closed with the proof",
        "behind",
        "unasked",
        "a goodbye",
        "closed by the server",
    ],
)
async def test_a_check_tells_in_step_from_out_of_step_and_from_neither(how, turns, out):
    heard = Heard()
    server = DoublingServer(how)
    async with (
        server,
        kept(client_of(server), heard) as client,
    ):
        for number in range(3):
            assert isinstance(await client.send(_request(number)), Response)
        await asyncio.sleep(0.02)
        await client.settle()
    assert (heard.in_step if how.ids != "request" else {1: 3}, len(heard.out)) == (turns, out)


async def test_an_answer_that_names_another_request_is_none_even_on_a_fresh_connection():
    heard = Heard()

    def script(request):
        said = {
            **json.loads(act.answer(request)),
            "id": f"cmpl-{server_ids[0] if server_ids else request.request_id}",
        }
        server_ids.append(request.request_id)
        return act.replies(json.dumps(said).encode())

    server_ids = []
    async with FaultyServer(script) as server:
        limits = Limits(max_attempts=1)
        async with kept(client_of(server, limits), heard) as client:
            first, second = [await client.send(_request(number)) for number in range(2)]
    assert isinstance(first, Response)
    assert isinstance(second, Failure)
    assert "the answer to another request" in second.message
    assert heard.out == {
        1: "an answer named another of our requests",
        2: "an answer named another of our requests",
    }


async def test_a_header_that_echoes_another_request_is_a_proof_too():
    sent = []

    def script(request):
        sent.append(request.request_id)
        return act.replies(
            act.answer(request),
            **{"X-Request-ID": sent[0] if len(sent) == 2 else request.request_id},
        )

    server = FaultyServer(script)
    async with server, kept(client_of(server)) as client:
        results = [await client.send(_request(number)) for number in range(2)]
        assert [
            (attempt.failure, attempt.turn) for result in results for attempt in result.attempts
        ] == [(None, 0), (FailureKind.INVALID_RESPONSE, 0), (None, 0)]


async def _hear(server, count):
    """Return what is heard of the connections while a client asks so many questions."""
    heard = Heard()
    async with server, kept(client_of(server), heard) as client:
        for number in range(count):
            await client.send(_request(number))
        await client.settle()
    return heard


@pytest.mark.parametrize(("first", "proven"), [(1, {}), (3, {1: 2}), (4, {1: 3})])
async def test_an_answer_that_names_its_request_proves_itself_and_what_came_before_without_a_check(
    first, proven
):
    sent = []

    def script(request):
        sent.append(request.request_id)
        names = {"X-Request-ID": request.request_id} if len(sent) >= first else {}
        return act.replies(act.answer(request), **names)

    server = FaultyServer(script)
    heard = await _hear(server, 4)
    assert [request.connection for request in server.received] == [1, 1, 1, 1]
    assert server.checks == []
    assert (heard.in_step, heard.out) == (proven, {})


async def test_a_connection_that_named_another_request_is_given_up_and_proves_nothing():
    sent = []

    def script(request):
        sent.append(request.request_id)
        return act.replies(
            act.answer(request), **({"X-Request-ID": sent[0]} if len(sent) == 3 else {})
        )

    server = FaultyServer(script)
    heard = await _hear(server, 3)
    assert [request.connection for request in server.received] == [1, 1, 1, 2]
    assert server.checks == []
    assert (heard.in_step, heard.out) == ({}, {1: "an answer named another of our requests"})


def test_a_request_for_the_models_that_gets_an_answer_tells_that_a_connection_is_out_of_step():
    heard, answered = Heard(), 0

    async def serve(reader, writer):
        nonlocal answered
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                answered += 1
                choice = {"index": 0, "text": f"answer {answered}", "finish_reason": "stop"}
                writer.write(act.http(json.dumps({"choices": [choice]}).encode()))
        writer.close()

    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            async with kept(Client(Endpoint(base_url=url), Limits()), heard) as client:
                for number in range(2):
                    assert isinstance(await client.send(_request(number)), Response)
                await client.settle()

    asyncio.run(main())
    assert (heard.in_step, heard.out) == ({}, {1: "a request for the models got another answer"})


class _Looking:
    """An early stop that decides nothing, and an alarm."""

    def __init__(self):
        self.restarts = 0

    def restart(self):
        self.restarts += 1

    def look(self):
        return False


class _Alarm(_Looking):
    async def look(self):
        pass


async def test_an_early_stop_and_an_alarm_look_again_from_the_beginning(tmp_path):
    early, alarm = _Looking(), _Alarm()
    how = ATTACKS["behind the next request, each thirtieth"]
    limits = Limits(concurrency=IN_FLIGHT)
    async with (
        DoublingServer(how) as server,
        client_of(server, limits) as client,
    ):
        with Journal(tmp_path / "named.jsonl") as journal:
            accumulator = ScoreAccumulator(task(), samples(300))
            session = LoadSession(client, order_seed=0)
            lane = Lane("named", accumulator, journal, range(300), early, alarm=alarm)
            await asyncio.wait_for(ask(session, [lane]), 60)
            assert accumulator.result().value == 100.0
    assert session.withdrawn > 0
    assert early.restarts == alarm.restarts > 0


def test_a_shift_by_the_last_answer_of_a_run_is_found_at_its_end(tmp_path):
    """The sixth request gets a copy of the fifth answer; its own arrives after the last request."""
    found = run(Doubling(every=5, behind_next=True), tmp_path, count=6, in_flight=1)
    check(found)
    assert found.session.withdrawn > 0


def test_a_busy_connection_is_checked_after_8_answers_and_then_now_and_again(
    tmp_path,
):
    found = run(Doubling(every=10**9), tmp_path, count=1100, in_flight=1)
    assert 3 <= found.server.checks <= 6


def test_the_limit_of_a_server_is_learned_so_that_connections_are_checked_before_it(
    tmp_path,
):
    found = run(Doubling(every=10**9, most=6), tmp_path, count=60, in_flight=1)
    check(found)
    assert _checker(found.session.client).most == 6
    assert found.server.checks >= 10


def test_errors_in_a_row_prove_no_shifted_connection(tmp_path):
    """After two refusals each check gets an earlier answer.

    The first check gets the second refusal, and the next gets the list that the first asked for.
    """
    refused = ("question 12", "question 13")
    how = Doubling(every=10, behind_next=True, slow_s=0.01, refused=refused)
    found = run(how, tmp_path, count=16, in_flight=1)
    check(found)
    assert found.session.withdrawn > 0


async def test_a_goodbye_behind_a_check_is_no_sign():
    heard = Heard()
    server = DoublingServer(Doubling(every=10**9, goodbye_s=0.1))
    async with (
        server,
        kept(client_of(server), heard) as client,
    ):
        for number in range(3):
            assert isinstance(await client.send(_request(number)), Response)
        await client.settle()
        await asyncio.sleep(0.2)
        assert server.connections == 1
    assert (heard.in_step, heard.out) == ({1: 3}, {})


async def test_an_id_that_a_server_shortens_names_nothing():
    def script(request):
        return act.replies(act.answer(request), **{"X-Request-ID": request.request_id[:32]})

    heard = Heard()
    server = FaultyServer(script)
    async with (
        server,
        kept(client_of(server), heard) as client,
    ):
        assert all(
            isinstance(result, Response)
            for result in [await client.send(_request(number)) for number in range(2)]
        )
    assert heard.out == {}


def test_a_row_of_rounds_ends_though_connections_end_without_a_proof(tmp_path):
    """One connection is out of step. The server ends the others, and they prove nothing."""
    how = Doubling(every=300, most_copies=1, behind_next=True, most=40)
    found = run(how, tmp_path, count=400, in_flight=1)
    check(found)
    assert found.session.proofs.out == 1
    assert found.server.asked.total() < 3 * 400


@pytest.mark.parametrize(
    ("status", "kind", "body", "told"),
    [
        (200, "application/json", b'{"object": "list", "data": []}', True),
        (200, "application/json", b'{"models": []}', True),
        (200, "application/json", b'{"choices": [{"text": "7"}]}', False),
        (200, "application/json", b'{"choices": [{"text": "7"}], "data": []}', False),
        (200, "text/event-stream; charset=utf-8", b"data: [DONE]\n\n", False),
        (200, "application/json", b'{"choices": []}', None),
        (200, "text/html", b"<html>", None),
        (300, "application/json", b'{"choices": [{"text": "7"}]}', None),
        (404, "application/json", b'{"choices": [{"text": "7"}]}', None),
    ],
)
async def test_what_a_reply_to_a_request_for_the_models_tells(status, kind, body, told):
    reply = Reply(asyncio.get_running_loop().create_future(), limit=1000, now=0.0, raw=True)
    reply.begin(status, {b"content-type": kind})
    reply.take(body)
    reply.finish()
    ids = RequestIds()
    assert connection.StepChecker(StepLedger(), b"", ids, 1000)._describe(reply, ids.new()) is told


async def test_behind_a_run_each_request_has_a_connection_of_its_own_again():
    server = DoublingServer(Doubling(every=10**9))
    async with server, client_of(server) as client:
        async with client.keep_connections(Heard()):
            assert isinstance(await client.send(_request(0)), Response)
            assert isinstance(await client.send(_request(1)), Response)
            await client.settle()
        assert server.connections == 1
        for number in range(2, 5):
            assert isinstance(await client.send(_request(number)), Response)
        assert server.connections == 4


async def test_an_answer_with_another_one_behind_it_is_asked_again_at_once():
    """It is also withdrawn later, since it may answer an earlier request."""

    def script(request):
        async def answered(turn):
            await turn.write((1 + (request.number == 2)) * act.http(act.answer(request)))

        return answered

    server = FaultyServer(script)
    async with server, kept(client_of(server)) as client:
        await client.send(_request(0))
        result = await client.send(_request(1))
    assert isinstance(result, Response)
    assert [attempt.failure for attempt in result.attempts] == [FailureKind.INVALID_RESPONSE, None]


async def test_a_connection_whose_last_answer_nobody_wants_is_still_checked():
    """As when an early stop ends a task and requests in flight are cancelled."""
    heard = Heard()
    server = DoublingServer(Doubling(every=10**9, slow_s=0.05))
    async with (
        server,
        kept(client_of(server), heard) as client,
    ):
        for number in range(3):
            assert isinstance(await client.send(_request(number)), Response)
        unwanted = asyncio.create_task(client.send(_request(3)))
        await until(lambda: client.patience.silent_s() > 0)
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        await client.settle()
    assert (heard.in_step, heard.out) == ({1: 3}, {})


async def test_an_idle_connection_is_checked_before_its_server_closes_it(
    monkeypatch,
):
    """The check of another connection must not delay this one."""
    monkeypatch.setattr("serve_eval.client.http1.transport.IDLE_S", 0.02)
    heard = Heard()

    async def main():
        server = DoublingServer(Doubling(every=10**9))
        async with (
            server,
            kept(client_of(server), heard) as client,
        ):
            endless = asyncio.create_task(asyncio.Event().wait())
            _checker(client)._checks.add(endless)
            for number in range(3):
                assert isinstance(await client.send(_request(number)), Response)
            await until(lambda: heard.in_step == {1: 3})
            _checker(client)._checks.discard(endless)
            endless.cancel()

    await asyncio.wait_for(main(), 20)


def test_what_is_found_is_withdrawn_while_the_run_goes_on_and_what_was_asked_meets_nobody_again(
    tmp_path,
):
    """Only answers of that connection are withdrawn; the others are open and proven at the end."""
    met = Counter()
    left = []

    async def main():
        how = Doubling(every=300, most_copies=1, slow_s=0.002)
        limits = Limits(concurrency=8)
        async with (
            DoublingServer(how) as server,
            client_of(server, limits) as client,
        ):
            with Journal(tmp_path / "named.jsonl") as journal:
                accumulator = ScoreAccumulator(task(), samples(1500))

                async def meet(position):
                    met[position] += 1

                def told(line):
                    left.append(1500 - accumulator.scored)

                session = LoadSession(client, order_seed=0, notify=told)
                await asyncio.wait_for(
                    ask(session, [Lane("n", accumulator, journal, range(1500), meet=meet)]), 60
                )
                assert (accumulator.scored, accumulator.result().value) == (1500, 100.0)
                return session, server.asked.total()

    session, asked = asyncio.run(main())
    assert session.proofs.out == 1
    assert left
    assert left[0] > 500
    assert 0 < session.withdrawn < 100
    assert asked < 1650
    assert set(met.values()) == {1}
