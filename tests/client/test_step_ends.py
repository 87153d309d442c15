"""Test that no answer goes to another request when connections end or lose their step."""

import asyncio
from dataclasses import replace

import pytest

from serve_eval.client.http1 import transport
from serve_eval.client.http1.connection import Http1Connection
from serve_eval.client.http1.transport import Http1Transport
from serve_eval.client.transport import MOST_ENDS, NO_NOTICE, OUT_OF_STEP, StepLedger
from serve_eval.schema import Limits, Request, Response, SamplingParams
from serve_eval.storage.journal import read, withdrawals
from tests.attack.hostile import BREAKING, case_of, question, said
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.client.kept import Doubling, DoublingServer, Heard, client_of, kept
from tests.client.test_steps import ATTACKS, check, run
from tests.clock import until


def _connection(turns, proven=0):
    connection = Http1Connection(set(), {})
    connection.sent = connection.turns = turns
    connection.proven = proven
    return connection


@pytest.mark.parametrize(
    ("out", "silent", "announced", "why"),
    [
        (1, 2, 9, ""),
        (2, 0, 0, OUT_OF_STEP),
        (0, 3, 0, NO_NOTICE),
    ],
)
def test_a_second_connection_out_of_step_or_a_third_silent_end_is_enough(
    out, silent, announced, why
):
    ledger = StepLedger()
    ledger.listen(Heard())
    for _ in range(out):
        ledger.stray(_connection(5), "an unasked answer")
    for number in range(silent + announced):
        ledger.lose(_connection(5), "it ended", silent=number < silent)
    assert (ledger.alone, ledger.keeps, ledger.why_alone) == (bool(why), not why, why)


@pytest.mark.parametrize(
    ("turns", "proven", "due"),
    [(7, 0, False), (8, 0, True), (519, 8, False), (520, 8, True), (1031, 520, False)],
)
def test_a_connection_is_checked_after_8_answers_and_then_after_each_512(turns, proven, due):
    assert _connection(turns, proven).due is due


def test_without_a_listener_no_connection_is_kept_or_counted():
    """Nobody could take its answers back, and each has only one."""
    ledger = StepLedger()
    for _ in range(3):
        ledger.stray(_connection(1), "an unasked answer")
        ledger.lose(_connection(1), "it ended", silent=True)
        ledger.trust(_connection(1))
        ledger.prove(_connection(1), 2)
    assert (ledger.keeps, ledger.alone, ledger.out, ledger.ends) == (False, False, 0, 0)


def _request(number):
    return Request(
        sample_id=str(number), prompt=f"question {number}", sampling=SamplingParams(max_tokens=8)
    )


async def _answer(client, count):
    for number in range(count):
        assert isinstance(await client.send(_request(number)), Response)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_of_a_connection_that_ends_in_silence_are_asked_again_once_and_apart(
    stream, tmp_path
):
    how = Doubling(every=10**9, most=5, announced=False)
    found = run(how, tmp_path, count=100, in_flight=1, stream=stream)
    check(found)
    gone = withdrawals(tmp_path / "named.jsonl")
    # Of five answers the first needs no proof, and after the third end nothing is kept.
    assert len(gone) == 4 * MOST_ENDS
    assert found.server.asked.total() == 100 + len(gone)
    assert set(found.server.asked.values()) == {1, 2}
    assert found.session.client.alone
    again = [r.response for r in read(tmp_path / "named.jsonl") if r.id in gone]
    assert all(one is not None and one.attempts[-1].turn == 0 for one in again)
    lines = [line for line in found.told if "each request uses its own connection" in line]
    assert len(lines) == 1
    assert "ends connections without notice" in lines[0]


@pytest.mark.parametrize("every", [3, 20])
@pytest.mark.parametrize("most", [4, 7, 30])
def test_a_server_that_answers_twice_and_ends_connections_in_silence_swaps_nothing(
    every, most, tmp_path
):
    how = Doubling(every=every, behind_next=True, most=most, announced=False)
    found = run(how, tmp_path, count=300, in_flight=4)
    check(found)


@pytest.mark.parametrize("most", [3, 6])
def test_announced_ends_before_the_first_check_are_asked_again_and_learned(most, tmp_path):
    found = run(Doubling(every=10**9, most=most), tmp_path, count=60, in_flight=1)
    check(found)
    assert found.session.proofs.lost == 2
    assert found.server.asked.total() == 60 + 2 * (most - 1)
    assert not found.session.client.alone


def test_an_announced_end_after_a_proof_costs_no_token_and_is_told_as_unproven(
    tmp_path,
):
    found = run(Doubling(every=10**9, most=12), tmp_path, count=60, in_flight=1)
    check(found)
    assert found.server.asked.total() == 60
    responses = [r.response for r in read(tmp_path / "named.jsonl") if r.response is not None]
    unproven = [one for one in responses if found.session.proofs.is_unproven(one)]
    assert 0 < len(unproven) <= 2 * (12 - 8)
    assert [found.session.proofs.doubt_earlier(one) for one in unproven] == [None] * len(unproven)


async def test_idle_ends_after_a_proof_cost_nothing_and_connections_go_on_being_kept():
    """As uvicorn, which ends a connection that is idle for some seconds."""
    heard = Heard()
    async with (
        FaultyServer([act.sound]) as server,
        kept(client_of(server), heard) as client,
    ):
        for number in range(MOST_ENDS + 1):
            await asyncio.gather(*(client.send(_request(i)) for i in range(2)))
            await _answer(client, 3)
            await client.settle()
            server.shut_idle_connections()
            await until(lambda: not client.list_open())
            assert not client.alone, number
        assert client.transport.ledger.ends == 0
    assert (heard.ended, heard.out) == ({}, {})
    assert heard.in_step


async def test_a_server_that_ends_idle_connections_before_a_check_is_checked_earlier():
    heard = Heard()
    async with (
        FaultyServer([act.sound]) as server,
        kept(client_of(server), heard) as client,
    ):
        await _answer(client, 3)
        assert isinstance(client.transport, Http1Transport)
        for connection in client.transport.connections:
            connection.used_at -= 0.8  # idle for so long
        server.shut_idle_connections()
        await until(lambda: bool(heard.ended))
        assert client.transport._idle_s == pytest.approx(0.2, abs=0.05)
    assert heard.ended == {1: False}


async def test_what_a_failed_attempt_leaves_unproven_is_lost_but_is_no_silent_end():
    heard = Heard()

    def script(request):
        return act.silent if request.number == 4 else act.sound

    limits = Limits(stall_timeout_s=0.3, max_attempts=1)
    async with (
        FaultyServer(script) as server,
        kept(client_of(server, limits), heard) as client,
    ):
        await _answer(client, 3)
        await client.send(_request(3))
    assert heard.ended == {1: False}


async def test_busy_connections_are_also_checked_by_time_and_one_after_another(
    monkeypatch,
):
    monkeypatch.setattr(transport, "TIMED_S", 0.1)
    monkeypatch.setattr(transport, "TIMED_GAP_S", 0.25)
    heard = Heard()
    async with (
        DoublingServer(Doubling(every=10**9, slow_s=0.05)) as server,
        kept(client_of(server), heard) as client,
    ):
        await asyncio.gather(*(_answer(client, 7) for _ in range(4)))
        assert server.checks in (1, 2)
    assert heard.in_step


def test_an_endpoint_that_proves_nothing_is_named_once_and_asked_apart_after_an_end(
    tmp_path,
):
    how = Doubling(every=10**9, models=False, most=20, announced=False)
    found = run(how, tmp_path, count=60, in_flight=1)
    check(found)
    assert found.session.proofs.lost == 1
    assert found.server.connections > 30
    named = [line for line in found.told if "does not list its models" in line]
    assert len(named) == 1
    assert len([line for line in found.told if "uses its own connection, which" in line]) == 1


LIMITS = Limits(
    stall_timeout_s=0.5,
    sample_timeout_s=1.5,
    max_attempts=2,
    max_response_bytes=100_000,
    stream=True,
)
BEHIND_NEXT = [name for name in ATTACKS if "behind the next request" in name and "400" not in name]


def _request_transports(case):
    return Request(
        sample_id=str(case), prompt=question(case), sampling=SamplingParams(max_tokens=20)
    )


@pytest.mark.parametrize("name", BEHIND_NEXT)
def test_an_answer_too_many_before_the_next_one_swaps_nothing(name, tmp_path):
    check(run(ATTACKS[name], tmp_path, count=60, in_flight=2))


async def _swapped(fault):
    """Return the kept answers that belong to other requests."""
    heard = Heard()
    async with (
        FaultyServer([fault, act.sound]) as server,
        kept(client_of(server, LIMITS), heard) as client,
    ):
        results = [await client.send(_request_transports(case)) for case in range(4)]
        await client.settle()
    wrong = []
    for case, result in enumerate(results):
        if isinstance(result, Response) and result.text.strip() != said(case):
            last = result.attempts[-1]
            if not heard.out or last.turn <= heard.in_step.get(last.connection, 1):
                wrong.append(result.text)
    return wrong


AT_ONCE = [
    name for name in BREAKING if not name.startswith("twice") and name != "an unasked error"
] + ["twice at once"]
"""Ways to break an answer whose result does not depend on when a copy arrives."""


async def test_no_broken_answer_becomes_that_to_another_request(
    monkeypatch,
):
    monkeypatch.setattr(act, "echo", lambda request: said(case_of(request) or 0))
    swapped = await asyncio.gather(*(_swapped(BREAKING[name]) for name in AT_ONCE))
    assert {name: texts for name, texts in zip(AT_ONCE, swapped, strict=True) if texts} == {}


async def test_times_of_a_stream_are_those_of_its_tokens():
    async def timed(turn):
        await turn.write(act.STREAM_HEAD)
        await asyncio.sleep(0.2)
        await turn.write(act.chunked(act.chunk(turn.request, "one")))
        await asyncio.sleep(0.2)
        await turn.write(
            act.chunked(act.chunk(turn.request, " two"))
            + act.chunked(act.chunk(turn.request, "", "stop"))
        )
        await asyncio.sleep(0.2)
        await turn.write(act.chunked(act.DONE) + act.LAST_CHUNK)

    limits = replace(LIMITS, stall_timeout_s=20.0, sample_timeout_s=20.0)
    async with (
        FaultyServer([timed]) as server,
        client_of(server, limits) as client,
    ):
        result = await client.send(_request_transports(1))
        assert isinstance(result, Response)
    assert 0.19 < result.ttft_s < 0.39
    assert result.latency_s > 0.59
